/*
 * Prints the result of rare uses of the socket calls, one per line. The output must be the same on TCP and on rsockets.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <linux/errqueue.h>
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
#include "told.h"
#include "server.h"

#define PIPE_BYTES 65536
#define REPLY_BYTES 5000

static struct sockaddr_in here;
static char big[1 << 20];

static void await(int fd, short events)
{
	struct pollfd one = { .fd = fd, .events = events };

	need(poll(&one, 1, 10000) == 1, "poll");
}

/* Bytes that end in a pipe, then those that go from it to a full stream. */
static void splices(int listener)
{
	const unsigned int now = SPLICE_F_NONBLOCK;
	long sent = 0, length, arrived = 0;
	int ends[2], through[2], blocked = 0;

	pair(&here, listener, ends);
	need(pipe(through) == 0, "pipe");
	TELL("splice from an empty pipe", splice(through[0], NULL, ends[0], NULL, PIPE_BYTES, now));
	need(write(through[1], "some", 4) == 4, "write");
	TELL("splice a little", splice(through[0], NULL, ends[0], NULL, PIPE_BYTES, now));
	TELL("what arrived", recv(ends[1], big, 4, MSG_WAITALL));
	fcntl(ends[0], F_SETFL, O_NONBLOCK);
	fcntl(through[1], F_SETFL, O_NONBLOCK);
	/* The peer does not read, so the stream has no room at the end. */
	while (!blocked) {
		for (int at = 0; at < PIPE_BYTES; at++)
			big[at] = (char)((sent + at) % 251);
		need(write(through[1], big, PIPE_BYTES) == PIPE_BYTES, "write to the pipe");
		for (long left = PIPE_BYTES; left > 0 && !blocked; left -= length) {
			length = splice(through[0], NULL, ends[0], NULL, left, now);
			if (length < 0) {
				blocked = 1;
				TELL("splice to a full stream", length);
			} else {
				sent += length;
			}
		}
	}
	shutdown(ends[0], SHUT_WR);
	while ((length = recv(ends[1], big, sizeof(big), 0)) > 0) {
		for (long at = 0; at < length; at++)
			need(big[at] == (char)((arrived + at) % 251), "the order of the bytes");
		arrived += length;
	}
	printf("all that was spliced arrived: %d\n", arrived == sent);
	close(through[0]);
	close(through[1]);
	finish(ends);
}

/* A child shuts down its reading. The peer's next byte must not end the child's answer. */
static void half_closed_child(int listener)
{
	int ends[2], shut[2], written[2];
	long arrived = 0, length;
	char any;

	pair(&here, listener, ends);
	need(pipe(shut) == 0 && pipe(written) == 0, "pipe");
	if (fork() == 0) {
		close(ends[0]);
		TELL("shutdown in the child", shutdown(ends[1], SHUT_RD));
		need(write(shut[1], "", 1) == 1, "tell the parent");
		need(read(written[0], &any, 1) == 1, "hear the parent");
		/* Until the byte has arrived. */
		usleep(300000);
		TELL("write in the child", write(ends[1], big, REPLY_BYTES));
		exit(0);
	}
	close(ends[1]);
	need(read(shut[0], &any, 1) == 1, "hear the child");
	TELL("write to the child", write(ends[0], "x", 1));
	need(write(written[1], "", 1) == 1, "tell the child");
	while ((length = recv(ends[0], big, sizeof(big), 0)) > 0)
		arrived += length;
	printf("from the child: %ld\n", arrived);
	wait(NULL);
	close(ends[0]);
	for (int at = 0; at < 2; at++) {
		close(shut[at]);
		close(written[at]);
	}
}

static void errors_queue(int listener)
{
	struct msghdr message = { 0 };
	char control[512];
	int ends[2], on = 1, reported = 1;

	pair(&here, listener, ends);
	need(write(ends[0], "data", 4) == 4, "write");
	await(ends[1], POLLIN);
	message.msg_control = control;
	message.msg_controllen = sizeof(control);
	TELL("recvmsg of errors", recvmsg(ends[1], &message, MSG_ERRQUEUE));
	/* Who may set this hears when the memory is free. */
	if (setsockopt(ends[0], SOL_SOCKET, SO_ZEROCOPY, &on, sizeof(on)) == 0) {
		need(send(ends[0], big, 10000, MSG_ZEROCOPY) > 0, "send");
		reported = 0;
		for (int turn = 0; turn < 100 && !reported; turn++) {
			message.msg_controllen = sizeof(control);
			reported = recvmsg(ends[0], &message, MSG_ERRQUEUE) == 0;
			usleep(10000);
		}
	}
	printf("a send without a copy is reported: %d\n", reported);
	finish(ends);
}

