/*
 * Threads and signals that interfere with calls on sockets. Prints what each call says, one per line. The output must be
 * the same on TCP and on rsockets.
 * threads waits: waiting calls that time, a signal or another thread ends. No host has the address 10.7.0.99.
 * threads forks N: N forks while other threads open and close connections.
 * threads sets N: N times, one thread adds a readable socket to a set in which another one waits.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "told.h"

/* Numbers that only the threads of `forks` use (the library's own begin at 512), and how many each of them has. */
#define SLOT 3000
#define COPIES 100

static struct sockaddr_in here;
static int listener;
static volatile int is_over;
static int replaced;

static void start(void)
{
	int on = 1;

	listener = socket(AF_INET, SOCK_STREAM, 0);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	need(bind(listener, (struct sockaddr *)&here, sizeof(here)) == 0, "bind");
	need(listen(listener, 16) == 0, "listen");
}

static void pair(int ends[2])
{
	ends[0] = socket(AF_INET, SOCK_STREAM, 0);
	need(connect(ends[0], (struct sockaddr *)&here, sizeof(here)) == 0, "connect");
	ends[1] = accept(listener, NULL, NULL);
	need(ends[1] >= 0, "accept");
}

static void nothing(int signal)
{
	(void)signal;
}

/* Again and again until `no_alarm`: on a busy machine, the first signal may come before the call that it is for. */
static void alarm_every(int ms, int flags)
{
	struct sigaction action = { .sa_handler = nothing, .sa_flags = flags };
	struct itimerval time = { { 0, ms * 1000 }, { 0, ms * 1000 } };

	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &time, NULL);
}

static void no_alarm(void)
{
	struct itimerval never = { 0 };

	setitimer(ITIMER_REAL, &never, NULL);
}

static void *shut(void *fd)
{
	usleep(200000);
	shutdown(*(int *)fd, SHUT_RDWR);
	return NULL;
}

static void waits(void)
{
	int ends[2], fd;
	struct sockaddr_in nowhere = here;
	char byte;
	pthread_t other;
	struct timeval long_time = { .tv_sec = 60 }, soon = { .tv_usec = 300000 };
	struct pollfd one;

	start();
	pair(ends);
	alarm_every(200, 0);
	TELL("read, a signal", read(ends[1], &byte, 1));
	no_alarm();
	setsockopt(ends[1], SOL_SOCKET, SO_RCVTIMEO, &long_time, sizeof(long_time));
	alarm_every(200, SA_RESTART);
	TELL("read with a timeout, a signal with SA_RESTART", read(ends[1], &byte, 1));
	no_alarm();
	setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &long_time, sizeof(long_time));
	alarm_every(200, SA_RESTART);
	TELL("accept with a timeout, a signal with SA_RESTART", accept(listener, NULL, NULL));
	no_alarm();
	setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof(soon));
	TELL("accept with a timeout", accept(listener, NULL, NULL));
	soon = (struct timeval){ 0 };
	setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof(soon));
	soon.tv_usec = 300000;

	pthread_create(&other, NULL, shut, &ends[1]);
	TELL("read, another thread shuts the socket down", recv(ends[1], &byte, 1, 0));
	pthread_join(other, NULL);
	close(ends[0]);
	close(ends[1]);
	pthread_create(&other, NULL, shut, &listener);
	TELL("accept, another thread shuts the listener down", accept(listener, NULL, NULL));
	pthread_join(other, NULL);
	one = (struct pollfd){ .fd = listener, .events = POLLIN };
	TELL("poll of that listener", poll(&one, 1, 5000));
	TELL("accept of that listener", accept(listener, NULL, NULL));
	fd = socket(AF_INET, SOCK_STREAM, 0);
	TELL("connect to that listener", connect(fd, (struct sockaddr *)&here, sizeof(here)));
	close(fd);
	TELL("listen again", listen(listener, 1));
	pair(ends);
	close(ends[0]);
	close(ends[1]);

	fd = socket(AF_INET, SOCK_STREAM, 0);
	inet_pton(AF_INET, "10.7.0.99", &nowhere.sin_addr);
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &soon, sizeof(soon));
	TELL("connect with a timeout", connect(fd, (struct sockaddr *)&nowhere, sizeof(nowhere)));
	close(fd);
}

