/*
 * Ends the process while a thread pings without a pause and the library's own thread works for it.
 *
 *   leave HOW ADDRESS PORT      HOW: return, exit, thread, main (whose thread ends before the process), at_once
 */
#include "pinger.h"
#include <pthread.h>
#include <unistd.h>

#define PINGS 20

static struct pinger pinger;
static const char *how;

static void *ping_on(void *unused)
{
	while (pinger_ping(&pinger) == 0)
		if (pinger.pings == PINGS && !strcmp(how, "thread"))
			exit(0);
	/* The pings must not fail before the process has ended. */
	_exit(1);
	return unused;
}

/* Runs at the end of the process, while the other thread pings. */
static void linger(void)
{
	usleep(10000);
}

static void *end_soon(void *unused)
{
	usleep(20000);
	exit(0);
	return unused;
}

int main(int argc, char **argv)
{
	pthread_t thread;

	if (argc != 4)
		return 2;
	how = argv[1];
	if (atexit(linger) || pinger_connect(&pinger, argv[2], argv[3]))
		return 1;
	if (pthread_create(&thread, NULL, ping_on, NULL))
		return 1;
	while (*(volatile unsigned long *)&pinger.pings < PINGS)
		usleep(100);
	if (!strcmp(how, "exit"))
		exit(0);
	if (!strcmp(how, "at_once"))
		_exit(0);
	if (!strcmp(how, "main")) {
		if (pthread_create(&thread, NULL, end_soon, NULL))
			return 1;
		pthread_exit(NULL);
	}
	if (!strcmp(how, "thread"))
		pthread_join(thread, NULL);
	return 0;
}