static void pieces(int listener)
{
	char first[3] = { 0 }, second[10] = { 0 };
	struct iovec into[2] = { { first, 2 }, { second, 5 } };
	struct msghdr message = { .msg_iov = into, .msg_iovlen = 2 };
	struct iovec long_one[1] = { { big, (size_t)SSIZE_MAX + 1 } };
	struct iovec long_two[2] = { { big, 8 }, { big, SSIZE_MAX } };
	volatile size_t most = SIZE_MAX;
	int ends[2];

	pair(&here, listener, ends);
	need(write(ends[0], "abcdefgh", 8) == 8, "write");
	await(ends[1], POLLIN);
	TELL("peek at pieces", recvmsg(ends[1], &message, MSG_PEEK));
	printf("the pieces: %s %s\n", first, second);
	TELL("and again", recvmsg(ends[1], &message, MSG_PEEK | MSG_DONTWAIT));
	TELL("the data are still there", recv(ends[1], big, 8, MSG_WAITALL));
	TELL("peek at nothing", recvmsg(ends[1], &message, MSG_PEEK | MSG_DONTWAIT));
	TELL("write of more than memory", write(ends[0], big, most));
	TELL("read of more than memory", read(ends[1], big, most));
	need(write(ends[0], "abcdefgh", 8) == 8, "write");
	await(ends[1], POLLIN);
	TELL("recv into more than memory", recv(ends[1], big, most, 0));
	TELL("writev of more than memory", writev(ends[0], long_one, 1));
	TELL("readv of more than memory", readv(ends[1], long_one, 1));
	TELL("writev of more in all", writev(ends[0], long_two, 2));
	finish(ends);
}

static void names(int listener)
{
	struct sockaddr_in name;
	socklen_t length = (socklen_t)-1;
	int ends[2];

	pair(&here, listener, ends);
	TELL("getpeername of a negative length", getpeername(ends[0], (struct sockaddr *)&name, &length));
	TELL("getsockname of a negative length", getsockname(ends[0], (struct sockaddr *)&name, &length));
	finish(ends);
}

/* A pipe that has room for less than the stream has, in one thread. */
static void splice_to_a_short_pipe(int listener)
{
	long arrived = 0, length;
	int ends[2], through[2];

	pair(&here, listener, ends);
	need(pipe(through) == 0, "pipe");
	need(fcntl(through[1], F_SETPIPE_SZ, 4096) >= 4096, "a short pipe");
	for (int at = 0; at < 20000; at++)
		big[at] = (char)(at % 251);
	need(write(ends[0], big, 20000) == 20000, "write");
	while (arrived < 20000) {
		length = splice(ends[1], NULL, through[1], NULL, PIPE_BYTES, 0);
		need(length > 0, "splice");
		need(read(through[0], big, sizeof(big)) == length, "read of the pipe");
		for (long at = 0; at < length; at++)
			need(big[at] == (char)((arrived + at) % 251), "the order of the bytes");
		arrived += length;
	}
	printf("through a short pipe: %ld\n", arrived);
	close(through[0]);
	close(through[1]);
	finish(ends);
}

static void nothing(int signal)
{
	(void)signal;
}

static void *read_late(void *fd)
{
	static char into[10000];
	long arrived = 0, length;

	usleep(300000);
	while ((length = recv(*(int *)fd, into, sizeof(into), 0)) > 0) {
		for (long at = 0; at < length; at++)
			need(into[at] == (char)((arrived + at) % 251), "the order of the bytes");
		arrived += length;
		usleep(1000);
	}
	return (void *)arrived;
}

