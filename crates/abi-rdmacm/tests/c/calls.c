/*
 * Makes the calls of rdma_cma.h with right and wrong arguments, and prints the results and the following events.
 * Values that differ between runs (memory addresses, ports, queue pair numbers) are not printed, so that outputs of
 * two librdmacms can be compared.
 *
 * Usage: calls LOCAL_IPV4 [MILLISECONDS_PER_EVENT]
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

/* Declared in rdma/rsocket.h, which also declares socket calls. */
int rpoll(struct pollfd *descriptors, nfds_t count, int timeout_ms);

/* A slower answer is a failure: nothing here waits for the network's own timeouts. */
#define PATIENCE_MS 20000
#define LISTEN_PORT 7480

static struct sockaddr_in local;
/* Time limit of an event. The program ends when it passes. */
static int patience_ms = PATIENCE_MS;

/* Prints what a call returns, and errno if it failed. */
#define TELL(call)                                                              \
	({                                                                      \
		errno = 0;                                                      \
		int told_ = (call);                                             \
		printf("%s = %d%s%s\n", #call, told_, told_ ? ", " : "",       \
		       told_ ? strerrorname_np(errno) : "");                    \
		told_;                                                          \
	})

static struct sockaddr *address(const char *text, int port)
{
	static struct sockaddr_in made;

	memset(&made, 0, sizeof(made));
	made.sin_family = AF_INET;
	made.sin_port = htons(port);
	inet_pton(AF_INET, text, &made.sin_addr);
	return (struct sockaddr *)&made;
}

static struct sockaddr *here(int port)
{
	static struct sockaddr_in made;

	made = local;
	made.sin_port = htons(port);
	return (struct sockaddr *)&made;
}

/* The next event of a channel. Ends the program if there is none in time. */
static struct rdma_cm_event *next(struct rdma_event_channel *channel)
{
	struct pollfd ready = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *event;

	if (poll(&ready, 1, patience_ms) != 1) {
		printf("no event\n");
		exit(1);
	}
	if (rdma_get_cm_event(channel, &event)) {
		printf("rdma_get_cm_event: %s\n", strerrorname_np(errno));
		exit(1);
	}
	return event;
}

static void tell_connection(const struct rdma_conn_param *conn)
{
	printf("  private data %d %.12s, resources %d, depth %d, retries %d %d, flow %d\n",
	       conn->private_data_len, conn->private_data ? (const char *)conn->private_data : "",
	       conn->responder_resources, conn->initiator_depth, conn->retry_count,
	       conn->rnr_retry_count, conn->flow_control);
}

/* Prints an event and returns its id. */
static struct rdma_cm_id *tell_event(struct rdma_event_channel *channel)
{
	struct rdma_cm_event *event = next(channel);
	struct rdma_cm_id *id = event->id;

	printf("  event %s, status %d, %s, context %s\n", rdma_event_str(event->event),
	       event->status, event->listen_id ? "of a listener" : "of the id",
	       id->context ? (const char *)id->context : "none");
	switch (event->event) {
	case RDMA_CM_EVENT_CONNECT_REQUEST:
	case RDMA_CM_EVENT_CONNECT_RESPONSE:
	case RDMA_CM_EVENT_ESTABLISHED:
	case RDMA_CM_EVENT_REJECTED:
	case RDMA_CM_EVENT_DISCONNECTED:
		if (id->qp_type == IBV_QPT_RC)
			tell_connection(&event->param.conn);
		break;
	default:
		break;
	}
	rdma_ack_cm_event(event);
	return id;
}

