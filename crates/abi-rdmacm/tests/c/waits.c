/*
 * Calls that wait, as read(2) does: a signal interrupts them or not, depending on its handler, and the thread can
 * be cancelled in them (not in ibv_gid_reachable). Also tests pointers that some programs pass after a call has failed. Exits with 0, or
 * prints the wrong line.
 *
 * Usage: waits LOCAL_IPV4 SILENT_IPV4
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#define CHECK(is_so) ((is_so) ? (void)0 : failed(__LINE__, #is_so))
/* A thread that has not returned after this time is still waiting. */
#define STILL_US 300000

static void failed(int line, const char *what)
{
	fprintf(stderr, "line %d: %s (errno %d: %s)\n", line, what, errno, strerror(errno));
	exit(1);
}

static struct rdma_event_channel *channel;
static struct rdma_cm_id *listener, *caller;
static struct ibv_context *context;
static struct ibv_comp_channel *completions;
static struct sockaddr_in here, silent;
static atomic_int gave, number;

static int take_cm_event(void)
{
	struct rdma_cm_event *event;

	return rdma_get_cm_event(channel, &event);
}

static int take_request(void)
{
	struct rdma_cm_id *id;

	return rdma_get_request(listener, &id);
}

static int take_completion_event(void)
{
	struct ibv_cq *cq;
	void *cq_context;

	return ibv_get_cq_event(completions, &cq, &cq_context);
}

static int take_async_event(void)
{
	struct ibv_async_event event;

	return ibv_get_async_event(context, &event);
}

static int resolve(void)
{
	return rdma_resolve_addr(caller, NULL, (struct sockaddr *)&silent, 60000);
}

static int reach(void)
{
	union ibv_gid gid = { .raw = { [10] = 0xff, [11] = 0xff } };

	memcpy(&gid.raw[12], &silent.sin_addr, 4);
	return ibv_gid_reachable(context, 1, &gid, 0);
}

static void *run(void *call)
{
	number = 0;
	gave = ((int (*)(void))call)();
	number = errno;
	return NULL;
}

static void handler(int signal)
{
	(void)signal;
}

static void handle(int signal, int flags)
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = flags };

	CHECK(!sigaction(signal, &action, NULL));
}

/* Whether a thread is still waiting. */
static int is_still_there(pthread_t thread)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_nsec += STILL_US * 1000L;
	until.tv_sec += until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	return pthread_timedjoin_np(thread, NULL, &until) == ETIMEDOUT;
}

/* Handlers of both kinds are installed; the one that runs decides. */
static void interrupted(int (*call)(void))
{
	pthread_t thread;

	CHECK(!pthread_create(&thread, NULL, run, (void *)call));
	CHECK(is_still_there(thread));
	for (int at = 0; at < 3; at++) {
		CHECK(!pthread_kill(thread, SIGUSR1));
		CHECK(is_still_there(thread));
	}
	CHECK(!pthread_kill(thread, SIGUSR2));
	CHECK(!pthread_join(thread, NULL));
	CHECK(gave == -1 && number == EINTR);
}

static void cancelled(int (*call)(void))
{
	pthread_t thread;
	void *end;

	CHECK(!pthread_create(&thread, NULL, run, (void *)call));
	CHECK(is_still_there(thread));
	CHECK(!pthread_cancel(thread));
	CHECK(!pthread_join(thread, &end));
	CHECK(end == PTHREAD_CANCELED);
}

#define TAKERS 8
#define EVENTS 60
static atomic_int taken;

static void *take_all(void *unused)
{
	struct rdma_cm_event *event;

	while (!rdma_get_cm_event(channel, &event)) {
		rdma_ack_cm_event(event);
		atomic_fetch_add(&taken, 1);
	}
	return unused;
}

/* Of threads that wait for the same channel one has the event. The others wait on where they can be cancelled. */
static void cancelled_together(void)
{
	pthread_t takers[TAKERS];
	struct timespec until;
	struct rdma_cm_id *id;
	void *end;

	for (int at = 0; at < TAKERS; at++)
		CHECK(!pthread_create(&takers[at], NULL, take_all, NULL));
	for (int at = 0; at < EVENTS; at++) {
		CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
		CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&here, 60000));
		while (atomic_load(&taken) == at)
			usleep(100);
		CHECK(!rdma_destroy_id(id));
	}
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 30;
	for (int at = 0; at < TAKERS; at++)
		CHECK(!pthread_cancel(takers[at]));
	for (int at = 0; at < TAKERS; at++)
		CHECK(!pthread_timedjoin_np(takers[at], &end, &until) && end == PTHREAD_CANCELED);
}

