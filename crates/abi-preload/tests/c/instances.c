/*
 * Epoll instances and listeners that threads share. Prints what each case finds, one per line. The output must be the same on
 * TCP and on rsockets.
 * instances copies: sockets are added through one descriptor of an instance, and another one waits.
 * instances numbers: a socket is in an instance by two numbers, one a duplicate of the other.
 * instances nested: an instance in another one, and more ready sockets than there is room for events.
 * instances rings: whether there is io_uring, and other system calls by number. The first differs on TCP.
 * instances first N: N times, two threads add the first sockets of an instance.
 * instances inherits N: N times, the threads of a forked child first use the listener at the same moment.
 * instances modifies N: N times, a thread asks for room at the moment when another one looks at the socket.
 * instances shares N: N times, two threads wait on one instance for a listener, and each accepts one of two clients.
 * instances accepts N: N times, two threads wait for connections, and the one that gets TCP's keeps it.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "told.h"
#include "server.h"

static struct sockaddr_in here;
static int listener;

static void add(int set, int fd, int operation)
{
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = (uint64_t)fd };

	need(epoll_ctl(set, operation, fd, &event) == 0, "epoll_ctl");
}

/* The number that the event is about, or how many there are if not one. */
static long waited(int set, int timeout_ms)
{
	struct epoll_event events[8];
	int found = epoll_wait(set, events, 8, timeout_ms);

	return found == 1 ? (long)events[0].data.u64 : -1000 - found;
}

/* As above, with room for some events. The first one's number. */
static long waited_for(int set, int room, int timeout_ms)
{
	struct epoll_event events[8];
	int found = epoll_wait(set, events, room, timeout_ms);

	return found > 0 ? (long)events[0].data.u64 : -1000 - found;
}

static void *wait_once(void *set)
{
	return (void *)waited(*(int *)set, 20000);
}

static void copies(void)
{
	int ends[2], set = epoll_create1(EPOLL_CLOEXEC), copy, other;
	pthread_t waiter;
	void *found;
	char byte;

	copy = fcntl(set, F_DUPFD_CLOEXEC, 0);
	pair(&here, listener, ends);
	pthread_create(&waiter, NULL, wait_once, &set);
	usleep(200000);
	add(copy, ends[1], EPOLL_CTL_ADD);
	printf("nothing yet: %ld\n", waited(copy, 50));
	need(write(ends[0], "x", 1) == 1, "write");
	pthread_join(waiter, &found);
	printf("the thread that waits for the original: %d\n", (long)found == ends[1]);
	printf("the copy: %d\n", waited(copy, 20000) == ends[1]);
	printf("the original: %d\n", waited(set, 20000) == ends[1]);
	close(set);
	/* Something else may have the original's number. */
	other = dup(0);
	add(copy, ends[1], EPOLL_CTL_MOD);
	printf("the copy alone: %d\n", waited(copy, 20000) == ends[1]);
	add(copy, ends[0], EPOLL_CTL_ADD);
	need(read(ends[1], &byte, 1) == 1, "read");
	printf("nothing again: %ld\n", waited(copy, 50));
	need(write(ends[1], "y", 1) == 1, "write");
	printf("an end that was added later: %d\n", waited(copy, 20000) == ends[0]);
	close(other);
	close(copy);
	close(ends[0]);
	close(ends[1]);
}

/* Waits until an instance has reported both numbers. */
static int reports_both(int set, int one, int other)
{
	int seen = 0;

	for (int turn = 0; turn < 1000 && seen != 3; turn++) {
		struct epoll_event events[8];
		int found = epoll_wait(set, events, 8, 20000);

		need(found > 0, "epoll_wait");
		for (int at = 0; at < found; at++)
			seen |= (events[at].data.u64 == (uint64_t)one) | (events[at].data.u64 == (uint64_t)other) << 1;
	}
	return seen == 3;
}