/* Prints what a program can read in an id. */
static void tell_id(const char *what, struct rdma_cm_id *id)
{
	struct sockaddr *source = rdma_get_local_addr(id);
	struct sockaddr *destination = rdma_get_peer_addr(id);

	printf("  %s: port space %x, type %d, port %d, device %s, pd %s, qp %s, families %d %d, "
	       "ports %s %s, paths %d, pkey %x, gids %d %d\n",
	       what, id->ps, id->qp_type, id->port_num,
	       id->verbs ? ibv_get_device_name(id->verbs->device) : "none", id->pd ? "yes" : "no",
	       id->qp ? "yes" : "no", source->sa_family, destination->sa_family,
	       rdma_get_src_port(id) ? "some" : "none", rdma_get_dst_port(id) ? "some" : "none",
	       id->route.num_paths, ntohs(id->route.addr.addr.ibaddr.pkey),
	       id->route.addr.addr.ibaddr.sgid.raw[15], id->route.addr.addr.ibaddr.dgid.raw[15]);
	if (id->route.num_paths > 0) {
		struct ibv_sa_path_rec *path = id->route.path_rec;

		printf("  path: gids %d %d, hop limit %d, reversible %d, mtu %d %d, rate %d, sl %d, "
		       "life %d, preference %d, pkey %x\n",
		       path->sgid.raw[15], path->dgid.raw[15], path->hop_limit, path->reversible,
		       path->mtu_selector, path->mtu, path->rate_selector, path->sl,
		       path->packet_life_time_selector, path->preference, ntohs(path->pkey));
	}
}

static void names(void)
{
	printf("== names\n");
	for (int event = 0; event < 16; event++)
		printf("%s\n", rdma_event_str(event));
	printf("%s\n", rdma_event_str(1000));
}

static void idle_ids(struct rdma_event_channel *channel)
{
	static const int spaces[] = { RDMA_PS_TCP, RDMA_PS_UDP, RDMA_PS_IPOIB, RDMA_PS_IB, 0x9999 };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT };
	struct ibv_ece ece = { .vendor_id = 0 };
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	int mask, one = 1;
	uint8_t tos = 8;

	printf("== idle ids\n");
	for (unsigned int i = 0; i < sizeof(spaces) / sizeof(*spaces); i++) {
		printf("port space %x\n", spaces[i]);
		if (TELL(rdma_create_id(channel, &id, "idle", spaces[i])))
			continue;
		tell_id("new", id);
		TELL(rdma_reject(id, NULL, 0));
		TELL(rdma_notify(id, IBV_EVENT_COMM_EST));
		TELL(rdma_notify(id, IBV_EVENT_PORT_ERR));
		TELL(rdma_establish(id));
		TELL(rdma_init_qp_attr(id, &attr, &mask));
		TELL(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof(tos)));
		TELL(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &one, sizeof(one)));
		TELL(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &one, sizeof(one)));
		TELL(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &one, sizeof(one)));
		TELL(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &tos, sizeof(tos)));
		TELL(rdma_set_option(id, RDMA_OPTION_ID, 99, &one, sizeof(one)));
		TELL(rdma_set_option(id, 99, 0, &one, sizeof(one)));
		TELL(rdma_get_request(id, &id));
		TELL(rdma_leave_multicast(id, address("239.1.1.1", 0)));
		TELL(rdma_set_local_ece(id, &ece));
		TELL(rdma_get_remote_ece(id, &ece));
		TELL(rdma_destroy_id(id));
	}
	fcntl(channel->fd, F_SETFL, O_NONBLOCK);
	TELL(rdma_get_cm_event(channel, &event));
	fcntl(channel->fd, F_SETFL, 0);
}

static void binding(struct rdma_event_channel *channel)
{
	struct sockaddr other = { .sa_family = AF_UNIX };
	struct rdma_cm_id *id, *second;

	printf("== binding\n");
	TELL(rdma_create_id(channel, &id, "bound", RDMA_PS_TCP));
	TELL(rdma_bind_addr(id, &other));
	TELL(rdma_bind_addr(id, address("192.0.2.7", 0)));
	TELL(rdma_bind_addr(id, here(LISTEN_PORT)));
	tell_id("bound", id);
	TELL(rdma_bind_addr(id, here(LISTEN_PORT + 1)));
	TELL(rdma_resolve_route(id, 100));
	TELL(rdma_create_id(channel, &second, "second", RDMA_PS_TCP));
	TELL(rdma_bind_addr(second, here(LISTEN_PORT)));
	TELL(rdma_bind_addr(second, here(0)));
	tell_id("any port", second);
	TELL(rdma_disconnect(second));
	TELL(rdma_destroy_id(second));
	TELL(rdma_listen(id, 0));
	TELL(rdma_listen(id, 1));
	TELL(rdma_destroy_id(id));
	TELL(rdma_create_id(channel, &id, "unbound", RDMA_PS_TCP));
	TELL(rdma_listen(id, 4));
	printf("  source port %s\n", rdma_get_src_port(id) ? "some" : "none");
	TELL(rdma_destroy_id(id));
}

