/*
 * A client of rping's protocol, like `portolan ping`. In each ping the server reads data and writes them back, and
 * the client compares them.
 */
#ifndef PINGER_H
#define PINGER_H

#include <arpa/inet.h>
#include <endian.h>
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
#define DATA_BYTES 64
#define RECEIVES 2

/* Where a client's data are, in network order. Every message of the protocol has this form. */
struct advertisement {
	uint64_t address;
	uint32_t key, size;
};

static struct ibv_qp_init_attr queues = {
	.cap = { .max_send_wr = 4, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1 },
	.qp_type = IBV_QPT_RC,
	.sq_sig_all = 1,
};
static const struct rdma_conn_param depths = {
	.responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7,
};

struct pinger {
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	struct ibv_comp_channel *completions;
	struct ibv_cq *cq;
	struct ibv_mr *region;
	unsigned long pings;
	int is_connected;
	/* The region's memory. */
	struct {
		struct advertisement out, in[RECEIVES];
		char source[DATA_BYTES], sink[DATA_BYTES];
	} memory;
};

static int broken(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, errno ? strerror(errno) : "failed");
	return -1;
}

static inline int nonblocking(int fd)
{
	return fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

static inline struct addrinfo *numeric(const char *host, const char *port)
{
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM }, *found;

	return getaddrinfo(host, port, &hints, &found) ? NULL : found;
}

static inline int post_receive(struct ibv_qp *qp, struct ibv_mr *region, struct advertisement *in, int number)
{
	struct ibv_sge sge = { (uintptr_t)&in[number], sizeof(*in), region->lkey };
	struct ibv_recv_wr wr = { .wr_id = number, .sg_list = &sge, .num_sge = 1 }, *bad;

	return ibv_post_recv(qp, &wr, &bad);
}

/* Waits for this event; any other is an error. */
static int pinger_await(struct pinger *p, enum rdma_cm_event_type wanted)
{
	struct pollfd ready = { .fd = p->channel->fd, .events = POLLIN };
	struct rdma_cm_event *event;
	enum rdma_cm_event_type got;
	int status;

	while (rdma_get_cm_event(p->channel, &event)) {
		if (errno != EAGAIN)
			return broken("rdma_get_cm_event");
		if (poll(&ready, 1, PATIENCE_MS) == 0) {
			fprintf(stderr, "no event in %d ms\n", PATIENCE_MS);
			return -1;
		}
	}
	got = event->event;
	status = event->status;
	rdma_ack_cm_event(event);
	if (got == wanted)
		return 0;
	fprintf(stderr, "%s (%d), awaited %s\n", rdma_event_str(got), status, rdma_event_str(wanted));
	return -1;
}

static int pinger_queues(struct pinger *p)
{
	struct ibv_qp_init_attr attr = queues;
	int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

	p->completions = ibv_create_comp_channel(p->id->verbs);
	if (!p->completions || nonblocking(p->completions->fd))
		return broken("ibv_create_comp_channel");
	p->cq = ibv_create_cq(p->id->verbs, 16, NULL, p->completions, 0);
	if (!p->cq)
		return broken("ibv_create_cq");
	attr.send_cq = attr.recv_cq = p->cq;
	if (rdma_create_qp(p->id, NULL, &attr))
		return broken("rdma_create_qp");
	p->region = ibv_reg_mr(p->id->pd, &p->memory, sizeof(p->memory), rights);
	if (!p->region)
		return broken("ibv_reg_mr");
	for (int i = 0; i < RECEIVES; i++)
		if (post_receive(p->id->qp, p->region, p->memory.in, i))
			return broken("ibv_post_recv");
	return 0;
}

/* Connects. The rest of `p` must be zero. */
static inline int pinger_connect(struct pinger *p, const char *host, const char *port)
{
	struct rdma_conn_param param = depths;
	struct addrinfo *to = numeric(host, port);
	int failed;

	if (!to)
		return broken(host);
	p->channel = rdma_create_event_channel();
	if (!p->channel || nonblocking(p->channel->fd))
		failed = broken("rdma_create_event_channel");
	else if (rdma_create_id(p->channel, &p->id, NULL, RDMA_PS_TCP))
		failed = broken("rdma_create_id");
	else if (rdma_resolve_addr(p->id, NULL, to->ai_addr, RESOLVE_MS))
		failed = broken("rdma_resolve_addr");
	else
		failed = pinger_await(p, RDMA_CM_EVENT_ADDR_RESOLVED);
	freeaddrinfo(to);
	if (failed)
		return failed;
	if (rdma_resolve_route(p->id, RESOLVE_MS))
		return broken("rdma_resolve_route");
	if (pinger_await(p, RDMA_CM_EVENT_ROUTE_RESOLVED) || pinger_queues(p))
		return -1;
	if (rdma_connect(p->id, &param))
		return broken("rdma_connect");
	failed = pinger_await(p, RDMA_CM_EVENT_ESTABLISHED);
	p->is_connected = !failed;
	return failed;
}

