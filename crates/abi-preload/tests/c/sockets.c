/*
 * Prints the result of each socket call, one per line. The output must be the same on TCP and on rsockets.
 * sockets all: every call, both ends in one process.
 * sockets serve: echoes the data of one client. sockets call: that client.
 * sockets fork: as serve, in a child. sockets die: a client that is killed while it is connected.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
#include "told.h"

static struct sockaddr_in here;
static char big[3000000];

static int connected(void)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	need(connect(fd, (struct sockaddr *)&here, sizeof(here)) == 0, "connect");
	return fd;
}

/* Connects and accepts: both ends of a connection. */
static void pair(int listener, int ends[2])
{
	ends[0] = connected();
	ends[1] = accept(listener, NULL, NULL);
	need(ends[1] >= 0, "accept");
}

/* A listener in an edge-triggered set reports each connection that comes after all others were accepted. */
static void listens_by_edges(int listener)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLET, .data.u64 = 3 }, found[4];
	int set = epoll_create1(0), caller, accepted;

	fcntl(listener, F_SETFL, O_NONBLOCK);
	epoll_ctl(set, EPOLL_CTL_ADD, listener, &event);
	for (int turn = 0; turn < 3; turn++) {
		caller = connected();
		TELL("a listener's edge", epoll_wait(set, found, 4, 5000));
		accepted = accept(listener, NULL, NULL);
		TELL("accepted", accepted >= 0);
		TELL("all are accepted", accept(listener, NULL, NULL));
		TELL("no listener's edge", epoll_wait(set, found, 4, 20));
		close(accepted);
		close(caller);
	}
	close(set);
	fcntl(listener, F_SETFL, 0);
}

static void finish(int ends[2])
{
	close(ends[0]);
	close(ends[1]);
}

static int ready(int fd, short events)
{
	struct pollfd one = { .fd = fd, .events = events };

	return poll(&one, 1, 5000) == 1 ? one.revents : 0;
}

/* Waits until so many bytes can be read. */
static void arrived(int fd, int wanted)
{
	int length = 0;

	for (int tries = 0; tries < 5000 && length < wanted; tries++) {
		need(ioctl(fd, FIONREAD, &length) == 0, "FIONREAD");
		if (length < wanted)
			usleep(1000);
	}
	need(length >= wanted, "the bytes");
}

static void names(int listener)
{
	int ends[2];
	struct sockaddr_in a, b;
	socklen_t length = sizeof(a);

	pair(listener, ends);
	TELL("getpeername", getpeername(ends[0], (struct sockaddr *)&a, &length));
	printf("the client's peer: %s %d of %d bytes\n", inet_ntoa(a.sin_addr), ntohs(a.sin_port) == ntohs(here.sin_port), length);
	getsockname(ends[0], (struct sockaddr *)&a, &length);
	getpeername(ends[1], (struct sockaddr *)&b, &length);
	printf("the client's own: %d %d\n", a.sin_port == b.sin_port, a.sin_addr.s_addr == b.sin_addr.s_addr);
	finish(ends);
}

/* More than a stream has room for messages. */
#define PIECES 1000