/* There is no route. Some libraries report that by the call, some by an event. */
static void no_route(struct rdma_event_channel *channel)
{
	struct rdma_cm_id *id;
	int why;

	TELL(rdma_create_id(channel, &id, "nowhere", RDMA_PS_TCP));
	why = rdma_resolve_addr(id, NULL, address("192.0.2.7", 1), 1000) ? errno : 0;
	if (!why) {
		struct rdma_cm_event *event = next(channel);

		why = event->event == RDMA_CM_EVENT_ADDR_ERROR ? -event->status : 0;
		rdma_ack_cm_event(event);
	}
	printf("  no route: %s\n", strerrorname_np(why));
	TELL(rdma_destroy_id(id));
}

static void resolving(struct rdma_event_channel *channel)
{
	struct sockaddr other = { .sa_family = AF_UNIX };
	struct rdma_cm_id *id;

	printf("== resolving\n");
	no_route(channel);
	TELL(rdma_create_id(channel, &id, "resolving", RDMA_PS_TCP));
	TELL(rdma_resolve_addr(id, NULL, &other, 1000));
	TELL(rdma_resolve_addr(id, NULL, here(LISTEN_PORT), 1000));
	tell_event(channel);
	tell_id("resolved", id);
	TELL(rdma_resolve_addr(id, NULL, here(LISTEN_PORT), 1000));
	TELL(rdma_resolve_route(id, 1000));
	tell_event(channel);
	tell_id("routed", id);
	TELL(rdma_resolve_route(id, 1000));
	TELL(rdma_destroy_id(id));
}

static int queue_pair(struct rdma_cm_id *id, struct ibv_pd *pd, uint32_t entries)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = entries, .max_recv_wr = entries, .max_send_sge = 1,
			 .max_recv_sge = 1 },
		.qp_type = id->qp_type,
	};
	int made = rdma_create_qp(id, pd, &attr);

	if (!made)
		printf("  queues %s, entries %s\n",
		       attr.send_cq == id->send_cq && attr.recv_cq == id->recv_cq ? "the id's" : "others",
		       attr.cap.max_send_wr >= entries ? "enough" : "too few");
	return made;
}

/* An id that is ready to connect. */
static struct rdma_cm_id *caller(struct rdma_event_channel *channel, int space, int port)
{
	struct rdma_cm_id *id;

	TELL(rdma_create_id(channel, &id, "caller", space));
	TELL(rdma_resolve_addr(id, NULL, here(port), 1000));
	tell_event(channel);
	TELL(rdma_resolve_route(id, 1000));
	tell_event(channel);
	return id;
}

static struct rdma_cm_id *listener(struct rdma_event_channel *channel, int space)
{
	struct rdma_cm_id *id;

	TELL(rdma_create_id(channel, &id, "listener", space));
	TELL(rdma_bind_addr(id, here(LISTEN_PORT)));
	TELL(rdma_listen(id, 4));
	return id;
}

static void queue_pairs(struct rdma_event_channel *channel)
{
	struct rdma_cm_id *id = caller(channel, RDMA_PS_TCP, LISTEN_PORT);
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 4, .max_sge = 1 } };

	printf("== queue pairs\n");
	TELL(queue_pair(id, NULL, 0x7fffffff));
	printf("  queues left: %d\n", !!id->send_cq + !!id->recv_cq);
	TELL(queue_pair(id, id->pd, 4));
	tell_id("with a queue pair", id);
	TELL(queue_pair(id, NULL, 4));
	rdma_destroy_qp(id);
	printf("  queues left: %d\n", !!id->send_cq + !!id->recv_cq);
	TELL(rdma_create_srq(id, id->pd, &srq));
	TELL(rdma_create_srq(id, id->pd, &srq));
	TELL(queue_pair(id, NULL, 4));
	printf("  shared receive queue %s\n", id->qp->srq == id->srq ? "the id's" : "another");
	rdma_destroy_ep(id);
}

