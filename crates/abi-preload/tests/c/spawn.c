/*
 * A server whose parent listens for it and starts it by posix_spawn(3) or, with the argument `vfork`, by vfork(2), as Python's
 * subprocess and reloaders of web servers do. The parent is also the client. The output must be the same on TCP and on rsockets.
 */
#define _GNU_SOURCE
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "told.h"
#include "server.h"

extern char **environ;

static int serve(int listener)
{
	char byte;
	int fd = accept(listener, NULL, NULL);

	need(fd >= 0, "accept of the child");
	need(read(fd, &byte, 1) == 1, "read of the child");
	need(write(fd, "answer", 6) == 6, "write of the child");
	close(fd);
	return 0;
}

int main(int argc, char **argv)
{
	struct sockaddr_in here = { 0 };
	char number[16], answer[6];
	char *arguments[] = { argv[0], number, NULL };
	struct epoll_event event = { .events = EPOLLIN };
	int listener, fd, set = epoll_create1(EPOLL_CLOEXEC);
	pid_t child;

	alarm(30);
	if (argc > 1 && strcmp(argv[1], "vfork") != 0)
		return serve(atoi(argv[1]));
	setvbuf(stdout, NULL, _IOLBF, 0);
	listener = listen_here(&here);
	need(epoll_ctl(set, EPOLL_CTL_ADD, listener, &event) == 0, "epoll_ctl");
	snprintf(number, sizeof(number), "%d", listener);
	if (argc > 1) {
		child = vfork();
		if (child == 0) {
			execve("/proc/self/exe", arguments, environ);
			_exit(1);
		}
	} else
		need(posix_spawn(&child, "/proc/self/exe", NULL, NULL, arguments, environ) == 0, "posix_spawn");
	fd = socket(AF_INET, SOCK_STREAM, 0);
	TELL("connect", connect(fd, (struct sockaddr *)&here, sizeof(here)));
	TELL("write", write(fd, "x", 1));
	TELL("the child's answer", recv(fd, answer, 6, MSG_WAITALL));
	waitpid(child, NULL, 0);
	/* From now on the parent accepts itself. */
	close(fd);
	TELL("nothing yet", epoll_wait(set, &event, 1, 0));
	fd = socket(AF_INET, SOCK_STREAM, 0);
	TELL("connect again", connect(fd, (struct sockaddr *)&here, sizeof(here)));
	TELL("the parent's set", epoll_wait(set, &event, 1, 10000));
	printf("accept of the parent: %d\n", accept(listener, NULL, NULL) >= 0);
	printf("done\n");
	return 0;
}
