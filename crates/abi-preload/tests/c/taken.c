/*
 * Sixteen processes wait in accept(2) for clients of one listener, and clients with TCP come in bursts. Another process may take the
 * connection that woke one, which then waits for the next one, where an rsocket wakes it, too: not in the kernel's accept.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include "told.h"
#include "server.h"

#define WORKERS 16
#define BURSTS 150
#define BURST_MAX 3

/* The number of the system call in which a process sleeps. */
static long call_of(pid_t process)
{
	char path[64];
	long call = -1;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/syscall", process);
	file = fopen(path, "r");
	need(file != NULL, "fopen");
	if (fscanf(file, "%ld", &call) != 1)
		call = -1;
	fclose(file);
	return call;
}

int main(void)
{
	struct sockaddr_in here;
	int listener = listen_here(&here), asleep = 0;
	pid_t workers[WORKERS];

	setvbuf(stdout, NULL, _IOLBF, 0);
	alarm(90);
	for (int at = 0; at < WORKERS; at++) {
		workers[at] = fork();
		while (workers[at] == 0) {
			int client = accept(listener, NULL, NULL);

			need(client >= 0, "accept");
			need(write(client, "x", 1) == 1, "write");
			close(client);
		}
	}
	close(listener);
	sleep(1);
	for (int burst = 0; burst < BURSTS; burst++) {
		int clients[BURST_MAX], count = burst % BURST_MAX + 1;
		char byte;

		for (int at = 0; at < count; at++) {
			clients[at] = (int)syscall(SYS_socket, AF_INET, SOCK_STREAM, 0);
			need(syscall(SYS_connect, clients[at], &here, sizeof(here)) == 0, "connect");
		}
		for (int at = 0; at < count; at++) {
			need(read(clients[at], &byte, 1) == 1, "read");
			close(clients[at]);
		}
		usleep(20000);
		for (int at = 0; at < WORKERS; at++) {
			long call = call_of(workers[at]);

			asleep += call == SYS_accept4 || call == SYS_accept;
		}
	}
	for (int at = 0; at < WORKERS; at++) {
		kill(workers[at], SIGKILL);
		waitpid(workers[at], NULL, 0);
	}
	printf("asleep in the kernel's accept: %d\n", asleep > 0);
	return 0;
}
