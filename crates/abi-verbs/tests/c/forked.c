/*
 * Forks children while another thread is inside the library. Each call of a child must return, with success or an
 * error, each child can open devices of its own, and the parent must continue. Exits with 0, or prints the wrong line.
 */

#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(is_so) ((is_so) ? (void)0 : failed(__LINE__, #is_so))
#define CHILDREN 100
/* Time limit of a child; the calls themselves take almost no time. */
#define CHILD_S 20

static void failed(int line, const char *what) {
	fprintf(stderr, "line %d: %s (errno %d: %s)\n", line, what, errno, strerror(errno));
	_exit(1);
}

static struct ibv_device *listed;
static struct ibv_context *context;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static atomic_int ends;

/* Is inside the library nearly all the time. */
static void *busy(void *none) {
	struct ibv_cq *seen;
	void *seen_context;
	while (!ends) {
		CHECK(ibv_get_cq_event(channel, &seen, &seen_context) == -1 && errno == EAGAIN);
		ibv_ack_cq_events(cq, 0);
		struct ibv_cq *other = ibv_create_cq(context, 1, NULL, channel, 0);
		CHECK(other && !ibv_destroy_cq(other));
	}
	return none;
}

/* A device that was listed, by this process or its parent. */
static void open_own(struct ibv_device *device) {
	struct ibv_context *own = ibv_open_device(device);
	CHECK(own);
	struct ibv_comp_channel *own_channel = ibv_create_comp_channel(own);
	CHECK(own_channel);
	struct ibv_cq *own_cq = ibv_create_cq(own, 1, NULL, own_channel, 0);
	CHECK(own_cq && !ibv_req_notify_cq(own_cq, 0) && !ibv_destroy_cq(own_cq));
	CHECK(ibv_destroy_cq(own_cq) && !ibv_destroy_comp_channel(own_channel) && !ibv_close_device(own));
}

static void child(void) {
	struct ibv_cq *seen;
	void *seen_context;
	struct ibv_async_event event;
	alarm(CHILD_S);
	CHECK(ibv_get_cq_event(channel, &seen, &seen_context) == -1 && errno == EOPNOTSUPP);
	CHECK(ibv_get_async_event(context, &event) == -1 && errno == EOPNOTSUPP);
	CHECK(!ibv_create_cq(context, 1, NULL, channel, 0) && errno == EOPNOTSUPP);
	ibv_ack_cq_events(cq, 1);
	CHECK(ibv_req_notify_cq(cq, 0) == EOPNOTSUPP && ibv_resize_cq(cq, 2) == EOPNOTSUPP);
	CHECK(ibv_destroy_cq(cq) == EOPNOTSUPP && ibv_destroy_comp_channel(channel) == EOPNOTSUPP);
	CHECK(ibv_close_device(context) == EOPNOTSUPP);
	open_own(listed);
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && list[0] == listed);
	open_own(list[0]);
	ibv_free_device_list(list);
	CHECK(ibv_destroy_cq(cq) == EOPNOTSUPP && !ibv_create_cq(context, 1, NULL, channel, 0) && errno == EOPNOTSUPP);
	_exit(0);
}

int main(void) {
	struct ibv_device **list = ibv_get_device_list(NULL);
	pthread_t thread;
	CHECK(list && list[0]);
	listed = list[0];
	context = ibv_open_device(listed);
	ibv_free_device_list(list);
	CHECK(context);
	channel = ibv_create_comp_channel(context);
	CHECK(channel && !fcntl(channel->fd, F_SETFL, O_NONBLOCK));
	cq = ibv_create_cq(context, 1, NULL, channel, 0);
	CHECK(cq && !pthread_create(&thread, NULL, busy, NULL));
	for (int at = 0; at < CHILDREN; at++) {
		int status;
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (!pid)
			child();
		CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	}
	ends = 1;
	CHECK(!pthread_join(thread, NULL));
	CHECK(!ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(channel) && !ibv_close_device(context));
	puts("all as it should be");
	return 0;
}
