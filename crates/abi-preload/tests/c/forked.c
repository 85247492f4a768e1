/*
 * Epoll instances that processes share by fork(2). Prints what each case finds, one per line. The output must be the same on
 * TCP and on rsockets.
 * forked daemon: a server is the child of what has made its listener and its instance, and has ended.
 * forked workers: four children serve, and the parent does not wait.
 * forked parent: a parent waits while its child has a listener of its own in their instance.
 * forked polled: a child polls the instance.
 * forked woken: a thread of the parent waits while a child waits, too.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "told.h"
#include "server.h"

static struct sockaddr_in here;

static long ms_of(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int instance_of(int listener)
{
	struct epoll_event event = { .events = EPOLLIN, .data.fd = listener };
	int set = epoll_create1(0);

	need(epoll_ctl(set, EPOLL_CTL_ADD, listener, &event) == 0, "epoll_ctl");
	return set;
}

/* Waits for nothing. Prints whether that took its time, and no processor's. */
static void idle(const char *who, int set)
{
	struct epoll_event event;
	long began = ms_of(CLOCK_MONOTONIC), used = ms_of(CLOCK_PROCESS_CPUTIME_ID);
	int found = epoll_wait(set, &event, 1, 1500);

	printf("%s waits: %d, all the time: %d, busy: %d\n", who, found, ms_of(CLOCK_MONOTONIC) - began >= 1490,
	       ms_of(CLOCK_PROCESS_CPUTIME_ID) - used > 100);
}

static void answer(int set, int listener)
{
	struct epoll_event event = { 0 };
	char byte;
	int client, found = epoll_wait(set, &event, 1, 30000);

	need(found == 1 && event.data.fd == listener, "epoll_wait");
	client = accept(listener, NULL, NULL);
	need(client >= 0, "accept");
	need(read(client, &byte, 1) == 1 && write(client, &byte, 1) == 1, "answer");
	close(client);
}

static int is_answered(void)
{
	int client = socket(AF_INET, SOCK_STREAM, 0), answers;
	struct timeval limit = { .tv_sec = 30 };
	char byte = 'x';

	setsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	answers = connect(client, (struct sockaddr *)&here, sizeof(here)) == 0 && write(client, &byte, 1) == 1 &&
		  read(client, &byte, 1) == 1;
	close(client);
	return answers;
}

static void daemonized(void)
{
	int started[2];
	char byte;

	need(pipe(started) == 0, "pipe");
	if (fork() == 0) {
		int listener = listen_here(&here), set = instance_of(listener);

		if (fork() != 0)
			_exit(0);
		idle("the daemon", set);
		need(write(started[1], "x", 1) == 1, "write");
		answer(set, listener);
		idle("the daemon", set);
		need(write(started[1], "x", 1) == 1, "write");
		answer(set, listener);
		need(write(started[1], "x", 1) == 1, "write");
		exit(0);
	}
	here = loopback();
	for (int turn = 0; turn < 2; turn++) {
		need(read(started[0], &byte, 1) == 1, "the daemon");
		printf("answered: %d\n", is_answered());
	}
	need(read(started[0], &byte, 1) == 1, "the daemon");
	wait(NULL);
}

static void workers(void)
{
	int listener = listen_here(&here), set = instance_of(listener), ended, busy = 0, answered = 0;
	pid_t worker[4];

	for (int at = 0; at < 4; at++) {
		worker[at] = fork();
		if (worker[at] == 0) {
			long until = ms_of(CLOCK_MONOTONIC) + 6000;

			fcntl(listener, F_SETFL, O_NONBLOCK);
			while (ms_of(CLOCK_MONOTONIC) < until) {
				struct epoll_event event;
				char byte;
				int client;

				if (epoll_wait(set, &event, 1, 500) <= 0)
					continue;
				client = accept4(listener, NULL, NULL, 0);
				if (client < 0)
					continue;
				need(read(client, &byte, 1) == 1 && write(client, &byte, 1) == 1, "answer");
				close(client);
			}
			exit(ms_of(CLOCK_PROCESS_CPUTIME_ID) > 2000);
		}
	}
	usleep(1000000);
	for (int turn = 0; turn < 5; turn++)
		answered += is_answered();
	for (int at = 0; at < 4; at++) {
		need(waitpid(worker[at], &ended, 0) == worker[at], "waitpid");
		busy += ended != 0;
	}
	printf("answered: %d, busy: %d\n", answered, busy);
}

