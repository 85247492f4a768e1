/*
 * Prints the result of calls around the end of connections and processes, and of options, one per line. The output must be
 * the same on TCP and on rsockets.
 */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "told.h"
#include "server.h"

#define PIECES 1025
#define FILES 40

static struct sockaddr_in here;
static char big[1 << 20];

static long now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Until the peer's end has arrived. */
static void await_end(int fd)
{
	struct pollfd one = { .fd = fd, .events = POLLRDHUP };

	need(poll(&one, 1, 10000) == 1, "poll");
}

/* What an edge-triggered set reports that has reported the peer's end, once the program's direction ends, too. */
static void hang_ups(int listener)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLRDHUP | EPOLLET };
	int ends[2], set;

	signal(SIGPIPE, SIG_IGN);
	for (int writes = 0; writes < 2; writes++) {
		set = epoll_create1(0);
		pair(&here, listener, ends);
		need(epoll_ctl(set, EPOLL_CTL_ADD, ends[1], &event) == 0, "epoll_ctl");
		close(ends[0]);
		await_end(ends[1]);
		TELL("epoll_wait", epoll_wait(set, &event, 1, 3000));
		printf("events: %x\n", event.events);
		TELL("the end", read(ends[1], big, 100));
		TELL("epoll_wait", epoll_wait(set, &event, 1, 0));
		if (writes)
			TELL("write", write(ends[1], "x", 1));
		else
			TELL("shutdown", shutdown(ends[1], SHUT_WR));
		TELL("epoll_wait", epoll_wait(set, &event, 1, 3000));
		printf("hung up: %d\n", (event.events & EPOLLHUP) != 0);
		event.events = EPOLLIN | EPOLLRDHUP | EPOLLET;
		close(set);
		close(ends[1]);
	}
	signal(SIGPIPE, SIG_DFL);
}

/* A file that a process has not closed when it exits. The process may be gone before its connection is accepted. */
static void file_at_exit(int listener)
{
	int fd;

	fflush(stdout);
	if (fork() == 0) {
		FILE *file;

		close(listener);
		fd = socket(AF_INET, SOCK_STREAM, 0);
		need(connect(fd, (struct sockaddr *)&here, sizeof(here)) == 0, "connect");
		file = fdopen(fd, "w");
		fprintf(file, "some text");
		exit(0);
	}
	alarm(20);
	fd = accept(listener, NULL, NULL);
	TELL("from a file that is not closed", recv(fd, big, 100, MSG_WAITALL));
	close(fd);
	wait(NULL);
	alarm(0);
}

/* The peer has closed. The first write is lost without an error, the next one fails. */
static void writes_after_the_end(int listener)
{
	struct pollfd one = { .events = POLLIN };
	int ends[2];

	signal(SIGPIPE, SIG_IGN);
	pair(&here, listener, ends);
	need(write(ends[0], "quit", 4) == 4, "write");
	close(ends[0]);
	one.fd = ends[1];
	TELL("read", read(ends[1], big, 100));
	TELL("poll", poll(&one, 1, 3000));
	TELL("the end", read(ends[1], big, 100));
	await_end(ends[1]);
	one.events = POLLIN | POLLOUT | POLLRDHUP;
	TELL("poll", poll(&one, 1, 3000));
	printf("events: %x\n", (unsigned int)one.revents);
	TELL("the first write", write(ends[1], "good bye", 8));
	usleep(100000);
	TELL("the next write", write(ends[1], "good bye", 8));
	TELL("read", read(ends[1], big, 100));
	TELL("poll", poll(&one, 1, 3000));
	printf("events: %x\n", (unsigned int)one.revents);
	close(ends[1]);

	pair(&here, listener, ends);
	TELL("shutdown", shutdown(ends[1], SHUT_WR));
	close(ends[0]);
	await_end(ends[1]);
	TELL("a write after shutdown", write(ends[1], "x", 1));
	one.fd = ends[1];
	TELL("poll", poll(&one, 1, 3000));
	printf("events: %x\n", (unsigned int)one.revents);
	close(ends[1]);
	signal(SIGPIPE, SIG_DFL);
}

static void quit(int signal)
{
	(void)signal;
	exit(3);
}

/* A listener of this process. Writes to `ready` when it listens. Returns what it accepts. */
static int accept_one(int ready)
{
	struct sockaddr_in its = here;
	int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;

	its.sin_port = htons(7102);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	need(bind(listener, (struct sockaddr *)&its, sizeof(its)) == 0, "bind");
	need(listen(listener, 1) == 0, "listen");
	need(write(ready, "", 1) == 1, "write");
	return accept(listener, NULL, NULL);
}

/* Reads what a writer sends, until it is killed. */
static void read_on(int ready)
{
	int fd = accept_one(ready);

	while (read(fd, big, sizeof(big)) > 0)
		;
	_exit(0);
}

