/*
 * A process that waits takes no processor time, and hears what it waits for. Prints what each case finds, one per line. The
 * output must be the same on TCP and on rsockets.
 * idle relayed: a child has a stream whose client has ended its direction, or closed; the parent passes the data on.
 * idle listener: an epoll instance has reported connections that the program does not accept.
 * idle polled: an instance that was polled is still ready for another one that contains it.
 * idle end: an epoll instance waits for the end of a stream that has unread data.
 * idle polled-end: poll waits for the end of a stream that has unread data, or for nothing but a hang-up.
 * idle file: sendfile from a pipe, which Linux refuses.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "told.h"
#include "server.h"

#define BUSY_MS_MAX 300
#define WATCHED_MS 1000
#define PIECE 60000

static struct sockaddr_in here;
static int listener;

/* Processor time of this process in milliseconds. */
static long used_ms(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000 +
	       (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1000;
}

static void tell_busy(long before_ms)
{
	printf("busy: %d\n", used_ms() - before_ms > BUSY_MS_MAX);
}

static void relayed(int closes)
{
	int ends[2], over[2], status;
	long before_ms;
	pid_t child;
	char byte;

	need(pipe(over) == 0, "pipe");
	pair(&here, listener, ends);
	child = fork();
	if (child == 0) {
		close(ends[0]);
		/* Uses it, so that its parent passes the data on. */
		if (read(ends[1], &byte, 1) != 1 || read(ends[1], &byte, 1) != 0 || write(over[1], "x", 1) != 1)
			_exit(1);
		sleep(2);
		_exit(closes || write(ends[1], "late", 4) == 4 ? 0 : 2);
	}
	close(ends[1]);
	need(write(ends[0], "x", 1) == 1, "write");
	if (closes)
		close(ends[0]);
	else
		need(shutdown(ends[0], SHUT_WR) == 0, "shutdown");
	need(read(over[0], &byte, 1) == 1, "the end");
	before_ms = used_ms();
	usleep(WATCHED_MS * 1000);
	tell_busy(before_ms);
	if (!closes) {
		char late[4];

		TELL("late", recv(ends[0], late, sizeof(late), MSG_WAITALL));
		close(ends[0]);
	}
	need(waitpid(child, &status, 0) == child, "waitpid");
	printf("the child: %d\n", WEXITSTATUS(status));
}

/* Connections come, one is accepted, and the interest in the listener reports nothing more. */
static void reports_once(const char *what, unsigned events, int modifies)
{
	struct epoll_event event = { .events = events, .data.fd = listener }, found;
	int set = epoll_create1(0), clients[2], accepted[2];
	long before_ms;

	need(epoll_ctl(set, EPOLL_CTL_ADD, listener, &event) == 0, "epoll_ctl");
	for (int i = 0; i < 2; i++) {
		clients[i] = socket(AF_INET, SOCK_STREAM, 0);
		need(connect(clients[i], (struct sockaddr *)&here, sizeof(here)) == 0, "connect");
	}
	/* A connection may arrive after its connect has returned. */
	usleep(300000);
	printf("%s: %d\n", what, epoll_wait(set, &found, 1, 5000));
	accepted[0] = accept(listener, NULL, NULL);
	need(accepted[0] >= 0, "accept");
	event.events = 0;
	if (modifies)
		need(epoll_ctl(set, EPOLL_CTL_MOD, listener, &event) == 0, "epoll_ctl");
	before_ms = used_ms();
	printf("then: %d\n", epoll_wait(set, &found, 1, WATCHED_MS));
	tell_busy(before_ms);
	event.events = EPOLLIN;
	need(epoll_ctl(set, EPOLL_CTL_MOD, listener, &event) == 0, "epoll_ctl");
	printf("asked anew: %d\n", epoll_wait(set, &found, 1, 5000));
	printf("and again: %d\n", epoll_wait(set, &found, 1, 5000));
	accepted[1] = accept(listener, NULL, NULL);
	need(accepted[1] >= 0, "accept");
	printf("all accepted: %d\n", epoll_wait(set, &found, 1, 100));
	for (int i = 0; i < 2; i++) {
		close(clients[i]);
		close(accepted[i]);
	}
	close(set);
}

static void polled(void)
{
	struct epoll_event event = { .events = EPOLLIN }, found;
	int inner = epoll_create1(0), outer = epoll_create1(0), client = socket(AF_INET, SOCK_STREAM, 0), accepted;
	struct pollfd in_poll = { .fd = inner, .events = POLLIN };

	need(epoll_ctl(inner, EPOLL_CTL_ADD, listener, &event) == 0, "epoll_ctl");
	need(epoll_ctl(outer, EPOLL_CTL_ADD, inner, &event) == 0, "epoll_ctl");
	printf("nothing: %d\n", epoll_wait(inner, &found, 1, 100));
	need(connect(client, (struct sockaddr *)&here, sizeof(here)) == 0, "connect");
	printf("polled: %d\n", poll(&in_poll, 1, 5000));
	printf("the outer one: %d\n", epoll_wait(outer, &found, 1, 5000));
	printf("the inner one: %d\n", epoll_wait(inner, &found, 1, 5000));
	accepted = accept(listener, NULL, NULL);
	need(accepted >= 0, "accept");
	printf("then the inner one: %d\n", epoll_wait(inner, &found, 1, 100));
	printf("polled: %d\n", poll(&in_poll, 1, 100));
	close(client);
	close(accepted);
}

static void end(void)
{
	struct epoll_event event = { .events = EPOLLRDHUP }, found = { 0 };
	int set = epoll_create1(0), ends[2];
	long before_ms;

	pair(&here, listener, ends);
	need(epoll_ctl(set, EPOLL_CTL_ADD, ends[1], &event) == 0, "epoll_ctl");
	need(write(ends[0], "x", 1) == 1, "write");
	before_ms = used_ms();
	printf("with data: %d\n", epoll_wait(set, &found, 1, WATCHED_MS));
	tell_busy(before_ms);
	need(shutdown(ends[0], SHUT_WR) == 0, "shutdown");
	printf("at the end: %d\n", epoll_wait(set, &found, 1, 5000));
	printf("events: %x\n", found.events);
	finish(ends);
}

/* Another thread ends the peer's direction after a while. */
static void *end_later(void *peer)
{
	usleep(WATCHED_MS * 1000);
	shutdown(*(int *)peer, SHUT_WR);
	return NULL;
}

/* Waits for `events`, at first in vain. The peer ends its direction during the second wait. */
static void polled_end(const char *what, short events, int ends[2])
{
	struct pollfd asked = { .fd = ends[1], .events = events };
	pthread_t thread;
	long before_ms = used_ms();

	printf("%s: %d\n", what, poll(&asked, 1, WATCHED_MS));
	tell_busy(before_ms);
	need(pthread_create(&thread, NULL, end_later, &ends[0]) == 0, "pthread_create");
	before_ms = used_ms();
	printf("at the end: %d\n", poll(&asked, 1, 2 * WATCHED_MS));
	tell_busy(before_ms);
	printf("events: %x\n", asked.revents);
	pthread_join(thread, NULL);
}

static void polled_ends(void)
{
	int ends[2];

	pair(&here, listener, ends);
	need(write(ends[0], "x", 1) == 1, "write");
	polled_end("the end of a stream with data", POLLRDHUP, ends);
	finish(ends);
	pair(&here, listener, ends);
	need(write(ends[0], "x", 1) == 1, "write");
	polled_end("nothing of a stream with data", 0, ends);
	finish(ends);
	pair(&here, listener, ends);
	need(shutdown(ends[1], SHUT_WR) == 0, "shutdown");
	polled_end("nothing after the own end", 0, ends);
	finish(ends);
}

static void file(void)
{
	static char big[PIECE];
	int ends[2], files[2];

	pair(&here, listener, ends);
	need(pipe(files) == 0, "pipe");
	need(write(files[1], big, PIECE) == PIECE, "write");
	TELL("sendfile from a pipe", sendfile(ends[0], files[0], NULL, PIECE));
	TELL("what is left", read(files[0], big, PIECE));
	TELL("sendfile from nothing", sendfile(ends[0], -1, NULL, PIECE));
	finish(ends);
}

int main(int count, char **arguments)
{
	const char *mode = count > 1 ? arguments[1] : "";

	setvbuf(stdout, NULL, _IOLBF, 0);
	listener = listen_here(&here);
	if (strcmp(mode, "relayed") == 0) {
		relayed(0);
		relayed(1);
	} else if (strcmp(mode, "listener") == 0) {
		reports_once("an edge", EPOLLIN | EPOLLET, 0);
		reports_once("one shot", EPOLLIN | EPOLLONESHOT, 0);
		reports_once("no event", EPOLLIN, 1);
	} else if (strcmp(mode, "polled") == 0) {
		polled();
	} else if (strcmp(mode, "end") == 0) {
		end();
	} else if (strcmp(mode, "polled-end") == 0) {
		polled_ends();
	} else {
		file();
	}
	printf("done\n");
	return 0;
}
