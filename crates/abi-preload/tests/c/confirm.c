/* Connects that the program does not look at, clients that never confirm, and processes that share a listening socket.
 *
 * self COUNT: one thread connects to itself, and accepts before it looks at the connects.
 * serve:      answers one client after the other, until one says so.
 * call:       is answered by `serve`, and ends it.
 * workers WAY: two processes accept from one socket, after a wait in epoll_wait or without. Each is busy with a slow
 *             client for three seconds.
 * hurry:      connects to the workers: a slow client, and others meanwhile. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "told.h"

#define PORT 7100
#define COUNT_MAX 1000

static struct sockaddr_in address(void)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(PORT)};
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return address;
}

static int listening(void)
{
	struct sockaddr_in own = address();
	int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	need(bind(fd, (struct sockaddr *)&own, sizeof own) == 0, "bind");
	need(listen(fd, COUNT_MAX) == 0, "listen");
	return fd;
}

static int connecting(int flags)
{
	struct sockaddr_in peer = address();
	int fd = socket(AF_INET, SOCK_STREAM | flags, 0);
	int connected = connect(fd, (struct sockaddr *)&peer, sizeof peer);
	need(connected == 0 || errno == EINPROGRESS, "connect");
	return fd;
}

static void to_self(int count)
{
	static int ours[COUNT_MAX], theirs[COUNT_MAX];
	int listener = listening(), right = 0;
	for (int i = 0; i < count; i++) ours[i] = connecting(SOCK_NONBLOCK);
	for (int i = 0; i < count; i++) theirs[i] = accept(listener, NULL, NULL);
	for (int i = 0; i < count; i++) {
		struct pollfd fd = {.fd = ours[i], .events = POLLOUT};
		int error = -1;
		socklen_t length = sizeof error;
		if (theirs[i] < 0 || poll(&fd, 1, 10000) != 1 || fd.revents != POLLOUT) continue;
		if (getsockopt(ours[i], SOL_SOCKET, SO_ERROR, &error, &length) != 0 || error != 0) continue;
		if (write(ours[i], &i, sizeof i) != sizeof i) continue;
		right++;
	}
	printf("%d of %d connected\n", right, count);
	right = 0;
	for (int i = 0; i < count; i++) {
		int said = -1;
		if (read(theirs[i], &said, sizeof said) == sizeof said && said >= 0 && said < count) right++;
	}
	printf("%d of %d heard\n", right, count);
}

static void serve(void)
{
	int listener = listening();
	char said[4] = "";
	while (memcmp(said, "last", 4) != 0) {
		int fd = accept(listener, NULL, NULL);
		need(fd >= 0, "accept");
		need(read(fd, said, 4) == 4, "read");
		need(write(fd, said, 4) == 4, "write");
		close(fd);
	}
}

static void call(void)
{
	char said[4] = "";
	int fd = connecting(0);
	TELL("write", write(fd, "last", 4));
	TELL("read", read(fd, said, 4));
	printf("%.4s\n", said);
}

static void workers(int by_epoll)
{
	struct epoll_event event = {.events = EPOLLIN};
	int listener = listening();

	for (int i = 0; i < 2; i++) {
		if (fork() > 0)
			continue;
		int set = epoll_create1(0);
		if (by_epoll) {
			fcntl(listener, F_SETFL, O_NONBLOCK);
			epoll_ctl(set, EPOLL_CTL_ADD, listener, &event);
		}
		for (;;) {
			if (by_epoll)
				need(epoll_wait(set, &event, 1, -1) == 1, "epoll_wait");
			int fd = accept(listener, NULL, NULL);
			char said;

			/* The other process was faster. */
			if (fd < 0 && by_epoll && errno == EAGAIN)
				continue;
			need(fd >= 0, "accept");
			if (read(fd, &said, 1) == 1) {
				if (said == 's')
					sleep(3);
				need(write(fd, &said, 1) == 1, "write");
			}
			close(fd);
		}
	}
	printf("workers\n");
	pause();
}

static void hurry(void)
{
	char said = 's';
	int slow = connecting(0), right = 0;
	struct pollfd answered = { .fd = slow, .events = POLLIN };

	need(write(slow, &said, 1) == 1, "write");
	usleep(100000);
	for (int i = 0; i < 20; i++) {
		int fd = connecting(0);

		said = 'q';
		if (write(fd, &said, 1) == 1 && read(fd, &said, 1) == 1 && poll(&answered, 1, 0) == 0)
			right++;
		close(fd);
	}
	printf("%d of 20 were answered before the slow one\n", right);
	printf("the slow one: %zd\n", read(slow, &said, 1));
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc == 3 && !strcmp(mode, "self") && atoi(argv[2]) <= COUNT_MAX)
		to_self(atoi(argv[2]));
	else if (!strcmp(mode, "serve"))
		serve();
	else if (!strcmp(mode, "call"))
		call();
	else if (argc == 3 && !strcmp(mode, "workers"))
		workers(!strcmp(argv[2], "epoll"));
	else if (!strcmp(mode, "hurry"))
		hurry();
	else
		return 2;
	printf("done\n");
	return 0;
}