/* Signals that end calls, while a blocking splice waits for a slow reader. */
static void splice_with_signals(int listener)
{
	struct sigaction action = { .sa_handler = nothing }, former;
	struct itimerval often = { { 0, 5000 }, { 0, 5000 } }, never = { 0 };
	long sent = 0, length;
	int ends[2], through[2];
	sigset_t alarms;
	pthread_t reader;
	void *arrived;

	pair(&here, listener, ends);
	need(pipe(through) == 0, "pipe");
	sigemptyset(&alarms);
	sigaddset(&alarms, SIGALRM);
	pthread_sigmask(SIG_BLOCK, &alarms, NULL);
	pthread_create(&reader, NULL, read_late, &ends[1]);
	sigaction(SIGALRM, &action, &former);
	pthread_sigmask(SIG_UNBLOCK, &alarms, NULL);
	setitimer(ITIMER_REAL, &often, NULL);
	while (sent < 40 * PIPE_BYTES) {
		for (int at = 0; at < PIPE_BYTES; at++)
			big[at] = (char)((sent + at) % 251);
		need(write(through[1], big, PIPE_BYTES) == PIPE_BYTES, "write to the pipe");
		for (long left = PIPE_BYTES; left > 0;) {
			length = splice(through[0], NULL, ends[0], NULL, left, 0);
			need(length > 0 || (length < 0 && errno == EINTR), "splice");
			if (length > 0) {
				left -= length;
				sent += length;
			}
		}
	}
	setitimer(ITIMER_REAL, &never, NULL);
	sigaction(SIGALRM, &former, NULL);
	alarm(60);
	shutdown(ends[0], SHUT_WR);
	pthread_join(reader, &arrived);
	printf("all arrived in spite of signals: %d\n", (long)arrived == sent);
	close(through[0]);
	close(through[1]);
	finish(ends);
}

/* The peer closes, and a child writes before it has read all. */
static void child_that_writes_early(int listener)
{
	long arrived = 0, length;
	int ends[2];

	pair(&here, listener, ends);
	if (fork() == 0) {
		close(ends[0]);
		usleep(300000);
		arrived = recv(ends[1], big, 1000, MSG_WAITALL);
		need(write(ends[1], "x", 1) == 1, "write");
		usleep(200000);
		while ((length = recv(ends[1], big, sizeof(big), 0)) > 0)
			arrived += length;
		printf("the child has read: %ld\n", arrived);
		exit(0);
	}
	close(ends[1]);
	need(write(ends[0], big, 100000) == 100000, "write");
	close(ends[0]);
	wait(NULL);
}

/* A child has children of its own before it uses what its parent has accepted. */
static void grandchild(int listener)
{
	int ends[2], own[2];

	pair(&here, listener, ends);
	if (fork() == 0) {
		own[0] = socket(AF_INET, SOCK_STREAM, 0);
		need(connect(own[0], (struct sockaddr *)&here, sizeof(here)) == 0, "connect of the child");
		if (fork() == 0) {
			need(write(ends[1], "grand", 5) == 5, "write of the grandchild");
			need(write(own[0], "own", 3) == 3, "write of the grandchild");
			exit(0);
		}
		wait(NULL);
		exit(0);
	}
	own[1] = accept(listener, NULL, NULL);
	need(own[1] >= 0, "accept from the child");
	TELL("from the grandchild", recv(ends[0], big, 5, MSG_WAITALL));
	TELL("from the grandchild, by its parent", recv(own[1], big, 3, MSG_WAITALL));
	wait(NULL);
	close(own[1]);
	finish(ends);
}

static long option(int fd, int level, int name)
{
	int value = 0;
	socklen_t length = sizeof(value);

	return getsockopt(fd, level, name, &value, &length) == 0 ? value : -1;
}