static void transfers(int listener)
{
	int ends[2], length = 0;
	char text[64] = "";
	struct iovec many[PIECES], out[2] = { { "scat", 4 }, { "tered", 5 } }, in[2] = { { text, 3 }, { text + 3, 60 } };
	static char order[2 * PIECES];
	struct msghdr message = { .msg_iov = out, .msg_iovlen = 2 };

	pair(listener, ends);
	fcntl(ends[1], F_SETFL, O_NONBLOCK);
	TELL("an empty socket, O_NONBLOCK", recv(ends[1], text, sizeof(text), 0));
	TELL("its flags", fcntl(ends[1], F_GETFL) & O_NONBLOCK);
	fcntl(ends[1], F_SETFL, 0);
	TELL("an empty socket, MSG_DONTWAIT", recv(ends[1], text, sizeof(text), MSG_DONTWAIT));
	for (int at = 0; at < 2 * PIECES; at++)
		order[at] = at * 7 + at / 251;
	for (int at = 0; at < PIECES; at++)
		many[at] = (struct iovec){ order + 2 * at, 2 };
	TELL("many pieces", writev(ends[0], many, PIECES));
	TELL("their bytes", recv(ends[1], big, 2 * PIECES, MSG_WAITALL));
	printf("in order: %d\n", memcmp(big, order, sizeof(order)) == 0);
	TELL("send", send(ends[0], "hello", 5, 0));
	arrived(ends[1], 5);
	printf("readable: %d\n", ready(ends[1], POLLIN | POLLOUT));
	TELL("FIONREAD", ioctl(ends[1], FIONREAD, &length));
	printf("bytes: %d\n", length);
	TELL("MSG_PEEK", recv(ends[1], text, sizeof(text), MSG_PEEK));
	printf("text: %.5s\n", text);
	memset(text, 0, sizeof(text));
	TELL("read", read(ends[1], text, 2));
	TELL("the rest", read(ends[1], text + 2, sizeof(text) - 2));
	printf("text: %.5s\n", text);
	TELL("writev", writev(ends[0], out, 2));
	arrived(ends[1], 9);
	TELL("readv", readv(ends[1], in, 2));
	printf("text: %.9s\n", text);
	memset(text, 0, sizeof(text));
	out[0] = (struct iovec){ "gath", 4 };
	out[1] = (struct iovec){ "ering", 5 };
	TELL("sendmsg", sendmsg(ends[0], &message, 0));
	message.msg_iov = in;
	arrived(ends[1], 9);
	TELL("recvmsg", recvmsg(ends[1], &message, 0));
	printf("text: %.9s\n", text);
	send(ends[0], "ab", 2, 0);
	send(ends[0], "cd", 2, 0);
	TELL("MSG_WAITALL", recv(ends[1], text, 4, MSG_WAITALL));
	char *volatile nowhere = NULL;
	send(ends[0], "e", 1, 0);
	ready(ends[1], POLLIN);
	TELL("recv to null", recv(ends[1], nowhere, 1, 0));
	TELL("what it left", recv(ends[1], text, 1, 0));
	TELL("send from null", send(ends[0], nowhere, 1, 0));
	struct timeval soon = { .tv_usec = 50000 };
	setsockopt(ends[1], SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof(soon));
	TELL("SO_RCVTIMEO", recv(ends[1], text, 4, 0));
	TELL("shutdown", shutdown(ends[0], SHUT_WR));
	printf("at its end: %d\n", ready(ends[1], POLLIN | POLLRDHUP));
	TELL("end", read(ends[1], text, 4));
	TELL("the other direction", write(ends[1], "back", 4));
	TELL("is read", recv(ends[0], text, 4, MSG_WAITALL));
	printf("text: %.4s\n", text);
	TELL("send after shutdown", send(ends[0], "x", 1, MSG_NOSIGNAL));
	finish(ends);
}

