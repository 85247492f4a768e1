/*
 * Closes listeners while clients connect to them. Prints how many connects that began after the close succeeded. The output must
 * be the same on TCP and on rsockets.
 */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <pthread.h>
#include <unistd.h>
#include "told.h"
#include "server.h"

#define ROUNDS 40
/* Fewer than the backlog, so that none waits for room. */
#define CLIENTS 12

static struct sockaddr_in here;

static long connects(void)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	long answer = connect(fd, (struct sockaddr *)&here, sizeof(here));

	close(fd);
	return answer;
}

static void *clients(void *unused)
{
	for (int client = 0; client < CLIENTS; client++)
		if (connects() < 0)
			break;
	return unused;
}

int main(void)
{
	int late = 0;

	for (int round = 0; round < ROUNDS; round++) {
		int listener = listen_here(&here);
		pthread_t thread;

		need(pthread_create(&thread, NULL, clients, NULL) == 0, "pthread_create");
		usleep(round * 300);
		need(close(listener) == 0, "close");
		late += connects() == 0;
		need(pthread_join(thread, NULL) == 0, "pthread_join");
	}
	printf("connects after the close: %d\n", late);
	printf("done\n");
	return 0;
}