static void inherited_options(int listener)
{
	struct timeval soon = { .tv_usec = 200000 }, never = { 0 };
	int ends[2], on = 1, off = 0, idle = 7;

	setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof(soon));
	setsockopt(listener, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	setsockopt(listener, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
	setsockopt(listener, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	ends[0] = socket(AF_INET, SOCK_STREAM, 0);
	need(connect(ends[0], (struct sockaddr *)&here, sizeof(here)) == 0, "connect");
	await(listener, POLLIN);
	ends[1] = accept(listener, NULL, NULL);
	need(ends[1] >= 0, "accept");
	TELL("read with the listener's timeout", read(ends[1], big, 1));
	TELL("the listener's SO_KEEPALIVE", option(ends[1], SOL_SOCKET, SO_KEEPALIVE));
	TELL("the listener's TCP_KEEPIDLE", option(ends[1], IPPROTO_TCP, TCP_KEEPIDLE));
	TELL("the listener's TCP_NODELAY", option(ends[1], IPPROTO_TCP, TCP_NODELAY));
	setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &never, sizeof(never));
	setsockopt(listener, SOL_SOCKET, SO_KEEPALIVE, &off, sizeof(off));
	setsockopt(listener, IPPROTO_TCP, TCP_NODELAY, &off, sizeof(off));
	finish(ends);
}

static long port_of(int fd, int (*ask)(int, struct sockaddr *, socklen_t *))
{
	struct sockaddr_in name;
	socklen_t length = sizeof(name);

	return ask(fd, (struct sockaddr *)&name, &length) == 0 ? ntohs(name.sin_port) : -1;
}

static int ask_peer(int fd, struct sockaddr *name, socklen_t *length)
{
	return getpeername(fd, name, length);
}

static int ask_own(int fd, struct sockaddr *name, socklen_t *length)
{
	return getsockname(fd, name, length);
}

static void bound_clients(int listener)
{
	in_addr_t addresses[2] = { htonl(INADDR_LOOPBACK), htonl(INADDR_ANY) };

	for (int at = 0; at < 2; at++) {
		struct sockaddr_in own = here;
		int ends[2];

		own.sin_port = htons(7200 + at);
		own.sin_addr.s_addr = addresses[at];
		ends[0] = socket(AF_INET, SOCK_STREAM, 0);
		need(bind(ends[0], (struct sockaddr *)&own, sizeof(own)) == 0, "bind of a client");
		need(connect(ends[0], (struct sockaddr *)&here, sizeof(here)) == 0, "connect");
		ends[1] = accept(listener, NULL, NULL);
		TELL("the client's port", port_of(ends[0], ask_own));
		TELL("at the server", port_of(ends[1], ask_peer));
		finish(ends);
	}
}

static void long_timeouts(int listener)
{
	struct timespec ever = { .tv_sec = LONG_MAX };
	struct epoll_event event = { .events = EPOLLIN };
	struct pollfd one = { .events = POLLIN };
	fd_set reads;
	int ends[2], set = epoll_create1(0);

	pair(&here, listener, ends);
	need(write(ends[0], "x", 1) == 1, "write");
	one.fd = ends[1];
	TELL("ppoll for ever", ppoll(&one, 1, &ever, NULL));
	FD_ZERO(&reads);
	FD_SET(ends[1], &reads);
	TELL("pselect for ever", pselect(ends[1] + 1, &reads, NULL, NULL, &ever, NULL));
	need(epoll_ctl(set, EPOLL_CTL_ADD, ends[1], &event) == 0, "epoll_ctl");
	TELL("epoll_pwait2 for ever", epoll_pwait2(set, &event, 1, &ever, NULL));
	close(set);
	finish(ends);
}

/* The client is killed with unread data. */
static void told_once(int listener)
{
	int fd;
	pid_t client = fork();

	if (client == 0) {
		fd = socket(AF_INET, SOCK_STREAM, 0);
		need(connect(fd, (struct sockaddr *)&here, sizeof(here)) == 0, "connect");
		for (;;)
			pause();
	}
	fd = accept(listener, NULL, NULL);
	need(write(fd, big, 1000) == 1000, "write");
	usleep(200000);
	kill(client, SIGKILL);
	waitpid(client, NULL, 0);
	await(fd, POLLIN);
	TELL("read after a reset", read(fd, big, 1));
	TELL("once more", read(fd, big, 1));
	TELL("write after a reset", write(fd, "x", 1));
	TELL("SO_ERROR after a reset", option(fd, SOL_SOCKET, SO_ERROR));
	close(fd);
}

static void unsent(int listener)
{
	int ends[2], left = -1;

	pair(&here, listener, ends);
	need(write(ends[0], big, 50000) == 50000, "write");
	need(recv(ends[1], big, 50000, MSG_WAITALL) == 50000, "read");
	for (int turn = 0; turn < 500 && left != 0; turn++) {
		need(ioctl(ends[0], SIOCOUTQ, &left) == 0, "ioctl");
		usleep(10000);
	}
	TELL("bytes that the peer does not have", left);
	finish(ends);
}

int main(void)
{
	int listener;

	setvbuf(stdout, NULL, _IOLBF, 0);
	signal(SIGPIPE, SIG_IGN);
	alarm(60);
	listener = listen_here(&here);
	splices(listener);
	errors_queue(listener);
	pieces(listener);
	names(listener);
	half_closed_child(listener);
	splice_to_a_short_pipe(listener);
	splice_with_signals(listener);
	child_that_writes_early(listener);
	grandchild(listener);
	inherited_options(listener);
	bound_clients(listener);
	long_timeouts(listener);
	told_once(listener);
	unsent(listener);
	printf("done\n");
	return 0;
}
