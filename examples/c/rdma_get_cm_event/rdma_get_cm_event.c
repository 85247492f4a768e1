/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Every event in a connection's life, on one channel: a listener, and an id that connects to it.
 *
 *   rdma_get_cm_event ADDRESS PORT        a local address
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <rdma/rdma_cma.h>

#define PATIENCE_MS 20000
#define RESOLVE_MS 2000

/* The two ends, and how many of them are disconnected. */
struct ends {
	struct rdma_cm_id *listener, *active, *passive;
	int disconnected;
};

static struct ibv_qp_init_attr attr = {
	.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	.qp_type = IBV_QPT_RC,
};

static int check(int failed, const char *what)
{
	if (failed)
		perror(what);
	return failed;
}

/* Prints an event. Its data are valid until it is acknowledged. */
static void print(const struct rdma_cm_event *event, const struct ends *ends)
{
	const struct rdma_conn_param *conn = &event->param.conn;

	printf("%s: %s, status %d", event->id == ends->active ? "active" : "passive",
	       rdma_event_str(event->event), event->status);
	switch (event->event) {
	case RDMA_CM_EVENT_CONNECT_REQUEST:
	case RDMA_CM_EVENT_ESTABLISHED:
	case RDMA_CM_EVENT_REJECTED:
		/* Padded with zeros to the length of the message's field. */
		if (conn->private_data)
			printf(", \"%.*s\"", conn->private_data_len,
			       (const char *)conn->private_data);
		printf(", %d reads at a time", conn->initiator_depth);
		break;
	default:
		break;
	}
	if (event->listen_id)
		printf(", of the listener");
	printf("\n");
}

/* Takes the next step. Returns nonzero if a call failed. */
static int step(struct rdma_cm_event *event, struct ends *ends)
{
	struct rdma_conn_param conn = { .responder_resources = 1, .initiator_depth = 1,
					.retry_count = 7, .rnr_retry_count = 7 };
	struct rdma_cm_id *id = event->id;

	switch (event->event) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		return check(rdma_resolve_route(id, RESOLVE_MS), "rdma_resolve_route");
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		conn.private_data = "ahoy";
		conn.private_data_len = 5;
		return check(rdma_create_qp(id, NULL, &attr), "rdma_create_qp") ||
		       check(rdma_connect(id, &conn), "rdma_connect");
	case RDMA_CM_EVENT_CONNECT_REQUEST:
		/* A new id, which this program now owns. */
		ends->passive = id;
		conn.private_data = "aye";
		conn.private_data_len = 4;
		return check(rdma_create_qp(id, NULL, &attr), "rdma_create_qp") ||
		       check(rdma_accept(id, &conn), "rdma_accept");
	case RDMA_CM_EVENT_ESTABLISHED:
		return id == ends->passive && check(rdma_disconnect(id), "rdma_disconnect");
	case RDMA_CM_EVENT_DISCONNECTED:
		ends->disconnected++;
		return id == ends->active && check(rdma_disconnect(id), "rdma_disconnect");
	case RDMA_CM_EVENT_TIMEWAIT_EXIT:
		return 0;
	default:
		fprintf(stderr, "the connection failed\n");
		return 1;
	}
}

/* Takes events, each within a time limit, until both ends are disconnected. */
static int follow(struct rdma_event_channel *channel, struct ends *ends)
{
	struct pollfd ready = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *event;
	int failed = 0;

	while (!failed && ends->disconnected < 2) {
		if (rdma_get_cm_event(channel, &event) == 0) {
			print(event, ends);
			failed = step(event, ends);
			rdma_ack_cm_event(event);
		} else if (errno != EAGAIN) {
			failed = check(1, "rdma_get_cm_event");
		} else if (poll(&ready, 1, PATIENCE_MS) != 1) {
			fprintf(stderr, "no event in %d ms\n", PATIENCE_MS);
			failed = 1;
		}
	}
	return failed;
}

static void destroy(struct rdma_cm_id *id)
{
	if (!id)
		return;
	if (id->qp)
		rdma_destroy_qp(id);
	rdma_destroy_id(id);
}

static int run(struct rdma_event_channel *channel, struct ends *ends, struct sockaddr *address)
{
	/* Otherwise rdma_get_cm_event blocks. */
	int flags = fcntl(channel->fd, F_GETFL);

	return check(fcntl(channel->fd, F_SETFL, flags | O_NONBLOCK), "fcntl") ||
	       check(rdma_create_id(channel, &ends->listener, NULL, RDMA_PS_TCP),
		     "rdma_create_id") ||
	       check(rdma_bind_addr(ends->listener, address), "rdma_bind_addr") ||
	       check(rdma_listen(ends->listener, 1), "rdma_listen") ||
	       check(rdma_create_id(channel, &ends->active, NULL, RDMA_PS_TCP), "rdma_create_id") ||
	       check(rdma_resolve_addr(ends->active, NULL, address, RESOLVE_MS),
		     "rdma_resolve_addr") ||
	       follow(channel, ends);
}

int main(int argc, char **argv)
{
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM }, *found;
	struct rdma_event_channel *channel;
	struct ends ends = { 0 };
	int failed;

	if (argc != 3 || getaddrinfo(argv[1], argv[2], &hints, &found)) {
		fprintf(stderr, "usage: %s ADDRESS PORT\n", argv[0]);
		return 2;
	}
	channel = rdma_create_event_channel();
	failed = check(!channel, "rdma_create_event_channel") || run(channel, &ends, found->ai_addr);
	/* Waits until all events are acknowledged, which they are. */
	destroy(ends.active);
	destroy(ends.passive);
	destroy(ends.listener);
	if (channel)
		rdma_destroy_event_channel(channel);
	freeaddrinfo(found);
	return failed;
}
