/*
 * Prints the result of rare uses of the socket calls, one per line. The output must be the same on TCP and on rsockets.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/errqueue.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
#include "told.h"

#define PIPE_BYTES 65536
#define REPLY_BYTES 5000

static struct sockaddr_in here;
static char big[1 << 20];

static void pair(int listener, int ends[2])
{
	ends[0] = socket(AF_INET, SOCK_STREAM, 0);
	need(connect(ends[0], (struct sockaddr *)&here, sizeof(here)) == 0, "connect");
	ends[1] = accept(listener, NULL, NULL);
	need(ends[1] >= 0, "accept");
}

static void finish(int ends[2])
{
	close(ends[0]);
	close(ends[1]);
}

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

	pair(listener, ends);
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

	pair(listener, ends);
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

	pair(listener, ends);
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

	pair(listener, ends);
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

	pair(listener, ends);
	TELL("getpeername of a negative length", getpeername(ends[0], (struct sockaddr *)&name, &length));
	TELL("getsockname of a negative length", getsockname(ends[0], (struct sockaddr *)&name, &length));
	finish(ends);
}

int main(void)
{
	int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;

	setvbuf(stdout, NULL, _IOLBF, 0);
	signal(SIGPIPE, SIG_IGN);
	alarm(60);
	here.sin_family = AF_INET;
	here.sin_port = htons(7100);
	here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	need(bind(listener, (struct sockaddr *)&here, sizeof(here)) == 0, "bind");
	need(listen(listener, 16) == 0, "listen");
	splices(listener);
	errors_queue(listener);
	pieces(listener);
	names(listener);
	half_closed_child(listener);
	printf("done\n");
	return 0;
}