static void readiness(int listener)
{
	int ends[2], set = epoll_create1(0), others[2];
	char text[16];
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = 7 }, found[4];
	fd_set reads;
	struct timeval soon = { .tv_usec = 20000 };

	pair(listener, ends);
	need(pipe(others) == 0, "pipe");
	TELL("epoll_ctl", epoll_ctl(set, EPOLL_CTL_ADD, ends[1], &event));
	TELL("again", epoll_ctl(set, EPOLL_CTL_ADD, ends[1], &event));
	event.data.u64 = 8;
	epoll_ctl(set, EPOLL_CTL_ADD, others[0], &event);
	TELL("nothing", epoll_wait(set, found, 4, 20));
	send(ends[0], "abc", 3, 0);
	TELL("level", epoll_wait(set, found, 4, 5000));
	printf("events: %u for %lu\n", found[0].events, found[0].data.u64);
	TELL("level again", epoll_wait(set, found, 4, 5000));
	printf("poll by other names: %d %d %d\n", ready(ends[1], POLLRDNORM), ready(ends[1], POLLWRNORM),
	       ready(ends[1], POLLIN | POLLRDNORM | POLLOUT | POLLWRNORM));
	event.events = EPOLLRDNORM;
	epoll_ctl(set, EPOLL_CTL_MOD, ends[1], &event);
	TELL("by another name", epoll_wait(set, found, 4, 5000));
	printf("events: %u\n", found[0].events);
	event.events = EPOLLIN;
	epoll_ctl(set, EPOLL_CTL_MOD, ends[1], &event);
	need(write(others[1], "x", 1) == 1, "write to a pipe");
	TELL("a pipe besides", epoll_wait(set, found, 4, 5000));
	need(read(others[0], text, 1) == 1, "read from a pipe");
	event = (struct epoll_event){ .events = EPOLLIN | EPOLLET, .data.u64 = 9 };
	TELL("EPOLL_CTL_MOD", epoll_ctl(set, EPOLL_CTL_MOD, ends[1], &event));
	TELL("edge", epoll_wait(set, found, 4, 5000));
	TELL("no edge", epoll_wait(set, found, 4, 20));
	send(ends[0], "d", 1, 0);
	TELL("a new edge", epoll_wait(set, found, 4, 5000));
	printf("for %lu\n", found[0].data.u64);
	need(recv(ends[1], text, 4, MSG_WAITALL) == 4, "recv");
	event.events = EPOLLIN | EPOLLOUT | EPOLLONESHOT;
	epoll_ctl(set, EPOLL_CTL_MOD, ends[1], &event);
	TELL("once", epoll_wait(set, found, 4, 5000));
	printf("events: %u\n", found[0].events);
	TELL("not twice", epoll_wait(set, found, 4, 20));
	TELL("EPOLL_CTL_DEL", epoll_ctl(set, EPOLL_CTL_DEL, ends[1], NULL));
	TELL("again", epoll_ctl(set, EPOLL_CTL_DEL, ends[1], NULL));
	FD_ZERO(&reads);
	FD_SET(ends[1], &reads);
	TELL("select in vain", select(ends[1] + 1, &reads, NULL, NULL, &soon));
	send(ends[0], "e", 1, 0);
	FD_SET(ends[1], &reads);
	FD_SET(others[0], &reads);
	soon.tv_sec = 5;
	TELL("select", select((ends[1] > others[0] ? ends[1] : others[0]) + 1, &reads, NULL, NULL, &soon));
	printf("its sets: %d %d\n", FD_ISSET(ends[1], &reads) != 0, FD_ISSET(others[0], &reads) != 0);
	close(others[0]);
	close(others[1]);
	close(set);
	finish(ends);
}

static void descriptors(int listener)
{
	int ends[2], copy, type = 0, fd;
	socklen_t length = sizeof(type);
	char text[16] = "";

	pair(listener, ends);
	copy = dup(ends[1]);
	fd = open("/dev/null", O_RDONLY);
	TELL("dup2", dup2(ends[0], fd) == fd);
	close(ends[1]);
	close(ends[0]);
	TELL("through a copy", write(fd, "copy", 4));
	TELL("to another", recv(copy, text, 4, MSG_WAITALL));
	TELL("a closed number", write(ends[0], "x", 1));
	TELL("SO_TYPE", getsockopt(copy, SOL_SOCKET, SO_TYPE, &type, &length));
	printf("type: %d\n", type);
	type = 1;
	TELL("TCP_NODELAY", setsockopt(copy, IPPROTO_TCP, TCP_NODELAY, &type, sizeof(type)));
	TELL("an unknown option", setsockopt(copy, IPPROTO_TCP, 9999, &type, sizeof(type)));
	close(fd);
	TELL("the end after the last copy", read(copy, text, 4));
	close(copy);
}

static void copies(int listener)
{
	int ends[2], file = fileno(tmpfile()), pipes[2];
	off_t offset = 10;
	char text[64];
	FILE *in, *out;

	pair(listener, ends);
	need(write(file, "0123456789abcdefghij", 20) == 20, "write");
	TELL("sendfile", sendfile(ends[0], file, &offset, 100));
	printf("offset: %ld\n", (long)offset);
	TELL("its bytes", recv(ends[1], text, 10, MSG_WAITALL));
	printf("text: %.10s\n", text);
	need(pipe(pipes) == 0 && write(pipes[1], "spliced", 7) == 7, "pipe");
	TELL("splice to it", splice(pipes[0], NULL, ends[0], NULL, 7, 0));
	ready(ends[1], POLLIN);
	TELL("splice from it", splice(ends[1], NULL, pipes[1], NULL, 100, 0));
	TELL("its bytes", read(pipes[0], text, 64));
	printf("text: %.7s\n", text);
	out = fdopen(ends[0], "w");
	in = fdopen(dup(ends[1]), "r");
	fprintf(out, "a line %d\nanother\n", 1);
	fflush(out);
	printf("fgets: %s", fgets(text, sizeof(text), in));
	printf("fileno: %d\n", fileno(out) == ends[0]);
	fclose(out);
	printf("fgets: %s", fgets(text, sizeof(text), in));
	printf("at its end: %d\n", fgets(text, sizeof(text), in) == NULL);
	fclose(in);
	close(ends[1]);
	close(pipes[0]);
	close(pipes[1]);
}

