/*
 * Ids that move to a channel at which threads wait (rdma_migrate_id). Exits with 0, or prints the wrong line.
 *
 * Usage: moves LOCAL_IPV4
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <rdma/rdma_cma.h>

#define CHECK(is_so) ((is_so) ? (void)0 : failed(__LINE__, #is_so))
#define ROUNDS 150
#define ROUNDS_AT_LEAST 10
#define SECONDS_MAX 20
#define RESOLVE_MS 10000
#define REQUESTS 3
#define EVENT_WITHIN_MS 10000

static void failed(int line, const char *what)
{
	fprintf(stderr, "line %d: %s (errno %d: %s)\n", line, what, errno, strerror(errno));
	exit(1);
}

static struct sockaddr_in here;
/* Where the threads wait. */
static struct rdma_event_channel *watched;
static unsigned int resolved;

static void *take(void *unused)
{
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	for (;;) {
		CHECK(!rdma_get_cm_event(watched, &event));
		CHECK(!event->status && event->id->channel == watched);
		id = event->id;
		switch (event->event) {
		case RDMA_CM_EVENT_CONNECT_REQUEST:
			CHECK(!rdma_ack_cm_event(event) && !rdma_reject(id, "no", 2));
			CHECK(!rdma_destroy_id(id));
			break;
		case RDMA_CM_EVENT_ADDR_RESOLVED:
			CHECK(!rdma_ack_cm_event(event));
			__atomic_add_fetch(&resolved, 1, __ATOMIC_SEQ_CST);
			break;
		default:
			CHECK(!"an unexpected event");
		}
	}
	return unused;
}

/* The type of the channel's next event. */
static enum rdma_cm_event_type await(struct rdma_event_channel *channel)
{
	struct pollfd readable = { .fd = channel->fd, .events = POLLIN };
	enum rdma_cm_event_type type;
	struct rdma_cm_event *event;

	CHECK(poll(&readable, 1, EVENT_WITHIN_MS) == 1);
	CHECK(!rdma_get_cm_event(channel, &event));
	type = event->event;
	CHECK(!rdma_ack_cm_event(event));
	return type;
}

static struct rdma_cm_id *call(struct rdma_event_channel *channel, uint16_t port, uint32_t qp_num)
{
	struct rdma_conn_param param = { .qp_num = qp_num, .retry_count = 7 };
	struct sockaddr_in to = here;
	struct rdma_cm_id *id;

	to.sin_port = port;
	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, RESOLVE_MS));
	CHECK(await(channel) == RDMA_CM_EVENT_ADDR_RESOLVED && !rdma_resolve_route(id, RESOLVE_MS));
	CHECK(await(channel) == RDMA_CM_EVENT_ROUTE_RESOLVED && !rdma_connect(id, &param));
	return id;
}

/* Requests wait at a listener, which moves. Each is taken, and answered. A listener without `former` is synchronous. */
static void move_a_listener(struct rdma_event_channel *former)
{
	struct rdma_event_channel *callers = rdma_create_event_channel();
	struct rdma_cm_id *listener, *callings[REQUESTS];
	struct pollfd waits = { .events = POLLIN };

	CHECK(!rdma_create_id(former, &listener, NULL, RDMA_PS_TCP));
	waits.fd = listener->channel->fd;
	CHECK(!rdma_bind_addr(listener, (struct sockaddr *)&here) && !rdma_listen(listener, 16));
	for (int at = 0; at < REQUESTS; at++)
		callings[at] = call(callers, rdma_get_src_port(listener), 77 + at);
	CHECK(poll(&waits, 1, EVENT_WITHIN_MS) == 1);
	CHECK(!rdma_migrate_id(listener, watched));
	for (int at = 0; at < REQUESTS; at++)
		CHECK(await(callers) == RDMA_CM_EVENT_REJECTED);
	for (int at = 0; at < REQUESTS; at++)
		CHECK(!rdma_destroy_id(callings[at]));
	CHECK(!rdma_destroy_id(listener));
	if (former)
		rdma_destroy_event_channel(former);
	rdma_destroy_event_channel(callers);
}

/* An id moves after its address was resolved. */
static void move_a_resolved_id(void)
{
	struct rdma_event_channel *former = rdma_create_event_channel();
	struct pollfd waits = { .fd = former->fd, .events = POLLIN };
	unsigned int before = __atomic_load_n(&resolved, __ATOMIC_SEQ_CST);
	struct sockaddr_in to = here;
	struct rdma_cm_id *id;

	to.sin_port = htons(7000);
	CHECK(!rdma_create_id(former, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, RESOLVE_MS));
	CHECK(poll(&waits, 1, EVENT_WITHIN_MS) == 1);
	CHECK(!rdma_migrate_id(id, watched));
	for (int ms = 0; __atomic_load_n(&resolved, __ATOMIC_SEQ_CST) == before; ms++) {
		CHECK(ms < EVENT_WITHIN_MS);
		usleep(1000);
	}
	CHECK(!rdma_destroy_id(id));
	rdma_destroy_event_channel(former);
}

/* A synchronous id moves to the channel that it has: it becomes asynchronous, and the channel stays. */
static void stay_on_the_own_channel(void)
{
	struct rdma_event_channel *own;
	struct sockaddr_in to = here;
	struct rdma_cm_id *id;

	to.sin_port = htons(7000);
	CHECK(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	own = id->channel;
	CHECK(own && !rdma_migrate_id(id, own) && id->channel == own);
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, RESOLVE_MS));
	CHECK(await(own) == RDMA_CM_EVENT_ADDR_RESOLVED);
	/* It becomes synchronous again, with another channel. */
	CHECK(!rdma_migrate_id(id, NULL) && id->channel != own && !rdma_resolve_route(id, RESOLVE_MS));
	CHECK(!rdma_destroy_id(id));
	rdma_destroy_event_channel(own);
}

int main(int count, char **arguments)
{
	pthread_t thread;
	time_t start;

	CHECK(count == 2);
	here.sin_family = AF_INET;
	CHECK(inet_pton(AF_INET, arguments[1], &here.sin_addr) == 1);
	watched = rdma_create_event_channel();
	CHECK(watched && !pthread_create(&thread, NULL, take, NULL));
	CHECK(!pthread_create(&thread, NULL, take, NULL));
	stay_on_the_own_channel();
	start = time(NULL);
	for (int round = 0; round < ROUNDS; round++) {
		if (round >= ROUNDS_AT_LEAST && time(NULL) - start > SECONDS_MAX)
			break;
		move_a_listener(rdma_create_event_channel());
		move_a_listener(NULL);
		for (int at = 0; at < 10; at++)
			move_a_resolved_id();
	}
	/* The threads still wait. */
	_exit(0);
}