static void numbers(void)
{
	struct epoll_event room = { .events = EPOLLOUT };
	int set = epoll_create1(0), copy = dup(listener), client, other;

	add(set, listener, EPOLL_CTL_ADD);
	add(set, copy, EPOLL_CTL_ADD);
	for (int turn = 0; turn < 2; turn++) {
		client = socket(AF_INET, SOCK_STREAM, 0);
		need(connect(client, (struct sockaddr *)&here, sizeof(here)) == 0, "connect");
		printf("a listener and its duplicate: %d\n", reports_both(set, listener, copy));
		other = accept(turn ? listener : copy, NULL, NULL);
		need(other >= 0, "accept");
		close(client);
		close(other);
		printf("nothing yet: %ld\n", waited(set, 50));
		/* It enters again. */
		need(epoll_ctl(set, EPOLL_CTL_DEL, turn ? listener : copy, NULL) == 0, "epoll_ctl");
		add(set, turn ? listener : copy, EPOLL_CTL_ADD);
	}
	need(epoll_ctl(set, EPOLL_CTL_DEL, listener, NULL) == 0, "epoll_ctl");
	client = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	need(connect(client, (struct sockaddr *)&here, sizeof(here)) == -1 && errno == EINPROGRESS, "connect");
	printf("the duplicate alone: %d\n", waited(set, 20000) == copy);
	close(set);
	set = epoll_create1(0);
	other = dup(client);
	room.data.u64 = (uint64_t)client;
	need(epoll_ctl(set, EPOLL_CTL_ADD, client, &room) == 0, "epoll_ctl");
	room.data.u64 = (uint64_t)other;
	need(epoll_ctl(set, EPOLL_CTL_ADD, other, &room) == 0, "epoll_ctl");
	printf("a connect and its duplicate: %d\n", reports_both(set, client, other));
	close(set);
	close(copy);
	close(client);
	close(other);
}

static void *wait_for_one(void *set)
{
	return (void *)waited_for(*(int *)set, 1, 20000);
}

/* Level-triggered sockets that stay ready are reported again, by the outer instance, too. */
static void nested(void)
{
	int inner = epoll_create1(0), outer = epoll_create1(0), timer = eventfd(1, 0), ends[3][2], has_timer = 1;
	struct epoll_event three[3];
	long found[4], seen = 0;
	pthread_t threads[2];
	void *each[2];
	char byte;

	add(outer, inner, EPOLL_CTL_ADD);
	for (int at = 0; at < 3; at++) {
		pair(&here, listener, ends[at]);
		add(inner, ends[at][1], EPOLL_CTL_ADD);
	}
	for (int at = 0; at < 3; at++)
		need(write(ends[at][0], "xy", 2) == 2, "write");
	printf("the outer one: %d\n", waited(outer, 20000) == inner);
	printf("one of three: %d\n", waited_for(inner, 1, 20000) > 0);
	printf("the outer one again: %d\n", waited(outer, 20000) == inner);
	for (int at = 0; at < 3; at++)
		need(read(ends[at][1], &byte, 1) == 1, "read");
	printf("a byte of each is left: %d\n", waited(outer, 20000) == inner);
	/* Sockets that stay ready do not hide what else is. */
	add(inner, timer, EPOLL_CTL_ADD);
	for (int turn = 0; turn < 40 && seen != timer; turn++)
		seen = waited_for(inner, 1, 20000);
	printf("another descriptor, in its turn: %d\n", seen == timer);
	for (int turn = 0; turn < 40 && seen == timer; turn++)
		seen = waited_for(inner, 1, 20000);
	printf("and a socket after it: %d\n", seen != timer && seen > 0);
	/* After a wait that had room for sockets only, one that finds the other descriptor alone reports it once. */
	for (int turn = 0; turn < 40 && has_timer; turn++) {
		need(epoll_wait(inner, three, 3, 20000) == 3, "three events");
		has_timer = 0;
		for (int at = 0; at < 3; at++)
			has_timer |= three[at].data.u64 == (uint64_t)timer;
	}
	for (int at = 0; at < 3; at++)
		need(read(ends[at][1], &byte, 1) == 1, "read");
	TELL("events of the other descriptor", epoll_wait(inner, three, 3, 20000));
	need(epoll_ctl(inner, EPOLL_CTL_DEL, timer, NULL) == 0, "epoll_ctl");
	while (waited(inner, 100) != -1000)
		;
	/* Two threads that take one event each. */
	for (int at = 0; at < 2; at++) {
		struct epoll_event once = { .events = EPOLLIN | EPOLLONESHOT, .data.u64 = (uint64_t)ends[at][1] };

		need(epoll_ctl(inner, EPOLL_CTL_MOD, ends[at][1], &once) == 0, "epoll_ctl");
	}
	for (int at = 0; at < 2; at++)
		pthread_create(&threads[at], NULL, wait_for_one, &inner);
	usleep(200000);
	for (int at = 0; at < 2; at++)
		need(write(ends[at][0], "x", 1) == 1, "write");
	for (int at = 0; at < 2; at++)
		pthread_join(threads[at], &each[at]);
	found[0] = (long)each[0];
	found[1] = (long)each[1];
	printf("each thread has one: %d\n", found[0] != found[1] && found[0] > 0 && found[1] > 0);
}

