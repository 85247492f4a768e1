/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Looks up a name without blocking: rdma_resolve_addrinfo, the event at its end, and rdma_query_addrinfo, which
 * returns the result.
 *
 *   rdma_resolve_addrinfo HOST PORT
 */
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <portolan.h>

#define PATIENCE_MS 20000

static void print(const char *what, const struct sockaddr *address, socklen_t length)
{
	char host[NI_MAXHOST] = "none", port[NI_MAXSERV] = "0";

	if (length)
		getnameinfo(address, length, host, sizeof(host), port, sizeof(port),
			    NI_NUMERICHOST | NI_NUMERICSERV);
	printf(" %s [%s]:%s", what, host, port);
}

/* Waits for the event; a real program would do something else meanwhile. Returns 0 if the name was found. */
static int await(struct rdma_event_channel *channel)
{
	struct pollfd ready = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *event;
	int failed;

	if (poll(&ready, 1, PATIENCE_MS) != 1) {
		fprintf(stderr, "no answer in %d ms\n", PATIENCE_MS);
		return 1;
	}
	if (rdma_get_cm_event(channel, &event)) {
		perror("rdma_get_cm_event");
		return 1;
	}
	printf("event %s, status %d\n", rdma_event_str(event->event), event->status);
	failed = event->event != RDMA_CM_EVENT_ADDRINFO_RESOLVED;
	rdma_ack_cm_event(event);
	return failed;
}

static int resolve(struct rdma_event_channel *channel, struct rdma_cm_id *id, const char *host,
		   const char *port)
{
	struct rdma_addrinfo hints, *res, *cur;

	memset(&hints, 0, sizeof(hints));
	hints.ai_flags = RAI_DNS;
	hints.ai_qp_type = IBV_QPT_RC;
	hints.ai_port_space = RDMA_PS_TCP;
	if (rdma_resolve_addrinfo(id, host, port, &hints)) {
		perror("rdma_resolve_addrinfo");
		return 1;
	}
	if (await(channel))
		return 1;
	if (rdma_query_addrinfo(id, &res)) {
		perror("rdma_query_addrinfo");
		return 1;
	}
	for (cur = res; cur; cur = cur->ai_next) {
		print("to", cur->ai_dst_addr, cur->ai_dst_len);
		print("from", cur->ai_src_addr, cur->ai_src_len);
		printf("\n");
	}
	rdma_freeaddrinfo(res);
	return 0;
}

int main(int argc, char **argv)
{
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	int failed = 1;

	if (argc != 3) {
		fprintf(stderr, "usage: %s HOST PORT\n", argv[0]);
		return 2;
	}
	channel = rdma_create_event_channel();
	if (!channel) {
		perror("rdma_create_event_channel");
		return 1;
	}
	if (rdma_create_id(channel, &id, NULL, RDMA_PS_TCP))
		perror("rdma_create_id");
	else {
		failed = resolve(channel, id, argv[1], argv[2]);
		rdma_destroy_id(id);
	}
	rdma_destroy_event_channel(channel);
	return failed;
}
