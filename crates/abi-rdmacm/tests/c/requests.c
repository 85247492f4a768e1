/*
 * Requests that follow each other on one channel. Exits with 0, or prints the wrong line.
 *
 * Usage: requests LOCAL_IPV4 at-once|held
 *   at-once  the second request is delivered although nobody has asked for an event since the first
 *   held     a request is delivered only after the program has asked for it (PORTOLAN_HOLD_REQUESTS_MS)
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <rdma/rdma_cma.h>

#define CHECK(is_so) ((is_so) ? (void)0 : failed(__LINE__, #is_so))
#define ROUNDS 4
/* A waiting event is delivered within this time. */
#define AT_ONCE_MS 125

static void failed(int line, const char *what)
{
	fprintf(stderr, "line %d: %s (errno %d: %s)\n", line, what, errno, strerror(errno));
	exit(1);
}

static struct rdma_event_channel *channel, *callers;
static struct rdma_cm_id *serving, *calling[2];
static struct sockaddr_in here;

static struct rdma_cm_id *call(uint32_t qp_num)
{
	struct rdma_conn_param param = { .qp_num = qp_num };
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	CHECK(!rdma_create_id(callers, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&here, 2000));
	CHECK(!rdma_get_cm_event(callers, &event) && event->event == RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(!rdma_ack_cm_event(event) && !rdma_resolve_route(id, 2000));
	CHECK(!rdma_get_cm_event(callers, &event) && event->event == RDMA_CM_EVENT_ROUTE_RESOLVED);
	CHECK(!rdma_ack_cm_event(event) && !rdma_connect(id, &param));
	return id;
}

static void call_both(void)
{
	for (int at = 0; at < 2; at++)
		calling[at] = call(77 + at);
}

/* Expects that both were rejected, and destroys them. */
static void end_both(struct rdma_cm_id *taken[2])
{
	struct rdma_cm_event *event;

	for (int at = 0; at < 2; at++) {
		CHECK(!rdma_get_cm_event(callers, &event) && event->event == RDMA_CM_EVENT_REJECTED);
		CHECK(!rdma_ack_cm_event(event));
	}
	for (int at = 0; at < 2; at++)
		CHECK(!rdma_destroy_id(calling[at]) && !rdma_destroy_id(taken[at]));
}

static struct rdma_cm_id *take(void)
{
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	CHECK(!rdma_get_cm_event(channel, &event) && event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
	id = event->id;
	CHECK(!rdma_ack_cm_event(event));
	return id;
}

static long now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000L + now.tv_nsec / 1000000L;
}

/* Takes the shortest of several rounds, because a busy machine makes some of them long. */
static void at_once(void)
{
	struct rdma_cm_id *taken[2];
	long shortest = -1;

	for (int round = 0; round < ROUNDS; round++) {
		struct pollfd waits = { .fd = channel->fd, .events = POLLIN };

		call_both();
		taken[0] = take();
		CHECK(poll(&waits, 1, 10000) == 1);
		long before = now_ms();
		taken[1] = take();
		long took = now_ms() - before;
		if (shortest < 0 || took < shortest)
			shortest = took;
		for (int at = 0; at < 2; at++)
			CHECK(!rdma_reject(taken[at], NULL, 0));
		end_both(taken);
	}
	printf("the next request after %ld ms at best\n", shortest);
	CHECK(shortest < AT_ONCE_MS);
}

static struct rdma_cm_id *place;
static sem_t placed;

/* Leaves requests where there is room for one, as rping's thread does. */
static void *leave_requests(void *none)
{
	for (int at = 0; at < 2; at++) {
		place = take();
		CHECK(!sem_post(&placed));
	}
	return none;
}

static void held(void)
{
	struct rdma_cm_id *taken[2];
	pthread_t thread;

	CHECK(!sem_init(&placed, 0, 0));
	call_both();
	CHECK(!pthread_create(&thread, NULL, leave_requests, NULL));
	for (int at = 0; at < 2; at++) {
		CHECK(!sem_wait(&placed));
		/* Gives the other thread time to run. */
		usleep(100000);
		taken[at] = place;
		CHECK(!rdma_reject(taken[at], NULL, 0));
	}
	CHECK(taken[0] != taken[1]);
	CHECK(!pthread_join(thread, NULL));
	end_both(taken);
}

int main(int count, char **arguments)
{
	CHECK(count == 3);
	here.sin_family = AF_INET;
	CHECK(inet_pton(AF_INET, arguments[1], &here.sin_addr) == 1);
	channel = rdma_create_event_channel();
	callers = rdma_create_event_channel();
	CHECK(channel && callers);
	CHECK(!rdma_create_id(channel, &serving, NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(serving, (struct sockaddr *)&here) && !rdma_listen(serving, 3));
	here.sin_port = rdma_get_src_port(serving);
	if (!strcmp(arguments[2], "held"))
		held();
	else
		at_once();
	CHECK(!rdma_destroy_id(serving));
	rdma_destroy_event_channel(callers);
	rdma_destroy_event_channel(channel);
	return 0;
}
