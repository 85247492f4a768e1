/*
 * An import at the hard limit on descriptors, which fails. Exits with 0, or prints the wrong line.
 */

#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define DESCRIPTORS 256

#define CHECK(is_so) ((is_so) ? (void)0 : failed(__LINE__, #is_so))

static void failed(int line, const char *what) {
	fprintf(stderr, "line %d: %s (errno %d: %s)\n", line, what, errno, strerror(errno));
	exit(1);
}

int main(void) {
	struct rlimit limit = {DESCRIPTORS, DESCRIPTORS};
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && list[0]);
	struct ibv_context *first = ibv_open_device(list[0]);
	ibv_free_device_list(list);
	CHECK(first && !setrlimit(RLIMIT_NOFILE, &limit));
	int copy = dup(first->cmd_fd), taken[DESCRIPTORS], count = 0;
	while ((taken[count] = dup(0)) >= 0)
		count++;
	CHECK(copy >= 0 && errno == EMFILE && !ibv_import_device(copy) && errno == EMFILE);
	/* It still belongs to the program. */
	CHECK(fcntl(copy, F_GETFD) >= 0);
	while (count)
		CHECK(!close(taken[--count]));
	struct ibv_context *imported = ibv_import_device(copy);
	CHECK(imported && imported->cmd_fd == copy && !ibv_close_device(imported));
	CHECK(fcntl(copy, F_GETFD) == -1 && errno == EBADF && !ibv_close_device(first));
	puts("all as it should be");
	return 0;
}
