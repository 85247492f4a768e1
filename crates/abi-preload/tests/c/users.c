/*
 * A server whose child becomes another user before it accepts, as nginx's workers do. Portolan's processes of the server's
 * user do not trust the child, so it has only TCP. A client, which is not told, connects some times.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <grp.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "told.h"

#define PORT 7100
#define TIMES 5
#define NOBODY 65534

static struct sockaddr_in here = { .sin_family = AF_INET };

static long now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void serve(int listener)
{
	char byte;
	int i, stream;

	need(setgroups(0, NULL) == 0 && setgid(NOBODY) == 0 && setuid(NOBODY) == 0, "setuid");
	for (i = 0; i < TIMES; i++) {
		stream = accept(listener, NULL, NULL);
		need(stream >= 0, "accept");
		need(read(stream, &byte, 1) == 1, "read");
		need(write(stream, &byte, 1) == 1, "write");
		close(stream);
	}
}

static void call(void)
{
	long begun;
	char byte = 'x';
	int i, fd, quick = 0;

	for (i = 0; i < TIMES; i++) {
		fd = socket(AF_INET, SOCK_STREAM, 0);
		begun = now_ms();
		need(connect(fd, (struct sockaddr *)&here, sizeof(here)) == 0, "connect");
		quick += now_ms() - begun < 300;
		need(write(fd, &byte, 1) == 1, "write");
		need(read(fd, &byte, 1) == 1, "read");
		close(fd);
	}
	printf("%s\n", quick > TIMES / 2 ? "most are quick" : "most are slow");
}

int main(void)
{
	int client[2], fd, status;
	char go;
	pid_t caller, child;

	here.sin_port = htons(PORT);
	here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	need(pipe(client) == 0, "pipe");
	caller = fork();
	if (caller == 0) {
		need(read(client[0], &go, 1) == 1, "wait");
		call();
		return 0;
	}
	fd = socket(AF_INET, SOCK_STREAM, 0);
	need(bind(fd, (struct sockaddr *)&here, sizeof(here)) == 0, "bind");
	need(listen(fd, 8) == 0, "listen");
	child = fork();
	if (child == 0) {
		serve(fd);
		return 0;
	}
	need(write(client[1], "!", 1) == 1, "go");
	need(waitpid(caller, &status, 0) == caller && status == 0, "the client");
	need(waitpid(child, &status, 0) == child && status == 0, "the child");
	puts("done");
	return 0;
}
