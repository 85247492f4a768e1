/*
 * The first call of a program that is not linked with libibverbs and has no descriptor left. Ends with 0 if the call
 * raises the soft limit, or fails with EMFILE at the hard limit and works later; otherwise says what is not so.
 *
 * Usage: limits soft|hard
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>

#define DESCRIPTORS 256

#define CHECK(condition)                                                        \
	do {                                                                    \
		if (!(condition)) {                                             \
			printf("line %d: %s is not so, errno %s\n", __LINE__,   \
			       #condition, strerrorname_np(errno));             \
			exit(1);                                                \
		}                                                               \
	} while (0)

int main(int argc, char **argv)
{
	int is_hard = argc > 1 && !strcmp(argv[1], "hard"), taken[DESCRIPTORS], count = 0, socket;
	struct rdma_addrinfo *found;
	struct rlimit limit;

	CHECK(!getrlimit(RLIMIT_NOFILE, &limit) && limit.rlim_max > DESCRIPTORS);
	limit.rlim_cur = DESCRIPTORS;
	if (is_hard)
		limit.rlim_max = DESCRIPTORS;
	CHECK(!setrlimit(RLIMIT_NOFILE, &limit));
	while ((taken[count] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0)
		count++;
	CHECK(errno == EMFILE);
	if (is_hard) {
		CHECK(rsocket(AF_INET, SOCK_STREAM, 0) == -1 && errno == EMFILE);
		CHECK(rsocket(AF_INET, SOCK_DGRAM, 0) == -1 && errno == EMFILE);
		CHECK(repoll_create(0) == -1 && errno == EMFILE);
		CHECK(!rdma_create_event_channel() && errno == EMFILE);
		CHECK(rdma_getaddrinfo("127.0.0.1", "7471", NULL, &found) == EAI_SYSTEM && errno == EMFILE);
		while (count > 0)
			close(taken[--count]);
	}
	socket = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(socket >= 0);
	CHECK(!rclose(socket));
	CHECK(!rdma_getaddrinfo("127.0.0.1", "7471", NULL, &found));
	rdma_freeaddrinfo(found);
	printf("all calls did what they should\n");
	return 0;
}