static void parent(void)
{
	int listener = listen_here(&here), set = instance_of(listener), own[2], end[2];
	char byte;
	pid_t child;

	need(pipe(own) == 0 && pipe(end) == 0, "pipe");
	child = fork();
	if (child == 0) {
		struct sockaddr_in other = here;
		int second = socket(AF_INET, SOCK_STREAM, 0);
		struct epoll_event event = { .events = EPOLLIN, .data.fd = second };

		other.sin_port = 0;
		need(bind(second, (struct sockaddr *)&other, sizeof(other)) == 0 && listen(second, 5) == 0, "listen");
		need(epoll_ctl(set, EPOLL_CTL_ADD, second, &event) == 0, "epoll_ctl");
		need(write(own[1], "x", 1) == 1 && read(end[0], &byte, 1) == 1, "the parent");
		printf("answered: %d\n", is_answered());
		exit(0);
	}
	need(read(own[0], &byte, 1) == 1, "the child");
	idle("the parent", set);
	need(write(end[1], "x", 1) == 1, "write");
	answer(set, listener);
	waitpid(child, NULL, 0);
}

static void polled(void)
{
	int listener = listen_here(&here), set = instance_of(listener), started[2];
	struct pollfd of_set = { .fd = set, .events = POLLIN };
	char byte;

	need(pipe(started) == 0, "pipe");
	if (fork() == 0) {
		for (int turn = 0; turn < 2; turn++) {
			long used = ms_of(CLOCK_PROCESS_CPUTIME_ID);

			TELL("poll of nothing", poll(&of_set, 1, 1000));
			printf("busy: %d\n", ms_of(CLOCK_PROCESS_CPUTIME_ID) - used > 100 + 400 * !turn);
			need(write(started[1], "x", 1) == 1, "write");
			TELL("poll", poll(&of_set, 1, 30000));
			answer(set, listener);
		}
		exit(0);
	}
	for (int turn = 0; turn < 2; turn++) {
		need(read(started[0], &byte, 1) == 1, "the child");
		need(is_answered(), "an answer");
	}
	wait(NULL);
}

static void *wait_once(void *set)
{
	struct epoll_event event;

	return (void *)(long)epoll_wait(*(int *)set, &event, 1, 30000);
}

static void woken(void)
{
	int listener = listen_here(&here), lost = 0;

	for (int turn = 0; turn < 20; turn++) {
		int ends[2], set = epoll_create1(0);
		struct epoll_event event = { .events = EPOLLIN };
		pthread_t waiter;
		pid_t child;
		void *found;

		pair(&here, listener, ends);
		need(epoll_ctl(set, EPOLL_CTL_ADD, ends[1], &event) == 0, "epoll_ctl");
		pthread_create(&waiter, NULL, wait_once, &set);
		usleep(20000);
		child = fork();
		if (child == 0) {
			close(ends[0]);
			for (;;)
				epoll_wait(set, &event, 1, 1);
		}
		usleep(turn * 2000);
		need(write(ends[0], "x", 1) == 1, "write");
		pthread_join(waiter, &found);
		lost += (long)found != 1;
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
		close(set);
		finish(ends);
	}
	printf("lost: %d\n", lost);
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	alarm(90);
	if (argc > 1 && strcmp(argv[1], "daemon") == 0)
		daemonized();
	else if (argc > 1 && strcmp(argv[1], "workers") == 0)
		workers();
	else if (argc > 1 && strcmp(argv[1], "parent") == 0)
		parent();
	else if (argc > 1 && strcmp(argv[1], "polled") == 0)
		polled();
	else
		woken();
	printf("done\n");
	return 0;
}