static void tell_completion(const char *what, int count, const struct ibv_wc *wc)
{
	printf("  %s: %d, status %d, opcode %d, bytes %u\n", what, count, wc->status, wc->opcode,
	       wc->opcode == IBV_WC_RECV || wc->opcode == IBV_WC_RDMA_READ ? wc->byte_len : 0);
}

/* Sends a message, writes and reads, through the inline functions. */
static void exchange(struct rdma_cm_id *client, struct rdma_cm_id *child)
{
	static char from[64] = "a message", to[64], remote[64];
	struct ibv_mr *source = rdma_reg_msgs(client, from, sizeof(from));
	struct ibv_mr *target = rdma_reg_msgs(child, to, sizeof(to));
	struct ibv_mr *written = rdma_reg_write(child, remote, sizeof(remote));
	struct ibv_mr *readable = rdma_reg_read(child, remote, sizeof(remote));
	struct ibv_wc wc;

	TELL(rdma_post_recv(child, to, to, sizeof(to), target));
	TELL(rdma_post_send(client, from, from, 10, source, IBV_SEND_SIGNALED));
	tell_completion("sent", rdma_get_send_comp(client, &wc), &wc);
	tell_completion("received", rdma_get_recv_comp(child, &wc), &wc);
	printf("  %s, %s\n", to, wc.wr_id == (uintptr_t)to ? "its context" : "another context");
	TELL(rdma_post_write(client, NULL, from, 10, source, IBV_SEND_SIGNALED,
			     (uintptr_t)remote, written->rkey));
	tell_completion("written", rdma_get_send_comp(client, &wc), &wc);
	memset(from, 0, sizeof(from));
	TELL(rdma_post_read(client, NULL, from, 10, source, IBV_SEND_SIGNALED, (uintptr_t)remote,
			    readable->rkey));
	tell_completion("read", rdma_get_send_comp(client, &wc), &wc);
	printf("  %s, %s\n", remote, from);
	TELL(rdma_dereg_mr(readable));
	TELL(rdma_dereg_mr(written));
	TELL(rdma_dereg_mr(target));
	TELL(rdma_dereg_mr(source));
}

static void connecting(struct rdma_event_channel *channel, struct rdma_event_channel *other)
{
	struct rdma_conn_param request = {
		.private_data = "request", .private_data_len = 8, .responder_resources = 3,
		.initiator_depth = 2, .retry_count = 5, .rnr_retry_count = 6, .flow_control = 1,
	};
	struct rdma_conn_param reply = {
		.private_data = "reply", .private_data_len = 6, .responder_resources = 2,
		.initiator_depth = 1, .rnr_retry_count = 4,
	};
	struct rdma_conn_param beyond = { .responder_resources = 200, .initiator_depth = 200 };
	struct rdma_cm_id *server = listener(other, RDMA_PS_TCP);
	struct rdma_cm_id *client = caller(channel, RDMA_PS_TCP, LISTEN_PORT);
	struct rdma_cm_id *child;

	printf("== connecting\n");
	TELL(rdma_connect(client, NULL));
	TELL(rdma_connect(client, &beyond));
	TELL(queue_pair(client, NULL, 4));
	TELL(rdma_accept(client, NULL));
	TELL(rdma_connect(client, &request));
	TELL(rdma_connect(client, &request));
	child = tell_event(other);
	tell_id("child", child);
	TELL(queue_pair(child, NULL, 4));
	TELL(rdma_accept(child, &reply));
	tell_event(channel);
	tell_event(other);
	exchange(client, child);
	TELL(rdma_accept(child, &reply));
	TELL(rdma_reject(child, "late", 5));
	TELL(rdma_establish(client));
	TELL(rdma_notify(child, IBV_EVENT_COMM_EST));
	TELL(rdma_migrate_id(child, channel));
	TELL(rdma_disconnect(client));
	/* The child's event, which has migrated to this channel. The caller's follows when the child agrees. */
	tell_event(channel);
	TELL(rdma_disconnect(child));
	tell_event(channel);
	rdma_destroy_qp(child);
	rdma_destroy_qp(client);
	TELL(rdma_destroy_id(child));
	TELL(rdma_destroy_id(client));

	printf("== rejecting\n");
	client = caller(channel, RDMA_PS_TCP, LISTEN_PORT);
	TELL(queue_pair(client, NULL, 4));
	TELL(rdma_connect(client, NULL));
	child = tell_event(other);
	TELL(rdma_reject(child, "refused", 8));
	TELL(rdma_destroy_id(child));
	tell_event(channel);
	rdma_destroy_ep(client);
	client = caller(channel, RDMA_PS_TCP, LISTEN_PORT);
	TELL(queue_pair(client, NULL, 4));
	TELL(rdma_connect(client, NULL));
	child = tell_event(other);
	TELL(rdma_reject_ece(child, NULL, 0));
	TELL(rdma_destroy_id(child));
	tell_event(channel);
	rdma_destroy_ep(client);

	printf("== a listener that goes\n");
	client = caller(channel, RDMA_PS_TCP, LISTEN_PORT + 5);
	TELL(queue_pair(client, NULL, 4));
	TELL(rdma_connect(client, NULL));
	tell_event(channel);
	rdma_destroy_ep(client);
	TELL(rdma_destroy_id(server));
}

