/*
 * `portolan ping` and `portolan listen` in C: the same protocol, and the same lines of JSON where they print any.
 *
 *   pings listen ADDRESS PORT                     until it is killed
 *   pings ping ADDRESS PORT INTERVAL_MS [COUNT]   until SIGINT; succeeds if every ping was answered
 */
#include "pinger.h"
#include <signal.h>
#include <unistd.h>

static volatile sig_atomic_t interrupted;

static void interrupt(int signal)
{
	interrupted = signal;
}

static int ping(const char *host, const char *port, int interval_ms, unsigned long count)
{
	struct pinger pinger = { 0 };
	int failed;

	signal(SIGINT, interrupt);
	failed = pinger_connect(&pinger, host, port);
	if (!failed)
		printf("{\"type\":\"connected\"}\n");
	while (!failed && !interrupted && pinger.pings < count) {
		failed = pinger_ping(&pinger);
		if (!failed)
			printf("{\"type\":\"ping\",\"seq\":%lu}\n", pinger.pings);
		usleep(interval_ms * 1000);
	}
	printf("{\"type\":\"summary\",\"answered\":%lu,\"lost\":%d,\"mismatched\":0}\n", pinger.pings, failed != 0);
	pinger_close(&pinger);
	return failed ? 1 : 0;
}

/* A connection of the listener. */
struct session {
	struct rdma_cm_id *id;
	struct ibv_cq *cq;
	struct ibv_mr *region;
	int awaits_sink, is_broken;
	struct advertisement out, in[RECEIVES];
	char data[DATA_BYTES];
};

struct listener {
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	/* Shared by all sessions; created with the first. */
	struct ibv_comp_channel *completions;
};

static int post(struct session *s, enum ibv_wr_opcode opcode, void *data, uint32_t size,
		const struct advertisement *peer)
{
	struct ibv_sge sge = { (uintptr_t)data, size, s->region->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode }, *bad;

	if (peer) {
		wr.wr.rdma.remote_addr = be64toh(peer->address);
		wr.wr.rdma.rkey = be32toh(peer->key);
	}
	return ibv_post_send(s->id->qp, &wr, &bad);
}

static int post_message(struct session *s)
{
	return post(s, IBV_WR_SEND, &s->out, sizeof(s->out), NULL);
}

/* A buffer of the client: the first of a pair is read, the second written to. */
static int offered(struct session *s, int number)
{
	struct advertisement offer = s->in[number];
	uint32_t size = be32toh(offer.size);

	if (size > DATA_BYTES || post_receive(s->id->qp, s->region, s->in, number))
		return -1;
	if (!s->awaits_sink)
		return post(s, IBV_WR_RDMA_READ, s->data, size, &offer);
	s->awaits_sink = 0;
	return post(s, IBV_WR_RDMA_WRITE, s->data, size, &offer) || post_message(s);
}

static int completed(struct session *s, const struct ibv_wc *wc)
{
	if (wc->status)
		return -1;
	if (wc->opcode == IBV_WC_RECV)
		return offered(s, wc->wr_id);
	if (wc->opcode != IBV_WC_RDMA_READ)
		return 0;
	s->awaits_sink = 1;
	return post_message(s);
}

/* Takes all completions. A session that breaks ends through its event. */
static int drain(struct session *s)
{
	struct ibv_wc wc;
	int found;

	while ((found = ibv_poll_cq(s->cq, 1, &wc)) == 1)
		if (!s->is_broken && completed(s, &wc)) {
			s->is_broken = 1;
			rdma_disconnect(s->id);
		}
	return found;
}

static int take_completions(struct listener *l)
{
	struct ibv_cq *cq;
	void *session;

	while (ibv_get_cq_event(l->completions, &cq, &session) == 0) {
		ibv_ack_cq_events(cq, 1);
		if (ibv_req_notify_cq(cq, 0) || drain(session))
			return broken("ibv_poll_cq");
	}
	return errno == EAGAIN ? 0 : broken("ibv_get_cq_event");
}

static void end(struct rdma_cm_id *id)
{
	struct session *s = id->context;

	if (id->qp)
		rdma_destroy_qp(id);
	if (s->cq)
		ibv_destroy_cq(s->cq);
	if (s->region)
		ibv_dereg_mr(s->region);
	rdma_destroy_id(id);
	free(s);
}