static void connects(void)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), error = -1;
	socklen_t length = sizeof(error);
	struct sockaddr_in nobody = here;

	TELL("connect, O_NONBLOCK", connect(fd, (struct sockaddr *)&here, sizeof(here)));
	printf("writable: %d\n", ready(fd, POLLOUT));
	getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
	printf("SO_ERROR: %d\n", error);
	TELL("connect again", connect(fd, (struct sockaddr *)&here, sizeof(here)));
	close(fd);
	nobody.sin_port = htons(9);
	fd = socket(AF_INET, SOCK_STREAM, 0);
	TELL("send unconnected", send(fd, "x", 1, MSG_NOSIGNAL));
	TELL("connect to nobody", connect(fd, (struct sockaddr *)&nobody, sizeof(nobody)));
	close(fd);
}

/* Transfers by a forked child, by a program that it executes, and by a process that gets the socket via SCM_RIGHTS. */
static void processes(int listener)
{
	int ends[2], links[2], got;
	char text[16] = "", control[CMSG_SPACE(sizeof(int))];
	struct iovec piece = { text, 1 };
	struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control) };
	struct sockaddr_in peer;
	socklen_t length = sizeof(peer);

	pair(listener, ends);
	if (fork() == 0) {
		close(ends[0]);
		need(read(ends[1], text, 4) == 4, "read in a child");
		getpeername(ends[1], (struct sockaddr *)&peer, &length);
		text[4] = peer.sin_family == AF_INET ? '!' : '?';
		_exit(write(ends[1], text, 5) != 5);
	}
	close(ends[1]);
	send(ends[0], "fork", 4, 0);
	TELL("from a child", recv(ends[0], text, 5, MSG_WAITALL));
	printf("text: %s\n", text);
	TELL("and its end", recv(ends[0], text, 5, 0));
	close(ends[0]);
	wait(NULL);

	pair(listener, ends);
	if (fork() == 0) {
		close(ends[0]);
		dup2(ends[1], 0);
		dup2(ends[1], 1);
		close(ends[1]);
		execlp("tr", "tr", "a-z", "A-Z", NULL);
		_exit(1);
	}
	close(ends[1]);
	send(ends[0], "execute", 7, 0);
	shutdown(ends[0], SHUT_WR);
	TELL("from a program", recv(ends[0], text, 7, MSG_WAITALL));
	printf("text: %.7s\n", text);
	close(ends[0]);
	wait(NULL);

	/* Both processes use the socket: one reads, one writes. */
	pair(listener, ends);
	if (fork() == 0)
		_exit(recv(ends[1], text, 4, MSG_WAITALL) != 4 || memcmp(text, "read", 4));
	send(ends[0], "read", 4, 0);
	wait(&got);
	printf("read by a child: %d\n", got);
	TELL("written by its parent", send(ends[1], "write", 5, 0));
	TELL("received", recv(ends[0], text, 5, MSG_WAITALL));
	finish(ends);

	need(socketpair(AF_UNIX, SOCK_STREAM, 0, links) == 0, "socketpair");
	if (fork() == 0) {
		need(recvmsg(links[1], &message, 0) == 1, "recvmsg");
		memcpy(&got, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(got));
		_exit(write(got, "rights", 6) != 6);
	}
	pair(listener, ends);
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(header), &ends[1], sizeof(int));
	TELL("SCM_RIGHTS", sendmsg(links[0], &message, 0));
	close(ends[1]);
	TELL("from the other process", recv(ends[0], text, 6, MSG_WAITALL));
	printf("text: %.6s\n", text);
	wait(NULL);
	close(ends[0]);
}