static void own_queue_pairs(struct rdma_event_channel *channel, struct rdma_event_channel *other)
{
	struct rdma_conn_param param = { .qp_num = 77, .responder_resources = 1, .retry_count = 3 };
	struct rdma_cm_id *server = listener(other, RDMA_PS_TCP);
	struct rdma_cm_id *client = caller(channel, RDMA_PS_TCP, LISTEN_PORT);
	struct ibv_ece ece = { .vendor_id = 0x1234, .options = 7 };
	struct ibv_qp_attr attr;
	struct rdma_cm_id *child;
	int mask;

	printf("== queue pairs of the program's own\n");
	TELL(rdma_set_local_ece(client, &ece));
	TELL(rdma_connect(client, &param));
	child = tell_event(other);
	TELL(rdma_get_remote_ece(child, &ece));
	printf("  options %x %x\n", ece.vendor_id, ece.options);
	for (int state = IBV_QPS_INIT; state <= IBV_QPS_RTS; state++) {
		memset(&attr, 0, sizeof(attr));
		attr.qp_state = state;
		TELL(rdma_init_qp_attr(child, &attr, &mask));
		printf("  mask %x, mtu %d, destination %d, access %x, timeout %d, retries %d %d, "
		       "atomics %d %d, port %d, hop limit %d, global %d\n",
		       mask, attr.path_mtu, attr.dest_qp_num, attr.qp_access_flags, attr.timeout,
		       attr.retry_cnt, attr.rnr_retry, attr.max_rd_atomic, attr.max_dest_rd_atomic,
		       attr.port_num, attr.ah_attr.grh.hop_limit, attr.ah_attr.is_global);
	}
	param.qp_num = 78;
	TELL(rdma_set_local_ece(child, &ece));
	TELL(rdma_accept(child, &param));
	tell_event(channel);
	TELL(rdma_get_remote_ece(client, &ece));
	printf("  options %x %x\n", ece.vendor_id, ece.options);
	TELL(rdma_establish(client));
	tell_event(other);
	TELL(rdma_disconnect(child));
	tell_event(channel);
	TELL(rdma_disconnect(client));
	tell_event(other);
	TELL(rdma_destroy_id(child));
	TELL(rdma_destroy_id(client));
	TELL(rdma_destroy_id(server));
}

