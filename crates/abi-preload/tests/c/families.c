/*
 * A server that listens at one port for IPv4 and, with another socket, for IPv6 only. A child connects to both. As nginx, it
 * clears its environment first.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "told.h"

#define PORT 7100

static struct sockaddr_in four = { .sin_family = AF_INET };
static struct sockaddr_in6 six = { .sin6_family = AF_INET6 };

static int listener(int family, void *address, socklen_t length)
{
	int fd = socket(family, SOCK_STREAM, 0), on = 1;

	if (family == AF_INET6)
		need(setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on)) == 0, "IPV6_V6ONLY");
	need(bind(fd, address, length) == 0, "bind");
	need(listen(fd, 8) == 0, "listen");
	return fd;
}

static void serve(int fd, const char *family)
{
	struct pollfd wait = { .fd = fd, .events = POLLIN };
	char byte;
	int stream;

	need(poll(&wait, 1, 10000) == 1, "poll");
	stream = accept(fd, NULL, NULL);
	need(stream >= 0, "accept");
	need(read(stream, &byte, 1) == 1, "read");
	printf("%s: %c\n", family, byte);
	need(write(stream, &byte, 1) == 1, "write");
	need(read(stream, &byte, 1) == 0, "read the end");
	close(stream);
}

static void call(int family, void *address, socklen_t length, char byte)
{
	int fd = socket(family, SOCK_STREAM, 0);

	need(connect(fd, address, length) == 0, "connect");
	need(write(fd, &byte, 1) == 1, "write");
	need(read(fd, &byte, 1) == 1, "read");
	close(fd);
}

int main(void)
{
	int pipes[2], first, second, status;
	char go;

	need(clearenv() == 0, "clearenv");
	need(pipe(pipes) == 0, "pipe");
	four.sin_port = six.sin6_port = htons(PORT);
	if (fork() == 0) {
		need(read(pipes[0], &go, 1) == 1, "wait");
		four.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		six.sin6_addr = in6addr_loopback;
		call(AF_INET, &four, sizeof(four), '4');
		call(AF_INET6, &six, sizeof(six), '6');
		return 0;
	}
	first = listener(AF_INET, &four, sizeof(four));
	second = listener(AF_INET6, &six, sizeof(six));
	need(write(pipes[1], "!", 1) == 1, "go");
	serve(first, "IPv4");
	serve(second, "IPv6");
	need(wait(&status) > 0 && status == 0, "child");
	puts("done");
	return 0;
}