static int prepare(struct listener *l, struct session *s)
{
	struct ibv_qp_init_attr attr = queues;
	struct rdma_cm_id *id = s->id;

	if (!l->completions) {
		l->completions = ibv_create_comp_channel(id->verbs);
		if (!l->completions || nonblocking(l->completions->fd))
			return broken("ibv_create_comp_channel");
	}
	s->cq = ibv_create_cq(id->verbs, 16, s, l->completions, 0);
	if (!s->cq)
		return broken("ibv_create_cq");
	attr.send_cq = attr.recv_cq = s->cq;
	if (rdma_create_qp(id, NULL, &attr))
		return broken("rdma_create_qp");
	s->region = ibv_reg_mr(id->pd, s, sizeof(*s), IBV_ACCESS_LOCAL_WRITE);
	if (!s->region || ibv_req_notify_cq(s->cq, 0))
		return broken("ibv_reg_mr");
	for (int i = 0; i < RECEIVES; i++)
		if (post_receive(id->qp, s->region, s->in, i))
			return broken("ibv_post_recv");
	return 0;
}

static int serve(struct listener *l, struct rdma_cm_id *id)
{
	struct rdma_conn_param param = depths;
	struct session *s = calloc(1, sizeof(*s));

	if (!s)
		return broken("calloc");
	s->id = id;
	id->context = s;
	/*
	 * The peer may have left meanwhile. Then the request has no queue pair (EINVAL), which is not an error
	 * here. A peer that still exists is rejected and reports that.
	 */
	if (prepare(l, s) || (rdma_accept(id, &param) && broken("rdma_accept")))
		end(id);
	return 0;
}

static int take_events(struct listener *l)
{
	struct rdma_cm_event *event;
	enum rdma_cm_event_type type;
	struct rdma_cm_id *id;

	while (rdma_get_cm_event(l->channel, &event) == 0) {
		type = event->event;
		id = event->id;
		rdma_ack_cm_event(event);
		switch (type) {
		case RDMA_CM_EVENT_CONNECT_REQUEST:
			if (serve(l, id))
				return -1;
			break;
		case RDMA_CM_EVENT_DISCONNECTED:
			/* Answers a peer that waits for the disconnect. */
			rdma_disconnect(id);
			end(id);
			break;
		case RDMA_CM_EVENT_CONNECT_ERROR:
		case RDMA_CM_EVENT_REJECTED:
		case RDMA_CM_EVENT_UNREACHABLE:
			end(id);
			break;
		case RDMA_CM_EVENT_ESTABLISHED:
		case RDMA_CM_EVENT_TIMEWAIT_EXIT:
			break;
		default:
			fprintf(stderr, "%s\n", rdma_event_str(type));
			return -1;
		}
	}
	return errno == EAGAIN ? 0 : broken("rdma_get_cm_event");
}

static int listen_at(const char *host, const char *port)
{
	struct listener l = { 0 };
	struct addrinfo *at = numeric(host, port);

	if (!at)
		return broken(host);
	l.channel = rdma_create_event_channel();
	if (!l.channel || nonblocking(l.channel->fd))
		return broken("rdma_create_event_channel");
	if (rdma_create_id(l.channel, &l.id, NULL, RDMA_PS_TCP))
		return broken("rdma_create_id");
	if (rdma_bind_addr(l.id, at->ai_addr) || rdma_listen(l.id, 64))
		return broken("rdma_listen");
	freeaddrinfo(at);
	printf("{\"type\":\"listening\",\"address\":\"%s:%s\"}\n", host, port);
	for (;;) {
		struct pollfd ready[] = {
			{ .fd = l.channel->fd, .events = POLLIN },
			{ .fd = l.completions ? l.completions->fd : -1, .events = POLLIN },
		};

		if (poll(ready, 2, -1) < 0)
			return broken("poll");
		if (take_events(&l) || (l.completions && take_completions(&l)))
			return -1;
	}
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if ((argc == 5 || argc == 6) && !strcmp(argv[1], "ping"))
		return ping(argv[2], argv[3], atoi(argv[4]), argc == 6 ? strtoul(argv[5], NULL, 10) : -1UL);
	if (argc == 4 && !strcmp(argv[1], "listen"))
		return listen_at(argv[2], argv[3]) ? 2 : 0;
	fprintf(stderr, "usage: %s listen ADDRESS PORT | ping ADDRESS PORT INTERVAL_MS [COUNT]\n", argv[0]);
	return 2;
}