/* More data than all buffers hold, in both directions, without a fork. */
static void much(int listener)
{
	int ends[2];
	size_t sent = 0, got = 0;
	unsigned long sum = 0;
	static char room[65536];

	for (size_t at = 0; at < sizeof(big); at++)
		big[at] = at * 7 + at / 251;
	pair(listener, ends);
	fcntl(ends[0], F_SETFL, O_NONBLOCK);
	fcntl(ends[1], F_SETFL, O_NONBLOCK);
	while (got < sizeof(big)) {
		struct pollfd fds[2] = { { ends[0], sent < sizeof(big) ? POLLOUT : 0, 0 }, { ends[1], POLLIN, 0 } };

		need(poll(fds, 2, 10000) > 0, "poll");
		if (fds[0].revents & POLLOUT) {
			ssize_t n = send(ends[0], big + sent, sizeof(big) - sent, 0);

			sent += n > 0 ? n : 0;
		}
		if (fds[1].revents & POLLIN) {
			ssize_t n = recv(ends[1], room, sizeof(room), 0);

			for (ssize_t at = 0; at < n; at++)
				sum += room[at] == big[got + at];
			got += n > 0 ? n : 0;
		}
	}
	printf("much: %lu of %zu bytes are right\n", sum, sizeof(big));
	close(ends[1]);
	printf("after the peer: %d\n", ready(ends[0], POLLIN) & POLLIN);
	TELL("reads its end", recv(ends[0], room, 1, 0));
	close(ends[0]);
}

static void serve(int listener)
{
	int fd = accept(listener, NULL, NULL);
	ssize_t length;

	while ((length = read(fd, big, sizeof(big))) > 0)
		need(send(fd, big, length, 0) == length, "send");
	close(fd);
}

static void serve_in_child(int listener)
{
	int fd = accept(listener, NULL, NULL), state = 0;
	ssize_t length;
	pid_t child = fork();

	need(child >= 0, "fork");
	if (!child) {
		while ((length = read(fd, big, sizeof(big))) > 0)
			need(send(fd, big, length, 0) == length, "send");
		_exit(7);
	}
	close(fd);
	need(waitpid(child, &state, 0) == child && WIFEXITED(state) && WEXITSTATUS(state) == 7, "the child's end");
	printf("the child has ended\n");
}

static void die(void)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	need(connect(fd, (struct sockaddr *)&here, sizeof(here)) == 0, "connect");
	need(send(fd, "abc", 3, 0) == 3 && recv(fd, big, 3, MSG_WAITALL) == 3, "the echo");
	kill(getpid(), SIGKILL);
}

static void call(void)
{
	/* More than one buffer holds, so the server ends while it still has a part. */
	static char back[200000];
	int fd;

	/* The server may not be listening yet. */
	for (int tries = 0; tries < 200; tries++) {
		fd = socket(AF_INET, SOCK_STREAM, 0);
		if (connect(fd, (struct sockaddr *)&here, sizeof(here)) == 0)
			break;
		close(fd);
		usleep(50000);
	}
	for (size_t at = 0; at < sizeof(back); at++)
		big[at] = at * 7 + at / 251;
	need(send(fd, big, sizeof(back), 0) == sizeof(back), "send");
	shutdown(fd, SHUT_WR);
	usleep(300000);
	need(recv(fd, back, sizeof(back), MSG_WAITALL) == sizeof(back), "recv");
	need(memcmp(big, back, sizeof(back)) == 0, "what came back");
	need(recv(fd, back, 1, 0) == 0, "the end");
	close(fd);
	printf("the data are right\n");
}

int main(int count, char **arguments)
{
	int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
	const char *role = count > 1 ? arguments[1] : "all";

	setvbuf(stdout, NULL, _IOLBF, 0);
	signal(SIGPIPE, SIG_IGN);
	alarm(100);
	here.sin_family = AF_INET;
	here.sin_port = htons(7100);
	here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (strcmp(role, "call") == 0) {
		call();
		return 0;
	}
	if (strcmp(role, "die") == 0)
		die();
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	TELL("bind", bind(listener, (struct sockaddr *)&here, sizeof(here)));
	TELL("listen", listen(listener, 16));
	if (strcmp(role, "serve") == 0) {
		serve(listener);
		return 0;
	}
	if (strcmp(role, "fork") == 0) {
		serve_in_child(listener);
		return 0;
	}
	fcntl(listener, F_SETFL, O_NONBLOCK);
	TELL("accept nobody", accept(listener, NULL, NULL));
	fcntl(listener, F_SETFL, 0);
	listens_by_edges(listener);
	names(listener);
	transfers(listener);
	readiness(listener);
	descriptors(listener);
	copies(listener);
	connects();
	close(accept(listener, NULL, NULL));
	much(listener);
	processes(listener);
	close(listener);
	printf("done\n");
	return 0;
}
