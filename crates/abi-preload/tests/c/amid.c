/*
 * Prints the result of calls on sockets that go on while another thread starts a program, which inherits the sockets, or ends the
 * process. The output must be the same on TCP and on rsockets.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>
#include "told.h"
#include "server.h"

#define NUMBERS (256 << 10)

static struct sockaddr_in here;

static void start_a_program(void)
{
	char *const arguments[] = { "true", NULL };
	pid_t child = fork();

	if (child == 0) {
		execv("/bin/true", arguments);
		_exit(1);
	}
	waitpid(child, NULL, 0);
}

/* Sends numbers by one write. */
static void *send_numbers(void *fd)
{
	static uint32_t numbers[NUMBERS];

	for (uint32_t at = 0; at < NUMBERS; at++)
		numbers[at] = at;
	return (void *)(long)write((int)(long)fd, numbers, sizeof(numbers));
}

/* Receives them, in large pieces. Returns how many were in order. */
static void *receive_numbers(void *fd)
{
	static uint32_t numbers[NUMBERS];
	const size_t piece = sizeof(numbers) / 4;
	long inorder = 0;

	for (int at = 0; at < 4; at++) {
		char *to = (char *)numbers + at * piece;

		if (recv((int)(long)fd, to, piece, MSG_WAITALL) != (ssize_t)piece)
			return (void *)-1;
	}
	while (inorder < NUMBERS && numbers[inorder] == inorder)
		inorder++;
	return (void *)inorder;
}

/* Data that are on their way when the program starts. */
static void in_order(int listener)
{
	int whole = 0, ordered = 0, ends[2];

	for (int turn = 0; turn < 40; turn++) {
		pthread_t sender, receiver;
		void *sent, *received;

		pair(&here, listener, ends);
		pthread_create(&sender, NULL, send_numbers, (void *)(long)ends[0]);
		pthread_create(&receiver, NULL, receive_numbers, (void *)(long)ends[1]);
		usleep(turn * 20);
		start_a_program();
		pthread_join(sender, &sent);
		pthread_join(receiver, &received);
		whole += (long)sent == NUMBERS * (long)sizeof(uint32_t);
		ordered += (long)received == NUMBERS;
		finish(ends);
	}
	printf("written whole: %d\nreceived in order: %d\n", whole, ordered);
}

static void *receive_one(void *fd)
{
	char one;

	return (void *)recv((int)(long)fd, &one, 1, 0);
}

static void *poll_one(void *fd)
{
	struct pollfd one = { .fd = (int)(long)fd, .events = POLLIN };

	return (void *)(long)poll(&one, 1, -1);
}

/* Threads that sleep when the program starts: data wake them afterwards. */
static void asleep(int listener)
{
	void *(*const waits[])(void *) = { receive_one, poll_one };
	int woken = 0, ends[2];

	for (int turn = 0; turn < 20; turn++) {
		pthread_t sleeper;
		void *result;

		pair(&here, listener, ends);
		pthread_create(&sleeper, NULL, waits[turn % 2], (void *)(long)ends[1]);
		/* The library polls for a moment before it sleeps. */
		usleep(20000);
		start_a_program();
		usleep(turn * 500);
		need(write(ends[0], "x", 1) == 1, "write");
		pthread_join(sleeper, &result);
		woken += (long)result == 1;
		finish(ends);
	}
	printf("woken: %d\n", woken);
}

static void *write_on(void *fd)
{
	static char data[1000];

	while (write((int)(long)fd, data, sizeof(data)) > 0)
		;
	return NULL;
}

static void *read_on(void *fd)
{
	char any;

	if (read((int)(long)fd, &any, 1) == 0)
		_exit(9);
	return NULL;
}

/* A process returns from main while its threads use a socket. */
static int exit_amid(void)
{
	pthread_t thread;
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	need(connect(fd, (struct sockaddr *)&here, sizeof(here)) == 0, "connect");
	pthread_create(&thread, NULL, read_on, (void *)(long)fd);
	pthread_create(&thread, NULL, write_on, (void *)(long)fd);
	usleep(50000);
	return 7;
}

static void exits(int listener, const char *program)
{
	static char data[1 << 16];
	int seven = 0, status;

	for (int turn = 0; turn < 10; turn++) {
		pid_t child = fork();
		int fd;

		if (child == 0) {
			char *const arguments[] = { (char *)program, "exit", NULL };

			execv(program, arguments);
			_exit(1);
		}
		fd = accept(listener, NULL, NULL);
		while (read(fd, data, sizeof(data)) > 0)
			;
		waitpid(child, &status, 0);
		seven += WIFEXITED(status) && WEXITSTATUS(status) == 7;
		close(fd);
	}
	printf("exited with their own status: %d\n", seven);
}

int main(int count, char **arguments)
{
	int listener;

	setvbuf(stdout, NULL, _IOLBF, 0);
	alarm(100);
	if (count > 1) {
		here.sin_family = AF_INET;
		here.sin_port = htons(7100);
		here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		return exit_amid();
	}
	listener = listen_here(&here);
	in_order(listener);
	asleep(listener);
	exits(listener, arguments[0]);
	printf("done\n");
	return 0;
}
