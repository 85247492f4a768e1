/*
 * A server that has a stream and a listener calls an exec that fails, starts another program by vfork, and then closes both. Its
 * client says whether it learns of that.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "told.h"

#define PORT 7100

static struct sockaddr_in here = { .sin_family = AF_INET };

static void start_another(void)
{
	char *arguments[] = { "true", NULL };
	int status;
	pid_t child;

	need(execv("/nowhere", arguments) == -1, "exec");
	child = vfork();
	if (child == 0) {
		execvp("true", arguments);
		_exit(1);
	}
	need(waitpid(child, &status, 0) == child && status == 0, "true");
}

static void await_turn(int turn)
{
	char go;

	need(read(turn, &go, 1) == 1, "wait");
}

static void client(int turn, int done)
{
	struct pollfd wait = { .events = POLLIN };
	char byte;

	await_turn(turn);
	wait.fd = socket(AF_INET, SOCK_STREAM, 0);
	need(connect(wait.fd, (struct sockaddr *)&here, sizeof(here)) == 0, "connect");
	TELL("read", read(wait.fd, &byte, 1));
	need(poll(&wait, 1, 10000) >= 0, "poll");
	TELL("end", recv(wait.fd, &byte, 1, MSG_DONTWAIT));
	close(wait.fd);
	need(write(done, "!", 1) == 1, "done");
	await_turn(turn);
	wait.fd = socket(AF_INET, SOCK_STREAM, 0);
	TELL("connect after the close", connect(wait.fd, (struct sockaddr *)&here, sizeof(here)));
	fflush(stdout);
}

int main(void)
{
	int turns[2], done[2], listener, stream, status;

	here.sin_port = htons(PORT);
	here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	need(pipe(turns) == 0 && pipe(done) == 0, "pipe");
	if (fork() == 0) {
		client(turns[0], done[1]);
		return 0;
	}
	listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	need(bind(listener, (struct sockaddr *)&here, sizeof(here)) == 0, "bind");
	need(listen(listener, 8) == 0, "listen");
	need(write(turns[1], "!", 1) == 1, "go");
	stream = accept(listener, NULL, NULL);
	need(stream >= 0, "accept");
	start_another();
	need(write(stream, "x", 1) == 1, "write");
	close(stream);
	await_turn(done[0]);
	close(listener);
	need(write(turns[1], "!", 1) == 1, "go");
	need(wait(&status) > 0 && status == 0, "client");
	puts("done");
	return 0;
}