/* Sleeps until there may be a completion. An event of the connection ends it. */
static int pinger_sleep(struct pinger *p)
{
	struct pollfd ready[] = {
		{ .fd = p->completions->fd, .events = POLLIN },
		{ .fd = p->channel->fd, .events = POLLIN },
	};
	struct ibv_cq *cq;
	void *context;

	switch (poll(ready, 2, PATIENCE_MS)) {
	case -1:
		return errno == EINTR ? 0 : broken("poll");
	case 0:
		fprintf(stderr, "no answer in %d ms\n", PATIENCE_MS);
		return -1;
	}
	if (ready[0].revents) {
		if (ibv_get_cq_event(p->completions, &cq, &context))
			return broken("ibv_get_cq_event");
		ibv_ack_cq_events(cq, 1);
		return 0;
	}
	p->is_connected = 0;
	if (pinger_await(p, RDMA_CM_EVENT_DISCONNECTED) == 0)
		fprintf(stderr, "disconnected\n");
	return -1;
}

/* Waits for a message of the server. Returns its number, or -1. */
static int pinger_message(struct pinger *p)
{
	struct ibv_wc wc;
	int found, armed = 0;

	for (;;) {
		found = ibv_poll_cq(p->cq, 1, &wc);
		if (found < 0)
			return broken("ibv_poll_cq");
		if (found && wc.status) {
			fprintf(stderr, "work failed: %s\n", ibv_wc_status_str(wc.status));
			return -1;
		}
		if (found && wc.opcode == IBV_WC_RECV)
			return wc.wr_id;
		if (found)
			continue;
		/* Completions from before the queue was armed raise no event. */
		if (!armed) {
			armed = !ibv_req_notify_cq(p->cq, 0);
			if (!armed)
				return broken("ibv_req_notify_cq");
		} else {
			if (pinger_sleep(p))
				return -1;
			armed = 0;
		}
	}
}

/* Announces a buffer to the server and waits until the server is done with it. */
static int pinger_offer(struct pinger *p, char *data)
{
	struct advertisement *out = &p->memory.out;
	struct ibv_sge sge = { (uintptr_t)out, sizeof(*out), p->region->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	int message;

	out->address = htobe64((uintptr_t)data);
	out->key = htobe32(p->region->rkey);
	out->size = htobe32(DATA_BYTES);
	if (ibv_post_send(p->id->qp, &wr, &bad))
		return broken("ibv_post_send");
	message = pinger_message(p);
	if (message < 0)
		return -1;
	if (post_receive(p->id->qp, p->region, p->memory.in, message))
		return broken("ibv_post_recv");
	return 0;
}

/* One ping. Prints an error. */
static inline int pinger_ping(struct pinger *p)
{
	int text = snprintf(p->memory.source, DATA_BYTES, "rdma-ping-%lu: ", p->pings);

	for (int i = text; i < DATA_BYTES - 1; i++)
		p->memory.source[i] = 'A' + (p->pings + i - text) % ('z' - 'A' + 1);
	p->memory.source[DATA_BYTES - 1] = 0;
	memset(p->memory.sink, 0xa5, DATA_BYTES);
	if (pinger_offer(p, p->memory.source) || pinger_offer(p, p->memory.sink))
		return -1;
	if (memcmp(p->memory.source, p->memory.sink, DATA_BYTES)) {
		fprintf(stderr, "the data of ping %lu came back changed\n", p->pings);
		return -1;
	}
	p->pings++;
	return 0;
}

/* Closes whatever exists of the connection. */
static inline void pinger_close(struct pinger *p)
{
	if (p->is_connected && rdma_disconnect(p->id) == 0)
		pinger_await(p, RDMA_CM_EVENT_DISCONNECTED);
	if (p->id && p->id->qp)
		rdma_destroy_qp(p->id);
	if (p->region)
		ibv_dereg_mr(p->region);
	if (p->cq)
		ibv_destroy_cq(p->cq);
	if (p->completions)
		ibv_destroy_comp_channel(p->completions);
	if (p->id)
		rdma_destroy_id(p->id);
	if (p->channel)
		rdma_destroy_event_channel(p->channel);
}

#endif
