/*
 * rsockets: a client is killed between its request and raccept. The listener skips the request, and accepts the next
 * client. Exits with 0, or prints the wrong line.
 *
 * Usage: gone LOCAL_IPV4
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <rdma/rsocket.h>

#define CHECK(is_so) ((is_so) ? (void)0 : failed(__LINE__, #is_so))
#define LIMIT_MS 30000
/* Clients that are killed: how far each one has come differs. */
#define KILLED 6

static void failed(int line, const char *what)
{
	fprintf(stderr, "line %d: %s (errno %d: %s)\n", line, what, errno, strerror(errno));
	exit(1);
}

static struct sockaddr_in here = { .sin_family = AF_INET };

/* Connects when it is told to, sends a byte and waits. */
static pid_t client(int told)
{
	char byte;
	pid_t child = fork();

	CHECK(child >= 0);
	if (child)
		return child;
	/* If the test fails, nobody is left to hold its output open. */
	CHECK(!prctl(PR_SET_PDEATHSIG, SIGKILL));
	CHECK(read(told, &byte, 1) == 1);
	int socket = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(socket >= 0 && !rconnect(socket, (struct sockaddr *)&here, sizeof(here)));
	CHECK(rsend(socket, "x", 1, 0) == 1);
	pause();
	exit(1);
}

static void await_request(int listener)
{
	struct pollfd polled = { .fd = listener, .events = POLLIN };

	CHECK(rpoll(&polled, 1, LIMIT_MS) == 1);
}

int main(int count, char **arguments)
{
	int told[KILLED + 1][2];
	pid_t clients[KILLED + 1];

	CHECK(count == 2 && inet_pton(AF_INET, arguments[1], &here.sin_addr) == 1);
	here.sin_port = htons(7471);
	/* They start before the library: each is a process of its own. */
	for (int at = 0; at <= KILLED; at++) {
		CHECK(!pipe(told[at]));
		clients[at] = client(told[at][0]);
	}
	int listener = rsocket(AF_INET, SOCK_STREAM, 0), socket;
	CHECK(listener >= 0 && !rbind(listener, (struct sockaddr *)&here, sizeof(here)) && !rlisten(listener, 8));
	CHECK(!rfcntl(listener, F_SETFL, O_NONBLOCK));
	for (int at = 0; at < KILLED; at++) {
		CHECK(write(told[at][1], "x", 1) == 1);
		await_request(listener);
		CHECK(!kill(clients[at], SIGKILL) && waitpid(clients[at], NULL, 0) == clients[at]);
		usleep(at * 100000);
		/* A request whose end is not known yet is accepted. */
		socket = raccept(listener, NULL, NULL);
		CHECK(socket >= 0 ? !rclose(socket) : errno == EAGAIN);
	}
	CHECK(write(told[KILLED][1], "x", 1) == 1);
	do {
		await_request(listener);
		socket = raccept(listener, NULL, NULL);
	} while (socket < 0 && errno == EAGAIN);
	CHECK(socket >= 0);
	char byte = 0;
	struct pollfd polled = { .fd = socket, .events = POLLIN };
	CHECK(rpoll(&polled, 1, LIMIT_MS) == 1 && rrecv(socket, &byte, 1, 0) == 1 && byte == 'x');
	CHECK(!kill(clients[KILLED], SIGKILL) && waitpid(clients[KILLED], NULL, 0) == clients[KILLED]);
	puts("all as it should be");
	return 0;
}
