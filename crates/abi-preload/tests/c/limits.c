/*
 * Programs that rely on their limit of open files. The output must be the same on TCP and on rsockets.
 * limits select: a server accepts 700 clients of its own and waits for them by select(2), with room for 1024 files.
 * limits poll: an array of poll(2) has as many places as the process may have files.
 * limits full: calls wait for a stream although the process can have no more files.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/wait.h>
#include <time.h>
#include "told.h"
#include "server.h"

#define CLIENTS 700

static void limit_files(rlim_t files)
{
	struct rlimit limit;

	need(getrlimit(RLIMIT_NOFILE, &limit) == 0, "getrlimit");
	need(limit.rlim_max > 2 * FD_SETSIZE, "a higher hard limit");
	limit.rlim_cur = files;
	need(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
}

/* Connects all clients. Ends when the server has ended. */
static void call(int ready)
{
	struct sockaddr_in here = loopback();
	char byte;

	need(read(ready, &byte, 1) == 1, "the server");
	limit_files(4096);
	for (int at = 0; at < CLIENTS; at++) {
		int client = socket(AF_INET, SOCK_STREAM, 0);

		need(connect(client, (struct sockaddr *)&here, sizeof(here)) == 0, "connect");
		need(write(client, "x", 1) == 1, "write");
	}
	need(read(ready, &byte, 1) == 0, "the end of the server");
	exit(0);
}

static void selects(void)
{
	struct sockaddr_in here;
	struct rlimit limit;
	int ready[2], listener, highest = 0, accepted = 0, received = 0;
	static char is_client[4096];
	fd_set all;

	need(pipe(ready) == 0, "pipe");
	if (fork() == 0) {
		close(ready[1]);
		call(ready[0]);
	}
	limit_files(FD_SETSIZE);
	listener = listen_here(&here);
	fcntl(listener, F_SETFL, O_NONBLOCK);
	need(write(ready[1], "x", 1) == 1, "write");
	FD_ZERO(&all);
	FD_SET(listener, &all);
	highest = listener;
	while (received < CLIENTS) {
		struct timeval limit = { .tv_sec = 20 };
		fd_set reads = all;
		int client;

		need(select(highest + 1, &reads, NULL, NULL, &limit) > 0, "select");
		while (FD_ISSET(listener, &reads) && (client = accept(listener, NULL, NULL)) >= 0) {
			need(client < FD_SETSIZE, "a number for select");
			accepted++;
			is_client[client] = 1;
			FD_SET(client, &all);
			highest = client > highest ? client : highest;
		}
		for (int at = 0; at <= highest; at++) {
			char byte;

			if (!is_client[at] || !FD_ISSET(at, &reads))
				continue;
			need(read(at, &byte, 1) == 1, "read");
			received++;
		}
	}
	getrlimit(RLIMIT_NOFILE, &limit);
	printf("accepted: %d, received: %d, limit: %ld\n", accepted, received, (long)limit.rlim_cur);
	close(ready[1]);
	wait(NULL);
}

static void polls(void)
{
	static struct pollfd places[FD_SETSIZE + 1];
	struct sockaddr_in here;
	int listener, ends[2];

	limit_files(FD_SETSIZE);
	listener = listen_here(&here);
	pair(&here, listener, ends);
	for (int at = 0; at <= FD_SETSIZE; at++)
		places[at].fd = -1;
	places[0] = (struct pollfd){ .fd = listener, .events = POLLIN };
	places[FD_SETSIZE - 1] = (struct pollfd){ .fd = ends[1], .events = POLLIN };
	TELL("nothing yet", poll(places, FD_SETSIZE, 50));
	need(write(ends[0], "x", 1) == 1, "write");
	TELL("data", poll(places, FD_SETSIZE, 20000));
	printf("at the stream: %d\n", places[FD_SETSIZE - 1].revents == POLLIN);
	TELL("too many", poll(places, FD_SETSIZE + 1, 0));
	finish(ends);
}

/* Writes a byte at each end after a time. */
static void *write_late(void *ends)
{
	for (int turn = 0; turn < 2; turn++) {
		sleep(2);
		need(write(((int *)ends)[0], "x", 1) == 1, "write");
	}
	return NULL;
}

static long used_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void full(void)
{
	struct rlimit limit = { .rlim_cur = 700, .rlim_max = 700 };
	struct sockaddr_in here;
	int listener, ends[2];
	long before;
	pthread_t writer;
	char byte;

	need(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
	listener = listen_here(&here);
	pair(&here, listener, ends);
	pthread_create(&writer, NULL, write_late, ends);
	while (open("/dev/null", O_RDONLY) >= 0)
		;
	before = used_ms();
	TELL("poll", poll(&(struct pollfd){ .fd = ends[1], .events = POLLIN }, 1, 20000));
	TELL("read", read(ends[1], &byte, 1));
	printf("busy: %d\n", used_ms() - before > 400);
	before = used_ms();
	TELL("read", read(ends[1], &byte, 1));
	printf("busy: %d\n", used_ms() - before > 400);
	pthread_join(writer, NULL);
	finish(ends);
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	alarm(90);
	if (argc > 1 && strcmp(argv[1], "select") == 0)
		selects();
	else if (argc > 1 && strcmp(argv[1], "full") == 0)
		full();
	else
		polls();
	printf("done\n");
	return 0;
}
