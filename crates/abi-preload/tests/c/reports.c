/*
 * What an epoll instance reports. Prints what each case finds, one per line. The output must be the same on TCP and on rsockets.
 * reports shots: a one-shot listener, with clients of which some have TCP in any case.
 * reports unwaited: nobody waits on the instance of a stream.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include "told.h"
#include "server.h"

static struct sockaddr_in here;
static int listener;

static void control(int set, int operation, int fd, unsigned events)
{
	struct epoll_event event = { .events = events, .data.fd = fd };

	need(epoll_ctl(set, operation, fd, &event) == 0, "epoll_ctl");
}

static int found(int set, int timeout_ms)
{
	struct epoll_event events[8];

	return epoll_wait(set, events, 8, timeout_ms);
}

/* A client that has TCP in any case, or not. */
static int client(int has_tcp)
{
	int made = has_tcp ? (int)syscall(SYS_socket, AF_INET, SOCK_STREAM, 0) : socket(AF_INET, SOCK_STREAM, 0);

	if (has_tcp)
		need(syscall(SYS_connect, made, &here, sizeof(here)) == 0, "connect");
	else
		need(connect(made, (struct sockaddr *)&here, sizeof(here)) == 0, "connect");
	return made;
}

static void shots(unsigned edge)
{
	unsigned events = EPOLLIN | EPOLLONESHOT | edge;
	int set = epoll_create1(0);

	fcntl(listener, F_SETFL, O_NONBLOCK);
	control(set, EPOLL_CTL_ADD, listener, events);
	printf("nothing yet: %d\n", found(set, 50));
	for (int turn = 0; turn < 4; turn++) {
		int first = client(turn & 1), second, taken;

		if (turn < 2) {
			printf("the first client: %d\n", found(set, 20000));
			second = client(!(turn & 1));
		} else {
			second = client(!(turn & 1));
			usleep(100000);
			printf("both: %d\n", found(set, 20000));
		}
		printf("not armed: %d\n", found(set, 300));
		control(set, EPOLL_CTL_MOD, listener, events);
		printf("armed again: %d\n", found(set, 20000));
		for (int clients = 0; clients < 2;) {
			taken = accept(listener, NULL, NULL);
			if (taken >= 0) {
				close(taken);
				clients++;
			} else {
				usleep(1000);
			}
		}
		control(set, EPOLL_CTL_MOD, listener, events);
		printf("accepted: %d\n", found(set, 50));
		close(first);
		close(second);
	}
	control(set, EPOLL_CTL_MOD, listener, EPOLLIN);
	for (int has_tcp = 0; has_tcp < 2; has_tcp++) {
		int last = client(has_tcp);

		printf("any time: %d\n", found(set, 20000));
		printf("any time: %d\n", found(set, 20000));
		close(accept(listener, NULL, NULL));
		close(last);
	}
	close(set);
}

static int ends[2];

static void *echo(void *unused)
{
	char byte;

	while (read(ends[0], &byte, 1) == 1) {
		usleep(60);
		need(write(ends[0], &byte, 1) == 1, "write");
	}
	return unused;
}

static size_t heap(void)
{
	struct mallinfo2 info = mallinfo2();

	return info.uordblks + info.hblkhd;
}

static void unwaited(void)
{
	int set = epoll_create1(0);
	size_t before = 0;
	pthread_t other;
	char byte = 'x';

	pair(&here, listener, ends);
	control(set, EPOLL_CTL_ADD, ends[1], EPOLLIN);
	pthread_create(&other, NULL, echo, NULL);
	for (int turn = 0; turn < 10000; turn++) {
		if (turn == 2000)
			before = heap();
		need(write(ends[1], &byte, 1) == 1 && read(ends[1], &byte, 1) == 1, "a turn");
	}
	printf("the heap grows: %d\n", heap() > before + 8192);
	shutdown(ends[1], SHUT_WR);
	pthread_join(other, NULL);
	finish(ends);
}

static void exclusive(void)
{
	struct epoll_event event = { .events = EPOLLIN };
	int set = epoll_create1(0);

	pair(&here, listener, ends);
	control(set, EPOLL_CTL_ADD, ends[1], EPOLLIN | EPOLLEXCLUSIVE);
	TELL("modifies an exclusive one", epoll_ctl(set, EPOLL_CTL_MOD, ends[1], &event));
	control(set, EPOLL_CTL_DEL, ends[1], 0);
	control(set, EPOLL_CTL_ADD, ends[1], EPOLLIN);
	event.events |= EPOLLEXCLUSIVE;
	TELL("makes one exclusive", epoll_ctl(set, EPOLL_CTL_MOD, ends[1], &event));
	finish(ends);
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	alarm(90);
	listener = listen_here(&here);
	if (argc > 1 && strcmp(argv[1], "shots") == 0) {
		shots(0);
		shots(EPOLLET);
	} else if (argc > 1 && strcmp(argv[1], "unwaited") == 0) {
		unwaited();
	} else {
		exclusive();
	}
	printf("done\n");
	return 0;
}