static pthread_barrier_t both;
static int set, added[2];

static void *add_one(void *at)
{
	pthread_barrier_wait(&both);
	add(set, added[(long)at], EPOLL_CTL_ADD);
	return NULL;
}

static long used_ms(void)
{
	struct rusage used;

	getrusage(RUSAGE_SELF, &used);
	return used.ru_utime.tv_sec * 1000 + used.ru_utime.tv_usec / 1000 + used.ru_stime.tv_sec * 1000 +
	       used.ru_stime.tv_usec / 1000;
}

static void first(int times)
{
	int lost = 0, ends[2], peers[2];
	char byte;

	pair(&here, listener, ends);
	added[0] = ends[1];
	peers[0] = ends[0];
	pair(&here, listener, ends);
	added[1] = ends[1];
	peers[1] = ends[0];
	pthread_barrier_init(&both, NULL, 2);
	for (int time = 0; time < times; time++) {
		pthread_t threads[2];

		set = epoll_create1(0);
		for (long at = 0; at < 2; at++)
			pthread_create(&threads[at], NULL, add_one, (void *)at);
		for (int at = 0; at < 2; at++)
			pthread_join(threads[at], NULL);
		for (int at = 0; at < 2; at++) {
			need(write(peers[at], "x", 1) == 1, "write");
			lost += waited(set, 2000) != added[at];
			need(read(added[at], &byte, 1) == 1, "read");
		}
		if (time + 1 == times) {
			long before = used_ms();

			printf("nothing: %ld\n", waited(set, 1000));
			printf("the wait sleeps: %d\n", used_ms() - before < 500);
		}
		close(set);
	}
	printf("lost: %d\n", lost);
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int held, is_over, served;

static void *server(void *nothing)
{
	(void)nothing;
	for (;;) {
		int fd = accept(listener, NULL, NULL);
		char kind;

		if (fd < 0)
			return NULL;
		need(read(fd, &kind, 1) == 1, "read the kind");
		pthread_mutex_lock(&lock);
		served++;
		held = kind == 't';
		pthread_cond_broadcast(&changed);
		while (kind == 't' && held && !is_over)
			pthread_cond_wait(&changed, &lock);
		pthread_mutex_unlock(&lock);
		need(write(fd, "a", 1) == 1, "answer");
		close(fd);
	}
}

static void accepts(int times)
{
	pthread_t threads[2];

	for (int at = 0; at < 2; at++)
		pthread_create(&threads[at], NULL, server, NULL);
	for (int time = 0; time < times; time++) {
		/* The kernel's: without libc, this is TCP for the library, too. */
		int tcp = (int)syscall(SYS_socket, AF_INET, SOCK_STREAM, 0), fd;
		char answer;

		usleep(2000);
		need(syscall(SYS_connect, tcp, &here, sizeof(here)) == 0, "connect by TCP");
		need(syscall(SYS_write, tcp, "t", 1) == 1, "write by TCP");
		pthread_mutex_lock(&lock);
		while (!held)
			pthread_cond_wait(&changed, &lock);
		pthread_mutex_unlock(&lock);
		fd = socket(AF_INET, SOCK_STREAM, 0);
		need(connect(fd, (struct sockaddr *)&here, sizeof(here)) == 0, "connect");
		need(write(fd, "s", 1) == 1, "write");
		need(read(fd, &answer, 1) == 1, "read the answer");
		close(fd);
		pthread_mutex_lock(&lock);
		held = 0;
		pthread_cond_broadcast(&changed);
		pthread_mutex_unlock(&lock);
		need(syscall(SYS_read, tcp, &answer, 1) == 1, "read TCP's answer");
		syscall(SYS_close, tcp);
	}
	printf("all were served: %d\n", served == 2 * times);
}

#define THREADS 2

static pthread_barrier_t all;
static volatile int goes;

static void *serve_by_a_set(void *nothing)
{
	int own = epoll_create1(0);

	(void)nothing;
	pthread_barrier_wait(&all);
	while (!goes)
		;
	add(own, listener, EPOLL_CTL_ADD);
	pthread_barrier_wait(&all);
	for (;;) {
		struct epoll_event event;
		int fd = epoll_wait(own, &event, 1, -1) == 1 ? accept(listener, NULL, NULL) : -1;

		if (fd >= 0)
			need(write(fd, "a", 1) == 1, "answer");
	}
	return NULL;
}

static void be_child(int ready)
{
	pthread_t thread;

	pthread_barrier_init(&all, NULL, THREADS + 1);
	for (int at = 0; at < THREADS; at++)
		pthread_create(&thread, NULL, serve_by_a_set, NULL);
	pthread_barrier_wait(&all);
	usleep(2000);
	goes = 1;
	pthread_barrier_wait(&all);
	/* They get the listener when they wait. */
	usleep(50000);
	need(write(ready, "x", 1) == 1, "ready");
	for (;;)
		pause();
}

static void inherits(int times)
{
	int unserved = 0;

	/* A child's threads are the first that use it there. */
	need(fcntl(listener, F_SETFL, O_NONBLOCK) == 0, "fcntl");
	for (int time = 0; time < times && !unserved; time++) {
		struct pollfd answered = { .events = POLLIN };
		int ready[2];
		pid_t child;
		char byte;

		need(pipe(ready) == 0, "pipe");
		child = fork();
		if (child == 0)
			be_child(ready[1]);
		need(read(ready[0], &byte, 1) == 1, "the child");
		answered.fd = socket(AF_INET, SOCK_STREAM, 0);
		need(connect(answered.fd, (struct sockaddr *)&here, sizeof(here)) == 0, "connect");
		unserved = poll(&answered, 1, 10000) != 1 || read(answered.fd, &byte, 1) != 1;
		close(answered.fd);
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
		close(ready[0]);
		close(ready[1]);
	}
	printf("unserved: %d\n", unserved);
}

static volatile int has_room;

static void *drain(void *fd)
{
	static char bytes[1 << 16];

	while (read(*(int *)fd, bytes, sizeof(bytes)) > 0)
		;
	return NULL;
}

static void *hear_of_room(void *nothing)
{
	struct epoll_event event;

	(void)nothing;
	while (epoll_wait(set, &event, 1, -1) == 1)
		if (event.events & EPOLLOUT)
			has_room = 1;
	return NULL;
}

static void modifies(int times)
{
	static char bytes[1 << 16];
	struct epoll_event event = { .events = EPOLLIN | EPOLLET };
	int ends[2], lost = 0;
	time_t began = time(NULL);
	pthread_t thread;

	set = epoll_create1(0);
	pair(&here, listener, ends);
	need(fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0, "fcntl");
	need(epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &event) == 0, "epoll_ctl");
	pthread_create(&thread, NULL, drain, &ends[1]);
	pthread_create(&thread, NULL, hear_of_room, NULL);
	for (int done = 0; done < times && !lost && time(NULL) - began < 8; done++) {
		time_t until = time(NULL) + 5;

		while (write(ends[0], bytes, sizeof(bytes)) > 0)
			;
		need(errno == EAGAIN, "write");
		has_room = 0;
		event.events = EPOLLIN | EPOLLOUT | EPOLLET;
		need(epoll_ctl(set, EPOLL_CTL_MOD, ends[0], &event) == 0, "epoll_ctl");
		while (!has_room && !lost)
			lost = time(NULL) > until;
		event.events = EPOLLIN | EPOLLET;
		need(epoll_ctl(set, EPOLL_CTL_MOD, ends[0], &event) == 0, "epoll_ctl");
	}
	printf("lost: %d\n", lost);
}