/* A connection that was refused has no end to wait for. */
static void disconnected_after_a_refusal(void)
{
	struct sockaddr_in nobody = here;
	struct rdma_conn_param param = { 0 };
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
	struct rdma_cm_id *id;

	nobody.sin_port = htons(7319);
	CHECK(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&nobody, 60000));
	CHECK(!rdma_resolve_route(id, 60000) && !rdma_create_qp(id, NULL, &init));
	CHECK(rdma_connect(id, &param) == -1 && errno == ECONNREFUSED);
	for (int at = 0; at < 2; at++)
		CHECK(!rdma_disconnect(id));
	rdma_destroy_qp(id);
	CHECK(!rdma_destroy_id(id));
}

/* Nothing will arrive on a channel that is destroyed during the call, so only a signal ends it. */
static void interrupted_on_a_destroyed_channel(void)
{
	pthread_t thread;

	CHECK(!pthread_create(&thread, NULL, run, (void *)take_cm_event));
	CHECK(is_still_there(thread));
	rdma_destroy_event_channel(channel);
	CHECK(is_still_there(thread));
	CHECK(!pthread_kill(thread, SIGUSR1));
	CHECK(is_still_there(thread));
	CHECK(!pthread_kill(thread, SIGUSR2));
	CHECK(!pthread_join(thread, NULL));
	CHECK(gave == -1 && number == EINTR);
}

/* A call that waits for its own event ends if another thread destroys its id. */
static void destroyed_under_a_call(void)
{
	pthread_t thread;

	CHECK(!rdma_create_id(NULL, &caller, NULL, RDMA_PS_TCP));
	CHECK(!pthread_create(&thread, NULL, run, (void *)resolve));
	CHECK(is_still_there(thread));
	CHECK(!rdma_destroy_id(caller));
	CHECK(!pthread_join(thread, NULL));
	CHECK(gave == -1 && number == EINVAL);
}

static void no_ids(void)
{
	struct rdma_event_channel *gone = rdma_create_event_channel();
	struct rdma_cm_id *id, *left;

	CHECK(gone && !rdma_create_id(gone, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_create_id(gone, &left, NULL, RDMA_PS_TCP));
	CHECK(!rdma_destroy_id(id));
	/* A destroyed id, and values that freed memory may contain. */
	struct rdma_cm_id *wrong[] = { id, (void *)(uintptr_t)0x55d3a1b, (void *)(uintptr_t)0x1000 };
	for (int at = 0; at < 3; at++) {
		CHECK(rdma_bind_addr(wrong[at], (struct sockaddr *)&here) == -1 && errno == EINVAL);
		CHECK(rdma_resolve_route(wrong[at], 2000) == -1 && errno == EINVAL);
		CHECK(rdma_disconnect(wrong[at]) == -1 && errno == EINVAL);
		CHECK(rdma_destroy_id(wrong[at]) == -1 && errno == EINVAL);
		CHECK(!rdma_get_src_port(wrong[at]));
	}
	rdma_destroy_event_channel(gone);
	rdma_destroy_event_channel(gone);
	CHECK(rdma_bind_addr(left, (struct sockaddr *)&here) == -1 && errno == EBADF);
	CHECK(rdma_destroy_id(left) == -1 && errno == EBADF);
}

int main(int count, char **arguments)
{
	CHECK(count == 3);
	here.sin_family = silent.sin_family = AF_INET;
	CHECK(inet_pton(AF_INET, arguments[1], &here.sin_addr) == 1);
	CHECK(inet_pton(AF_INET, arguments[2], &silent.sin_addr) == 1);
	handle(SIGUSR1, SA_RESTART);
	handle(SIGUSR2, 0);
	channel = rdma_create_event_channel();
	CHECK(channel);
	/* Without a channel, calls wait for their events. */
	CHECK(!rdma_create_id(NULL, &listener, NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(listener, (struct sockaddr *)&here) && !rdma_listen(listener, 1));
	context = listener->verbs;
	CHECK(context);
	completions = ibv_create_comp_channel(context);
	CHECK(completions);

	int (*calls[])(void) = { take_cm_event, take_request, take_completion_event, take_async_event };
	for (int at = 0; at < 4; at++) {
		interrupted(calls[at]);
		cancelled(calls[at]);
		/* The cancelled call must not affect the next one. */
		interrupted(calls[at]);
	}
	CHECK(!rdma_create_id(NULL, &caller, NULL, RDMA_PS_TCP));
	cancelled(resolve);
	interrupted(reach);
	CHECK(!rdma_destroy_id(caller) && !rdma_destroy_id(listener));
	CHECK(!ibv_destroy_comp_channel(completions));
	cancelled_together();
	disconnected_after_a_refusal();
	destroyed_under_a_call();
	no_ids();
	interrupted_on_a_destroyed_channel();
	puts("all as it should be");
	return 0;
}
