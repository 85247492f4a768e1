/*
 * Ends sockets by system calls through libc's syscall(2), as libuv does, and uses their numbers again. Prints what the calls
 * return. The output must be the same on TCP and on rsockets.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "told.h"
#include "server.h"

static struct sockaddr_in here;
static char bytes[64];

/* What a peer reads whose other end should be gone. */
static long end_of(int fd)
{
	struct pollfd one = { .fd = fd, .events = POLLIN };

	if (poll(&one, 1, 3000) != 1) {
		errno = ETIMEDOUT;
		return -1;
	}
	return read(fd, bytes, sizeof(bytes));
}

/* A file at a number that was a stream's, where the library may have something of its own for a moment. */
static void zeros_at(int number)
{
	int zeros = open("/dev/zero", O_RDWR), file = zeros;

	for (int tries = 0; file != number && tries < 100; tries++) {
		file = fcntl(zeros, F_DUPFD, number);
		if (file != number) {
			close(file);
			usleep(10000);
		}
	}
	if (zeros != file)
		close(zeros);
	printf("the file has the number: %d\n", file == number);
	TELL("read from the file", read(file, bytes, sizeof(bytes)));
	TELL("write to the file", write(file, bytes, sizeof(bytes)));
	close(file);
}

int main(void)
{
	int ends[2], file, listener = listen_here(&here);
	struct sockaddr_in its;
	socklen_t length = sizeof(its);

	pair(&here, listener, ends);
	TELL("close", syscall(SYS_close, ends[1]));
	TELL("the peer", end_of(ends[0]));
	zeros_at(ends[1]);
	close(ends[0]);

	pair(&here, listener, ends);
	TELL("close_range", syscall(SYS_close_range, ends[1], ends[1], 0));
	TELL("the peer", end_of(ends[0]));
	zeros_at(ends[1]);
	close(ends[0]);

	pair(&here, listener, ends);
	file = open("/dev/zero", O_RDWR);
	TELL("dup3", syscall(SYS_dup3, file, ends[1], 0) == ends[1]);
	TELL("the peer", end_of(ends[0]));
	TELL("read from the file", read(ends[1], bytes, sizeof(bytes)));
	close(file);
	close(ends[0]);
	close(ends[1]);

	pair(&here, listener, ends);
	TELL("dup", (file = syscall(SYS_dup, ends[1])) >= 0);
	TELL("close", close(ends[1]));
	TELL("write to the duplicate", write(file, "some", 4));
	TELL("the peer", end_of(ends[0]));
	TELL("close the duplicate", syscall(SYS_close, file));
	TELL("the peer", end_of(ends[0]));
	close(ends[0]);

	ends[0] = socket(AF_INET, SOCK_STREAM, 0);
	need(connect(ends[0], (struct sockaddr *)&here, sizeof(here)) == 0, "connect");
	ends[1] = syscall(SYS_accept4, listener, &its, &length, SOCK_CLOEXEC);
	TELL("accept4", ends[1] >= 0);
	printf("the address has %u bytes\n", length);
	TELL("write", write(ends[1], "some", 4));
	TELL("the peer", end_of(ends[0]));
	close(ends[0]);
	close(ends[1]);

	TELL("close the listener", syscall(SYS_close, listener));
	ends[0] = socket(AF_INET, SOCK_STREAM, 0);
	TELL("connect", connect(ends[0], (struct sockaddr *)&here, sizeof(here)));
	close(ends[0]);
	listener = listen_here(&here);
	pair(&here, listener, ends);
	TELL("write", write(ends[1], "some", 4));
	TELL("the peer", end_of(ends[0]));
	printf("done\n");
	return 0;
}