/* A stream of a process that exits in a signal handler after some time. */
static int connect_until_a_signal(long us)
{
	struct itimerval soon = { .it_value = { .tv_usec = us } };
	struct sockaddr_in its = here;
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	its.sin_port = htons(7102);
	need(connect(fd, (struct sockaddr *)&its, sizeof(its)) == 0, "connect");
	signal(SIGALRM, quit);
	setitimer(ITIMER_REAL, &soon, NULL);
	return fd;
}

static void write_until_a_signal(long us)
{
	int fd = connect_until_a_signal(us);

	while (write(fd, big, 64) > 0)
		;
	_exit(4);
}

static void ask_until_a_signal(long us)
{
	int fd = connect_until_a_signal(us), unread, error = 0;
	socklen_t length = sizeof(error);

	while (ioctl(fd, FIONREAD, &unread) == 0 && error == 0)
		getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
	_exit(4);
}

/* A process that exits in a signal handler while it sleeps: its peer gets all that it has written, and the end. */
static void exit_asleep(void)
{
	struct pollfd one = { .events = POLLIN };
	long total = 0, length = 0, lengths[2];
	int ready[2], result[2], status;
	pid_t writer;
	char any;

	need(pipe(ready) == 0 && pipe(result) == 0, "pipe");
	if (fork() == 0) {
		int fd = accept_one(ready[1]);

		usleep(300000);
		while ((length = read(fd, big, sizeof(big))) > 0)
			total += length;
		lengths[0] = total;
		lengths[1] = length < 0 ? -errno : 0;
		need(write(result[1], lengths, sizeof(lengths)) == sizeof(lengths), "write");
		exit(0);
	}
	need(read(ready[0], &any, 1) == 1, "read");
	writer = fork();
	if (writer == 0) {
		one.fd = connect_until_a_signal(0);
		need(write(one.fd, big, 100000) == 100000, "write");
		ualarm(100000, 0);
		poll(&one, 1, -1);
		_exit(4);
	}
	need(read(result[0], lengths, sizeof(lengths)) == sizeof(lengths), "read");
	printf("from a process that exits in poll: %ld bytes, then %ld\n", lengths[0], lengths[1]);
	waitpid(writer, &status, 0);
	wait(NULL);
	printf("its status: %d\n", WEXITSTATUS(status));
}

/* Processes that exit in a signal handler, amid calls on a stream. */
static void exits_in_handlers(void)
{
	int ended = 0, status, ready[2];
	char any;

	need(pipe(ready) == 0, "pipe");
	for (int at = 0; at < 40; at++) {
		pid_t reader = fork(), writer;

		if (reader == 0)
			read_on(ready[1]);
		need(read(ready[0], &any, 1) == 1, "read");
		writer = fork();
		if (writer == 0 && at % 2 == 0)
			write_until_a_signal(20000 + 137 * at);
		if (writer == 0)
			ask_until_a_signal(20000 + 137 * at);
		for (int waited = 0; waited < 800 && writer != 0; waited++) {
			usleep(10000);
			if (waitpid(writer, &status, WNOHANG) == writer) {
				ended += WIFEXITED(status) && WEXITSTATUS(status) == 3;
				writer = 0;
			}
		}
		if (writer != 0) {
			kill(writer, SIGKILL);
			waitpid(writer, NULL, 0);
		}
		kill(reader, SIGKILL);
		waitpid(reader, NULL, 0);
	}
	printf("exited in their handlers: %d\n", ended);
}

/* A child's socket has the time limits that its parent has set. */
static void limits_in_a_child(int listener)
{
	struct timeval limit = { .tv_usec = 200000 }, its = { 0 };
	socklen_t length = sizeof(its);
	int ends[2];

	pair(&here, listener, ends);
	need(setsockopt(ends[1], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0, "set");
	fflush(stdout);
	if (fork() == 0) {
		alarm(5);
		close(ends[0]);
		TELL("recv in the child", recv(ends[1], big, 1, 0));
		getsockopt(ends[1], SOL_SOCKET, SO_RCVTIMEO, &its, &length);
		printf("its limit: %ld us\n", (long)its.tv_usec);
		exit(0);
	}
	wait(NULL);
	finish(ends);
}

/* What a child must not believe to be in force. */
static void options_in_a_child(int listener)
{
	int ends[2], on = 1;
	char keys[40] = { 0x04, 0x03, 51 };

	pair(&here, listener, ends);
	fflush(stdout);
	if (fork() == 0) {
		TELL("TCP_NODELAY", setsockopt(ends[1], IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)));
		TELL("TCP_QUICKACK", setsockopt(ends[1], IPPROTO_TCP, TCP_QUICKACK, &on, sizeof(on)));
		TELL("an unknown ULP", setsockopt(ends[1], IPPROTO_TCP, TCP_ULP, "none", 4) < 0);
		TELL("keys of TLS", setsockopt(ends[1], 282, 1, keys, sizeof(keys)) < 0);
		exit(0);
	}
	wait(NULL);
	finish(ends);
}

