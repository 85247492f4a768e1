/*
 * A program that has reached its soft limit on descriptors before each call. The library raises the limit. Exits with 0,
 * or prints the wrong line.
 */

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define CHECK(is_so) ((is_so) ? (void)0 : failed(__LINE__, #is_so))

static void failed(int line, const char *what) {
	fprintf(stderr, "line %d: %s (errno %d: %s)\n", line, what, errno, strerror(errno));
	exit(1);
}

/* Lowers the soft limit to the descriptors that are open. */
static void leave_none(void) {
	struct rlimit limit;
	CHECK(!getrlimit(RLIMIT_NOFILE, &limit));
	limit.rlim_cur = limit.rlim_max;
	CHECK(!setrlimit(RLIMIT_NOFILE, &limit));
	int lowest_free = dup(0);
	CHECK(lowest_free >= 0 && !close(lowest_free));
	limit.rlim_cur = lowest_free;
	CHECK(!setrlimit(RLIMIT_NOFILE, &limit));
	CHECK(dup(0) < 0 && errno == EMFILE);
}

int main(void) {
	struct ibv_context *contexts[2];
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count), *loopback = NULL;
	CHECK(list && count > 0);
	for (int at = 0; at < count; at++)
		if (!strcmp(ibv_get_device_name(list[at]), "sw_lo"))
			loopback = list[at];
	CHECK(loopback);
	for (int at = 0; at < 2; at++) {
		leave_none();
		contexts[at] = ibv_open_device(loopback);
		CHECK(contexts[at]);
		leave_none();
		struct ibv_comp_channel *channel = ibv_create_comp_channel(contexts[at]);
		CHECK(channel);
		leave_none();
		struct ibv_cq *cq = ibv_create_cq(contexts[at], 4, NULL, channel, 0);
		CHECK(cq && !ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(channel));
	}
	ibv_free_device_list(list);
	CHECK(!ibv_close_device(contexts[0]) && !ibv_close_device(contexts[1]));
	puts("all as it should be");
	return 0;
}