static void *take_one(void *nothing)
{
	struct epoll_event event;

	(void)nothing;
	for (;;) {
		int fd = epoll_wait(set, &event, 1, -1) == 1 ? accept(listener, NULL, NULL) : -1;
		char byte;

		if (fd < 0)
			continue;
		/* Serves its client, and no other one, until that has ended. */
		need(write(fd, "a", 1) == 1, "answer");
		need(read(fd, &byte, 1) == 0, "the end");
		close(fd);
	}
	return NULL;
}

static void shares(int times)
{
	pthread_t thread;
	int unserved = 0;

	need(fcntl(listener, F_SETFL, O_NONBLOCK) == 0, "fcntl");
	set = epoll_create1(0);
	add(set, listener, EPOLL_CTL_ADD);
	for (int at = 0; at < 2; at++)
		pthread_create(&thread, NULL, take_one, NULL);
	for (int time = 0; time < times && !unserved; time++) {
		struct pollfd answered[2];
		char byte;

		/* At different moments of the threads' way into their waits. */
		usleep(time % 7 * 20);
		for (int at = 0; at < 2; at++) {
			answered[at] = (struct pollfd){ .fd = socket(AF_INET, SOCK_STREAM, 0), .events = POLLIN };
			need(connect(answered[at].fd, (struct sockaddr *)&here, sizeof(here)) == 0, "connect");
		}
		for (int at = 0; at < 2; at++)
			unserved += poll(&answered[at], 1, 5000) != 1 || read(answered[at].fd, &byte, 1) != 1;
		for (int at = 0; at < 2; at++)
			close(answered[at].fd);
	}
	printf("unserved: %d\n", unserved);
}