/* What select(2) says of a stream whose peer has closed, and which is only in the set of exceptions. */
static void exceptions(int listener)
{
	struct timeval limit = { .tv_usec = 300000 };
	fd_set except;
	int ends[2];
	long began;

	pair(&here, listener, ends);
	close(ends[0]);
	TELL("the end", read(ends[1], big, 1));
	FD_ZERO(&except);
	FD_SET(ends[1], &except);
	began = now_ms();
	TELL("select", select(ends[1] + 1, NULL, NULL, &except, &limit));
	printf("it waited: %d\n", now_ms() - began > 250);
	close(ends[1]);
}

/* A listener or client that may use one device only. */
static void devices(void)
{
	struct sockaddr_in its = here, from = here;
	int fd = socket(AF_INET, SOCK_STREAM, 0), client;

	its.sin_addr.s_addr = htonl(INADDR_ANY);
	its.sin_port = htons(7101);
	TELL("bind to a device", setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "veth0", 5));
	need(bind(fd, (struct sockaddr *)&its, sizeof(its)) == 0, "bind");
	need(listen(fd, 1) == 0, "listen");
	client = socket(AF_INET, SOCK_STREAM, 0);
	from.sin_port = its.sin_port;
	TELL("connect through another device", connect(client, (struct sockaddr *)&from, sizeof(from)));
	close(client);
	close(fd);
	client = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	TELL("bind a client", setsockopt(client, SOL_SOCKET, SO_BINDTODEVICE, "veth0", 5));
	TELL("connect", connect(client, (struct sockaddr *)&here, sizeof(here)));
	usleep(300000);
	TELL("connect", connect(client, (struct sockaddr *)&here, sizeof(here)));
	close(client);
}

static void connects(int listener)
{
	struct sockaddr_in6 other = { .sin6_family = AF_INET6, .sin6_port = here.sin_port,
				      .sin6_addr = IN6ADDR_LOOPBACK_INIT };
	struct sockaddr_in nowhere = here, its;
	socklen_t length = sizeof(its);
	struct iovec pieces[PIECES] = { { 0 } };
	struct msghdr message = { .msg_iov = pieces, .msg_iovlen = PIECES };
	int ends[2], fd;

	pair(&here, listener, ends);
	TELL("connect an accepted socket", connect(ends[1], (struct sockaddr *)&here, sizeof(here)));
	TELL("recvfrom", recvfrom(ends[1], big, 1, MSG_DONTWAIT, (struct sockaddr *)&its, &length));
	printf("the length is still %u\n", length);
	need(write(ends[0], "x", 1) == 1, "write");
	TELL("recvfrom without an address", recvfrom(ends[1], big, 1, 0, NULL, &length));
	printf("the length is still %u\n", length);
	TELL("sendmsg of many pieces", sendmsg(ends[0], &message, 0));
	TELL("recvmsg of many pieces", recvmsg(ends[0], &message, MSG_DONTWAIT));
	TELL("writev of many pieces", writev(ends[0], pieces, PIECES));
	finish(ends);

	fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	TELL("connect to another family", connect(fd, (struct sockaddr *)&other, sizeof(other)));
	/* No route leads there. */
	nowhere.sin_addr.s_addr = htonl(0xc6336401);
	TELL("connect to nowhere", connect(fd, (struct sockaddr *)&nowhere, sizeof(nowhere)) < 0);
	usleep(100000);
	for (int at = 0; at < 3; at++)
		if (connect(fd, (struct sockaddr *)&here, sizeof(here)) == 0 || errno == EISCONN || errno == EINPROGRESS)
			break;
	usleep(300000);
	TELL("connect again", connect(fd, (struct sockaddr *)&here, sizeof(here)) == 0 || errno == EISCONN);
	ends[1] = accept(listener, NULL, NULL);
	TELL("write", write(fd, "some", 4));
	TELL("read", read(ends[1], big, 4));
	close(fd);
	close(ends[1]);
}

int main(void)
{
	int listener;

	setvbuf(stdout, NULL, _IOLBF, 0);
	listener = listen_here(&here);
	writes_after_the_end(listener);
	hang_ups(listener);
	for (int at = 0; at < FILES; at++)
		file_at_exit(listener);
	limits_in_a_child(listener);
	options_in_a_child(listener);
	exceptions(listener);
	devices();
	connects(listener);
	close(listener);
	exit_asleep();
	exits_in_handlers();
	printf("done\n");
	return 0;
}