static void datagrams(struct rdma_event_channel *channel, struct rdma_event_channel *other)
{
	struct rdma_conn_param param = { .private_data = "datagram", .private_data_len = 9 };
	struct rdma_cm_id *server = listener(other, RDMA_PS_UDP);
	struct rdma_cm_id *client = caller(channel, RDMA_PS_UDP, LISTEN_PORT);
	struct rdma_cm_join_mc_attr_ex join = { .comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS };
	struct rdma_cm_event *event;
	struct rdma_cm_id *child;

	printf("== datagrams\n");
	TELL(queue_pair(client, NULL, 4));
	printf("  state %d\n", client->qp->state);
	TELL(rdma_connect(client, &param));
	child = tell_event(other);
	TELL(queue_pair(child, NULL, 4));
	TELL(rdma_accept(child, &(struct rdma_conn_param){ .qp_num = child->qp->qp_num }));
	event = next(channel);
	printf("  event %s, status %d, private data %d, key %x, qp %s, global %d\n",
	       rdma_event_str(event->event), event->status, event->param.ud.private_data_len,
	       event->param.ud.qkey, event->param.ud.qp_num == child->qp->qp_num ? "its" : "another",
	       event->param.ud.ah_attr.is_global);
	rdma_ack_cm_event(event);
	rdma_destroy_ep(child);
	rdma_destroy_ep(client);
	TELL(rdma_destroy_id(server));

	printf("== groups\n");
	TELL(rdma_create_id(channel, &client, "member", RDMA_PS_UDP));
	TELL(rdma_join_multicast(client, address("239.7.7.8", 0), "unbound"));
	TELL(rdma_bind_addr(client, here(0)));
	TELL(queue_pair(client, NULL, 4));
	TELL(rdma_join_multicast_ex(client, &join, NULL));
	join.comp_mask = 4;
	TELL(rdma_join_multicast_ex(client, &join, NULL));
	join.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
	join.join_flags = 9;
	join.addr = address("239.7.7.9", 0);
	TELL(rdma_join_multicast_ex(client, &join, NULL));
	TELL(rdma_join_multicast(client, address("239.7.7.8", 0), "the group"));
	event = next(channel);
	printf("  event %s, status %d, private data %s, qp %x, key %x, gid %d\n",
	       rdma_event_str(event->event), event->status,
	       (const char *)event->param.ud.private_data, event->param.ud.qp_num,
	       event->param.ud.qkey, event->param.ud.ah_attr.grh.dgid.raw[15]);
	rdma_ack_cm_event(event);
	TELL(rdma_join_multicast(client, address("239.7.7.8", 0), "again"));
	TELL(rdma_leave_multicast(client, address("239.7.7.9", 0)));
	TELL(rdma_leave_multicast(client, address("239.7.7.8", 0)));
	rdma_destroy_ep(client);
}

static void tell_list(struct rdma_addrinfo *list)
{
	for (struct rdma_addrinfo *each = list; each; each = each->ai_next)
		printf("  flags %x, family %d, type %d, port space %x, source %d, destination %d, "
		       "connect %zu, %s\n",
		       each->ai_flags, each->ai_family, each->ai_qp_type, each->ai_port_space,
		       each->ai_flags & RAI_PASSIVE ? (int)each->ai_src_len : 0, each->ai_dst_len,
		       each->ai_connect_len, each->ai_next ? "more" : "the last");
}

/* A numeric look-up has one result with every library. */
static struct rdma_addrinfo *look_up(const char *node, int flags, int space)
{
	struct rdma_addrinfo hints = { .ai_flags = flags | RAI_NUMERICHOST, .ai_port_space = space };
	struct rdma_addrinfo *list = NULL;

	TELL(rdma_getaddrinfo(node, "7480", &hints, &list));
	tell_list(list);
	return list;
}

static void endpoints(const char *node)
{
	struct rdma_addrinfo *there = look_up(node, 0, RDMA_PS_TCP);
	struct rdma_addrinfo *here_ = look_up(node, RAI_PASSIVE, RDMA_PS_TCP);
	struct rdma_addrinfo *datagrams_ = look_up(node, 0, RDMA_PS_UDP);
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.sq_sig_all = 1,
	};
	struct ibv_qp_init_attr again = attr;
	struct rdma_cm_id *server, *client;

	printf("== endpoints\n");
	TELL(rdma_create_ep(&server, here_, NULL, &attr));
	tell_id("endpoint of a listener", server);
	TELL(rdma_listen(server, 4));
	TELL(rdma_create_ep(&client, there, NULL, &again));
	tell_id("endpoint of a caller", client);
	printf("  type %d, synchronous %s\n", again.qp_type, client->event ? "yes" : "no");
	rdma_destroy_ep(client);
	rdma_destroy_ep(server);
	TELL(rdma_create_ep(&client, datagrams_, NULL, NULL));
	tell_id("endpoint without a queue pair", client);
	rdma_destroy_ep(client);
	rdma_freeaddrinfo(datagrams_);
	rdma_freeaddrinfo(here_);
	rdma_freeaddrinfo(there);
}