static void rings(void)
{
	char parameters[120] = { 0 }, bytes[2];
	int ends[2];

	TELL("io_uring_setup", syscall(SYS_io_uring_setup, 1, parameters));
	printf("getpid: %d\n", syscall(SYS_getpid) == getpid());
	need(pipe(ends) == 0, "pipe");
	TELL("write", syscall(SYS_write, ends[1], "x", 1L));
	/* Six arguments. */
	TELL("splice", syscall(SYS_splice, ends[0], NULL, ends[0], NULL, 1L, 0));
	TELL("read", syscall(SYS_read, ends[0], bytes, sizeof(bytes)));
}

int main(int argc, char **argv)
{
	int times = argc > 2 ? atoi(argv[2]) : 1;

	setvbuf(stdout, NULL, _IOLBF, 0);
	alarm(90);
	listener = listen_here(&here);
	if (argc > 1 && strcmp(argv[1], "copies") == 0)
		copies();
	else if (argc > 1 && strcmp(argv[1], "numbers") == 0)
		numbers();
	else if (argc > 1 && strcmp(argv[1], "rings") == 0)
		rings();
	else if (argc > 1 && strcmp(argv[1], "nested") == 0)
		nested();
	else if (argc > 1 && strcmp(argv[1], "inherits") == 0)
		inherits(times);
	else if (argc > 1 && strcmp(argv[1], "modifies") == 0)
		modifies(times);
	else if (argc > 1 && strcmp(argv[1], "shares") == 0)
		shares(times);
	else if (argc > 1 && strcmp(argv[1], "first") == 0)
		first(times);
	else
		accepts(times);
	printf("done\n");
	return 0;
}