/*
 * Gives a connection many numbers, and then gives each of these to a file, from the last to the first. A fork replaces the
 * connection's descriptors meanwhile. It must not replace the files.
 */
static void *come_and_go(void *number)
{
	int first = SLOT + COPIES * (int)(long)number, file = open("/dev/null", O_RDONLY | O_CLOEXEC);
	struct stat found = { 0 };

	while (!is_over) {
		int fd = socket(AF_INET, SOCK_STREAM, 0);

		need(connect(fd, (struct sockaddr *)&here, sizeof(here)) == 0, "connect");
		for (int i = 0; i < COPIES; i++)
			dup2(fd, first + i);
		close(fd);
		for (int i = COPIES - 1; i >= 0; i--) {
			if (i % 2)
				close(first + i);
			dup2(file, first + i);
		}
		sched_yield();
		for (int i = 0; i < COPIES; i++)
			if (fstat(first + i, &found) < 0 || !S_ISCHR(found.st_mode))
				__atomic_add_fetch(&replaced, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

static void *take(void *unused)
{
	(void)unused;
	while (!is_over) {
		struct pollfd one = { .fd = listener, .events = POLLIN };
		int fd = poll(&one, 1, 20) == 1 ? accept(listener, NULL, NULL) : -1;

		if (fd >= 0)
			close(fd);
	}
	return NULL;
}

static void forks(int count)
{
	pthread_t threads[4];
	int ends[2];
	char byte = 0;
	struct rlimit limit;

	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = limit.rlim_max;
	need(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
	start();
	pair(ends);
	fcntl(listener, F_SETFL, O_NONBLOCK);
	for (long i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, i == 0 ? take : come_and_go, (void *)i);
	for (int i = 0; i < count; i++) {
		pid_t child = fork();

		need(child >= 0, "fork");
		if (child == 0)
			_exit(0);
		waitpid(child, NULL, 0);
	}
	is_over = 1;
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	printf("files that a fork replaced: %d\n", replaced);
	TELL("send", send(ends[0], "x", 1, 0));
	TELL("receive", recv(ends[1], &byte, 1, 0));
}

static int set;
static volatile int told_of;

/* Tells of each event, and removes its socket. */
static void *report(void *fd)
{
	struct epoll_event event;

	while (epoll_wait(set, &event, 1, -1) == 1) {
		told_of++;
		epoll_ctl(set, EPOLL_CTL_DEL, *(int *)fd, NULL);
	}
	need(0, "epoll_wait");
	return NULL;
}

static void sets(int count)
{
	int ends[2], missed = 0;
	char byte;
	pthread_t thread;

	start();
	pair(ends);
	need(send(ends[0], "x", 1, 0) == 1, "send");
	need(recv(ends[1], &byte, 1, MSG_PEEK) == 1, "recv");
	set = epoll_create1(0);
	pthread_create(&thread, NULL, report, &ends[1]);
	/* It waits before the set has its first socket. */
	usleep(100000);
	for (int i = 0; i < count && !missed; i++) {
		struct epoll_event event = { .events = EPOLLIN };
		time_t until = time(NULL) + 5;

		/* At each moment of the other thread's way into its wait. */
		do
			for (volatile int pause = 0; pause < i % 300; pause++)
				;
		while (epoll_ctl(set, EPOLL_CTL_ADD, ends[1], &event) != 0 && errno == EEXIST);
		while (told_of == i && !missed)
			missed = time(NULL) > until;
	}
	printf("the waiting thread missed: %d\n", missed);
}

int main(int count, char **arguments)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	signal(SIGPIPE, SIG_IGN);
	here.sin_family = AF_INET;
	here.sin_port = htons(7100);
	here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (count == 3 && strcmp(arguments[1], "forks") == 0)
		forks(atoi(arguments[2]));
	else if (count == 3 && strcmp(arguments[1], "sets") == 0)
		sets(atoi(arguments[2]));
	else
		waits();
	printf("done\n");
	return 0;
}