static void extended_queues(struct rdma_event_channel *channel)
{
	struct rdma_cm_id *id = caller(channel, RDMA_PS_TCP, LISTEN_PORT);
	struct ibv_qp_init_attr_ex attr = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_srq_init_attr_ex srq = {
		.attr = { .max_wr = 4, .max_sge = 1 },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD,
		.srq_type = IBV_SRQT_BASIC,
	};

	printf("== extended queues\n");
	srq.pd = id->pd;
	TELL(rdma_create_srq_ex(id, &srq));
	printf("  shared receive queue %s\n", id->srq ? "there" : "none");
	TELL(rdma_create_qp_ex(id, &attr));
	printf("  queue pair %s, its receives %s\n", id->qp ? "there" : "none",
	       id->qp && id->qp->srq == id->srq ? "shared" : "its own");
	TELL(rdma_create_qp_ex(id, &attr));
	rdma_destroy_qp(id);
	rdma_destroy_srq(id);
	printf("  left: %d %d %d %d\n", !!id->qp, !!id->srq, !!id->send_cq, !!id->recv_cq);
	TELL(rdma_destroy_id(id));
}

static void devices(void)
{
	struct rdma_cm_id *id;
	struct ibv_context **list;
	int count = 0, is_listed = 0;

	printf("== devices\n");
	TELL(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	TELL(rdma_bind_addr(id, here(0)));
	list = rdma_get_devices(&count);
	for (int i = 0; list && list[i]; i++)
		is_listed += list[i] == id->verbs;
	printf("  devices %s, ends with none %s, the id's listed %d\n", count > 0 ? "some" : "none",
	       list && !list[count] ? "yes" : "no", is_listed);
	rdma_free_devices(list);
	TELL(rdma_destroy_id(id));
}

static void polling(struct rdma_event_channel *channel)
{
	struct pollfd ready = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_id *id;

	printf("== polling\n");
	TELL(rpoll(&ready, 1, 0));
	TELL(rdma_create_id(channel, &id, "polled", RDMA_PS_TCP));
	TELL(rdma_resolve_addr(id, NULL, here(LISTEN_PORT), 1000));
	TELL(rpoll(&ready, 1, PATIENCE_MS) == 1 ? 0 : -1);
	tell_event(channel);
	TELL(rpoll(&ready, 1, 0));
	TELL(rdma_destroy_id(id));
}

static void synchronous(void)
{
	struct rdma_cm_id *id;

	printf("== synchronous ids\n");
	TELL(rdma_create_id(NULL, &id, "synchronous", RDMA_PS_TCP));
	TELL(rdma_migrate_id(id, NULL));
	TELL(rdma_resolve_addr(id, NULL, here(LISTEN_PORT + 6), 1000));
	printf("  kept %s\n", id->event ? rdma_event_str(id->event->event) : "nothing");
	TELL(rdma_resolve_route(id, 1000));
	printf("  kept %s\n", id->event ? rdma_event_str(id->event->event) : "nothing");
	TELL(queue_pair(id, NULL, 4));
	TELL(rdma_connect(id, NULL));
	printf("  kept %s\n", id->event ? rdma_event_str(id->event->event) : "nothing");
	rdma_destroy_ep(id);
}

int main(int argc, char **argv)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_event_channel *other = rdma_create_event_channel();

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc < 2 || argc > 3 || !channel || !other)
		return 2;
	if (argc == 3)
		patience_ms = atoi(argv[2]);
	local.sin_family = AF_INET;
	inet_pton(AF_INET, argv[1], &local.sin_addr);
	names();
	idle_ids(channel);
	binding(channel);
	resolving(channel);
	queue_pairs(channel);
	connecting(channel, other);
	own_queue_pairs(channel, other);
	datagrams(channel, other);
	synchronous();
	endpoints(argv[1]);
	extended_queues(channel);
	devices();
	polling(channel);
	rdma_destroy_event_channel(channel);
	rdma_destroy_event_channel(other);
	printf("== end\n");
	return 0;
}
