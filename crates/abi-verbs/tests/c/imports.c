/*
 * Contexts, domains and regions imported through a copy of an open device's descriptor: in this process all of
 * them, in another process none. Exits with 0, or prints the wrong line.
 */

#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(is_so) ((is_so) ? (void)0 : failed(__LINE__, #is_so))

static void failed(int line, const char *what) {
	fprintf(stderr, "line %d: %s (errno %d: %s)\n", line, what, errno, strerror(errno));
	exit(1);
}

static char memory[4096];

static struct ibv_context *open_first(void) {
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && list[0]);
	struct ibv_context *context = ibv_open_device(list[0]);
	ibv_free_device_list(list);
	CHECK(context);
	return context;
}

/* Runs this program again with its parent's descriptor. */
static void in_another_process(int cmd_fd, char *self) {
	char number[16];
	int status, copy = dup(cmd_fd);
	snprintf(number, sizeof(number), "%d", copy);
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child) {
		execl(self, self, number, NULL);
		_exit(2);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
	CHECK(!close(copy));
}

int main(int count, char **arguments) {
	if (count > 1) {
		int inherited = atoi(arguments[1]);
		CHECK(!ibv_import_device(inherited) && errno == EOPNOTSUPP);
		/* It still belongs to the program. */
		CHECK(!close(inherited));
		return 0;
	}
	int null = open("/dev/null", O_RDONLY);
	struct ibv_context *first = open_first(), *other = open_first();
	CHECK(first->cmd_fd >= 0 && fcntl(first->cmd_fd, F_GETFD) == FD_CLOEXEC);
	CHECK(!ibv_import_device(-1) && errno == EBADF);
	CHECK(!ibv_import_device(9999) && errno == EBADF);
	CHECK(!ibv_import_device(null) && errno == EINVAL);
	in_another_process(first->cmd_fd, arguments[0]);

	struct ibv_pd *pd = ibv_alloc_pd(first);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
	int copy = dup(first->cmd_fd);
	struct ibv_context *imported = ibv_import_device(copy);
	CHECK(pd && mr && imported && imported->cmd_fd == copy && imported->device == first->device);
	CHECK(!ibv_import_pd(other, pd->handle) && errno == ENOENT);
	CHECK(!ibv_import_pd(imported, pd->handle + 1000) && errno == ENOENT);
	struct ibv_pd *again = ibv_import_pd(imported, pd->handle), *third = ibv_import_pd(imported, pd->handle);
	CHECK(again && third && again != pd && again->handle == pd->handle && again->context == imported);
	CHECK(!ibv_import_mr(again, pd->handle) && errno == ENOENT);
	struct ibv_mr *same = ibv_import_mr(again, mr->handle);
	CHECK(same && !same->addr && same->length == sizeof(memory) && same->pd == again);
	CHECK(same->lkey == mr->lkey && same->rkey == mr->rkey && same->handle == mr->handle);
	CHECK(!ibv_import_dm(imported, 0) && errno == EOPNOTSUPP);

	/* An object that one context makes in the domain prevents the other from destroying it. */
	struct ibv_mr *more = ibv_reg_mr(again, memory, 64, 0);
	CHECK(more && ibv_dealloc_pd(pd) == EBUSY && ibv_dealloc_pd(again) == EBUSY);
	CHECK(!ibv_dereg_mr(more));
	ibv_unimport_pd(third);
	/* The first context and its structures go; imported objects stay. */
	ibv_unimport_mr(mr);
	ibv_unimport_pd(pd);
	CHECK(!ibv_close_device(first));
	CHECK(ibv_dealloc_pd(again) == EBUSY);
	struct ibv_mr *twin = ibv_import_mr(again, same->handle);
	CHECK(twin && !ibv_dereg_mr(same));
	/* It is gone for every context. */
	CHECK(ibv_dereg_mr(twin) == ENOENT);
	ibv_unimport_mr(twin);
	CHECK(!ibv_dealloc_pd(again) && !ibv_close_device(imported));
	CHECK(fcntl(copy, F_GETFD) == -1 && errno == EBADF);
	CHECK(!ibv_close_device(other));
	puts("all as it should be");
	return 0;
}
