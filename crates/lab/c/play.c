/*
 * Plays a connection management scenario with librdmacm. Prints what every call returned and what every event
 * carried, one JSON object per line. Its twin over this project's library is src/bin/play, which documents the
 * commands.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
	ROLES_MAX = 32,
	CHANNELS_MAX = 16,
	WORDS_MAX = 16,
	LINE_MAX_BYTES = 1024,
	PRIVATE_DATA_MAX = 256,
	/* Ports from this one on are chosen by the system. */
	EPHEMERAL_PORT = 32768,
	RESOLVE_TIMEOUT_MS = 5000,
	FLOW_LABEL_MASK = 0xfffff,
};

struct channel {
	char name[16];
	struct rdma_event_channel *channel;
};

/* An id, under its name in the scenario. */
struct role {
	char name[16];
	struct rdma_cm_id *id;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	uint32_t qp_num;
};

static struct channel channels[CHANNELS_MAX];
static struct role roles[ROLES_MAX];
static int line_number;
/* Time limit of an event. */
static int patience_ms;

static void die(const char *format, ...)
{
	va_list arguments;

	fprintf(stderr, "line %d: ", line_number);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
	exit(2);
}

static struct channel *channel_named(const char *name)
{
	for (int at = 0; at < CHANNELS_MAX; at++)
		if (channels[at].channel && !strcmp(channels[at].name, name))
			return &channels[at];
	die("no channel %s", name);
	return NULL;
}

static struct role *role_named(const char *name)
{
	for (int at = 0; at < ROLES_MAX; at++)
		if (!strcmp(roles[at].name, name))
			return &roles[at];
	die("no id %s", name);
	return NULL;
}

static const char *role_of(struct rdma_cm_id *id)
{
	for (int at = 0; at < ROLES_MAX; at++)
		if (id && roles[at].id == id)
			return roles[at].name;
	return id ? "unknown" : "";
}

static struct role *new_role(const char *name, struct rdma_cm_id *id)
{
	for (int at = 0; at < ROLES_MAX; at++) {
		if (roles[at].name[0])
			continue;
		snprintf(roles[at].name, sizeof(roles[at].name), "%s", name);
		roles[at].id = id;
		return &roles[at];
	}
	die("too many ids");
	return NULL;
}

/* "-": none. "WORD": its bytes. "WORD:LENGTH": LENGTH bytes that repeat WORD. */
static uint8_t private_data(const char *text, unsigned char *data)
{
	const char *colon = strchr(text, ':');
	size_t word = colon ? (size_t)(colon - text) : strlen(text);
	size_t length = colon ? strtoul(colon + 1, NULL, 10) : word;

	if (!strcmp(text, "-"))
		return 0;
	if (!word || length > 255)
		die("bad private data %s", text);
	for (size_t at = 0; at < length; at++)
		data[at] = text[at % word];
	return length;
}

static struct sockaddr *address(const char *text, const char *port, struct sockaddr_storage *out)
{
	struct sockaddr_in *v4 = (void *)out;
	struct sockaddr_in6 *v6 = (void *)out;

	memset(out, 0, sizeof(*out));
	if (!strcmp(text, "-"))
		return NULL;
	if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons(atoi(port));
	} else if (inet_pton(AF_INET6, text, &v6->sin6_addr) == 1) {
		v6->sin6_family = AF_INET6;
		v6->sin6_port = htons(atoi(port));
	} else {
		die("bad address %s", text);
	}
	return (struct sockaddr *)out;
}

static int is_unspecified(const struct sockaddr *address)
{
	static const struct in6_addr none;

	if (address->sa_family == AF_INET)
		return !((const struct sockaddr_in *)address)->sin_addr.s_addr;
	return !memcmp(&((const struct sockaddr_in6 *)address)->sin6_addr, &none, sizeof(none));
}

static void print_address(const char *name, const struct sockaddr *address)
{
	char text[INET6_ADDRSTRLEN] = "", port_text[16];
	const struct sockaddr_in *v4 = (const void *)address;
	const struct sockaddr_in6 *v6 = (const void *)address;
	unsigned int port = 0;

	if (is_unspecified(address) && !strcmp(name, "peer")) {
		/* An unknown address in C. */
	} else if (address->sa_family == AF_INET) {
		inet_ntop(AF_INET, &v4->sin_addr, text, sizeof(text));
		port = ntohs(v4->sin_port);
	} else if (address->sa_family == AF_INET6) {
		inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof(text));
		port = ntohs(v6->sin6_port);
	}
	snprintf(port_text, sizeof(port_text), "%u", port);
	printf(",\"%s\":\"%s\",\"%s_port\":\"%s\"", name, text, name,
	       port >= EPHEMERAL_PORT ? "ephemeral" : port_text);
}

static void print_gid(const char *name, const union ibv_gid *gid)
{
	printf(",\"%s\":\"", name);
	for (int at = 0; at < 16; at++)
		printf("%02x", gid->raw[at]);
	printf("\"");
}

/* The id that owns a queue pair, or the number itself if the scenario made it up. */
static void print_qp(uint32_t qp_num)
{
	for (int at = 0; at < ROLES_MAX; at++) {
		if (qp_num && roles[at].qp_num == qp_num) {
			printf(",\"qp_num\":\"of %s\"", roles[at].name);
			return;
		}
	}
	printf(",\"qp_num\":\"%u\"", qp_num);
}

static void print_private_data(const unsigned char *data, uint8_t length)
{
	printf(",\"private_data_length\":%u,\"private_data\":\"", length);
	for (int at = 0; at < length; at++)
		printf("%02x", data[at]);
	printf("\"");
}

static void print_conn(const struct rdma_conn_param *conn)
{
	print_private_data(conn->private_data, conn->private_data_len);
	printf(",\"responder_resources\":%u,\"initiator_depth\":%u,\"flow_control\":%s", conn->responder_resources,
	       conn->initiator_depth, conn->flow_control ? "true" : "false");
	printf(",\"retry_count\":%u,\"rnr_retry_count\":%u,\"srq\":%s", conn->retry_count, conn->rnr_retry_count,
	       conn->srq ? "true" : "false");
	print_qp(conn->qp_num);
}

static void print_ud(struct rdma_cm_id *id, const struct rdma_ud_param *ud, int is_group)
{
	const struct ibv_global_route *grh = &ud->ah_attr.grh;
	union ibv_gid none = {}, sgid = {};

	if (is_group)
		printf(",\"context\":%lu,\"private_data_length\":%u", (unsigned long)ud->private_data, ud->private_data_len);
	else
		print_private_data(ud->private_data, ud->private_data_len);
	print_gid("dgid", &grh->dgid);
	/* GID tables differ between devices, so compare the GID and not its index. */
	if (memcmp(&grh->dgid, &none, sizeof(none)) && id->verbs)
		ibv_query_gid(id->verbs, ud->ah_attr.port_num, grh->sgid_index, &sgid);
	print_gid("sgid", &sgid);
	printf(",\"flow_label\":%u,\"hop_limit\":%u,\"traffic_class\":%u,\"sl\":%u,\"ah_port_num\":%u,\"qkey\":%u",
	       grh->flow_label, grh->hop_limit, grh->traffic_class, ud->ah_attr.sl, ud->ah_attr.port_num, ud->qkey);
	print_qp(ud->qp_num);
}

static void print_event(struct rdma_cm_event *event)
{
	struct rdma_cm_id *id = event->id;
	int is_group = event->event == RDMA_CM_EVENT_MULTICAST_JOIN || event->event == RDMA_CM_EVENT_MULTICAST_ERROR;
	struct ibv_ece ece = {};

	printf("{\"line\":%d,\"event\":\"%s\",\"number\":%d,\"status\":%d,\"id\":\"%s\",\"listener\":\"%s\"", line_number,
	       rdma_event_str(event->event), event->event, event->status, role_of(id), role_of(event->listen_id));
	print_address("local", rdma_get_local_addr(id));
	print_address("peer", rdma_get_peer_addr(id));
	printf(",\"device\":%s,\"port_num\":%u", id->verbs ? "true" : "false", id->port_num);
	if (id->qp_type == IBV_QPT_UD)
		print_ud(id, &event->param.ud, is_group);
	else
		print_conn(&event->param.conn);
	rdma_get_remote_ece(id, &ece);
	printf(",\"ece_vendor_id\":%u,\"ece_options\":%u}\n", ece.vendor_id, ece.options);
}

static long now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000L + now.tv_nsec / 1000000;
}

/* The next event of the channel, or NULL if there is none in time. */
static struct rdma_cm_event *next_event(struct channel *channel, int timeout_ms)
{
	long deadline = now_ms() + timeout_ms;
	struct pollfd pollfd = { .fd = channel->channel->fd, .events = POLLIN };
	struct rdma_cm_event *event;

	for (;;) {
		long left = deadline - now_ms();

		if (!rdma_get_cm_event(channel->channel, &event))
			return event;
		if (errno != EAGAIN)
			die("rdma_get_cm_event: %s", strerror(errno));
		if (left <= 0)
			return NULL;
		poll(&pollfd, 1, left);
	}
}

static void take_event(char **words, int count)
{
	struct rdma_cm_event *event = next_event(channel_named(words[1]), patience_ms);

	if (!event)
		die("no event in time");
	if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
		if (count < 3)
			die("a request without a name");
		new_role(words[2], event->id);
	}
	print_event(event);
	rdma_ack_cm_event(event);
}

/* The next event with this name. Skips the events before it, which depend on timing. */
static void take_until(char **words)
{
	for (;;) {
		struct rdma_cm_event *event = next_event(channel_named(words[1]), patience_ms);
		int is_it;

		if (!event)
			die("no such event in time");
		is_it = !strcmp(rdma_event_str(event->event), words[2]);
		if (is_it)
			print_event(event);
		rdma_ack_cm_event(event);
		if (is_it)
			return;
	}
}

static void be_silent(char **words)
{
	struct rdma_cm_event *event = next_event(channel_named(words[1]), atoi(words[2]));

	if (event) {
		print_event(event);
		rdma_ack_cm_event(event);
	} else {
		printf("{\"line\":%d,\"event\":\"none\"}\n", line_number);
	}
}

static void print_paths(struct rdma_cm_id *id)
{
	for (int at = 0; at < id->route.num_paths; at++) {
		struct ibv_sa_path_rec *path = &id->route.path_rec[at];

		printf("{\"line\":%d,\"path\":%d", line_number, at);
		print_gid("dgid", &path->dgid);
		print_gid("sgid", &path->sgid);
		printf(",\"flow_label\":%u,\"hop_limit\":%u,\"traffic_class\":%u,\"pkey\":%u,\"sl\":%u", ntohl(path->flow_label) & FLOW_LABEL_MASK,
		       path->hop_limit, path->traffic_class, ntohs(path->pkey), path->sl);
		printf(",\"mtu\":%u,\"rate\":%u,\"packet_life_time\":%u}\n", path->mtu, path->rate, path->packet_life_time);
	}
}

static int create_id(char **words)
{
	int is_ud = !strcmp(words[3], "ud");
	struct role *role = new_role(words[2], NULL);

	return rdma_create_id(channel_named(words[1])->channel, &role->id, NULL, is_ud ? RDMA_PS_UDP : RDMA_PS_TCP);
}

static int open_channel(char **words)
{
	struct channel *channel = channels;

	while (channel->channel)
		if (++channel == channels + CHANNELS_MAX)
			die("too many channels");
	channel->channel = rdma_create_event_channel();
	if (!channel->channel)
		return -1;
	snprintf(channel->name, sizeof(channel->name), "%s", words[1]);
	return fcntl(channel->channel->fd, F_SETFL, O_NONBLOCK);
}

static int create_qp(struct role *role, int shares_receives)
{
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_qp_init_attr init = {
		.qp_type = role->id->qp_type,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};

	if (!role->id->verbs)
		die("%s has no device", role->name);
	role->pd = ibv_alloc_pd(role->id->verbs);
	role->cq = ibv_create_cq(role->id->verbs, 4, NULL, NULL, 0);
	if (!role->pd || !role->cq)
		die("no protection domain or completion queue");
	if (shares_receives) {
		role->srq = ibv_create_srq(role->pd, &srq);
		if (!role->srq)
			die("no shared receive queue");
		init.srq = role->srq;
	}
	init.send_cq = init.recv_cq = role->cq;
	if (rdma_create_qp(role->id, role->pd, &init))
		return -1;
	role->qp_num = role->id->qp->qp_num;
	return 0;
}

static int join(struct role *role, char **words)
{
	struct sockaddr_storage storage;
	struct rdma_cm_join_mc_attr_ex attr = {
		.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
		.join_flags = strcmp(words[3], "full") ? RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER : RDMA_MC_JOIN_FLAG_FULLMEMBER,
		.addr = address(words[2], "0", &storage),
	};

	return rdma_join_multicast_ex(role->id, &attr, (void *)strtoul(words[4], NULL, 0));
}

static int destroy(struct role *role)
{
	struct role gone = *role;
	int result;

	/* Forget the name first: later events must not refer to it. */
	memset(role, 0, sizeof(*role));
	if (gone.id->qp)
		rdma_destroy_qp(gone.id);
	result = rdma_destroy_id(gone.id);
	if (gone.srq)
		ibv_destroy_srq(gone.srq);
	if (gone.cq)
		ibv_destroy_cq(gone.cq);
	if (gone.pd)
		ibv_dealloc_pd(gone.pd);
	return result;
}

static uint32_t number(char **words, int count, int at)
{
	return at < count ? strtoul(words[at], NULL, 0) : 0;
}

static int call(char **words, int count)
{
	unsigned char data[PRIVATE_DATA_MAX] = {};
	struct sockaddr_storage first, second;
	struct rdma_conn_param param = { .private_data = data };
	const char *verb = words[0];
	struct role *role;

	if (!strcmp(verb, "channel"))
		return open_channel(words);
	if (!strcmp(verb, "id"))
		return create_id(words);
	role = role_named(words[1]);
	if (!strcmp(verb, "bind"))
		return rdma_bind_addr(role->id, address(words[2], words[3], &first));
	if (!strcmp(verb, "listen"))
		return rdma_listen(role->id, atoi(words[2]));
	if (!strcmp(verb, "resolve"))
		return rdma_resolve_addr(role->id, address(words[2], words[3], &first), address(words[4], words[5], &second),
					 RESOLVE_TIMEOUT_MS);
	if (!strcmp(verb, "route"))
		return rdma_resolve_route(role->id, RESOLVE_TIMEOUT_MS);
	if (!strcmp(verb, "qp"))
		return create_qp(role, count > 2);
	if (!strcmp(verb, "connect") || !strcmp(verb, "accept")) {
		param.private_data_len = private_data(words[2], data);
		param.responder_resources = number(words, count, 3);
		param.initiator_depth = number(words, count, 4);
		param.flow_control = number(words, count, 5);
		param.retry_count = number(words, count, 6);
		param.rnr_retry_count = number(words, count, 7);
		param.qp_num = number(words, count, 8);
		param.srq = number(words, count, 9);
		return *verb == 'c' ? rdma_connect(role->id, &param) : rdma_accept(role->id, &param);
	}
	if (!strcmp(verb, "reject"))
		return rdma_reject(role->id, data, private_data(words[2], data));
	if (!strcmp(verb, "reject-ece"))
		return rdma_reject_ece(role->id, data, private_data(words[2], data));
	if (!strcmp(verb, "establish"))
		return rdma_establish(role->id);
	if (!strcmp(verb, "disconnect"))
		return rdma_disconnect(role->id);
	if (!strcmp(verb, "join"))
		return join(role, words);
	if (!strcmp(verb, "leave"))
		return rdma_leave_multicast(role->id, address(words[2], "0", &first));
	if (!strcmp(verb, "migrate"))
		return rdma_migrate_id(role->id, channel_named(words[2])->channel);
	if (!strcmp(verb, "ece")) {
		struct ibv_ece ece = { .vendor_id = number(words, count, 2), .options = number(words, count, 3) };

		return rdma_set_local_ece(role->id, &ece);
	}
	if (!strcmp(verb, "destroy"))
		return destroy(role);
	die("unknown command %s", verb);
	return -1;
}

static void perform(char **words, int count)
{
	int result;

	if (!strcmp(words[0], "event"))
		return take_event(words, count);
	if (!strcmp(words[0], "until"))
		return take_until(words);
	if (!strcmp(words[0], "silent"))
		return be_silent(words);
	if (!strcmp(words[0], "paths"))
		return print_paths(role_named(words[1])->id);
	errno = 0;
	result = call(words, count);
	printf("{\"line\":%d,\"call\":\"%s\",\"errno\":%d}\n", line_number, words[0], result ? errno : 0);
}

int main(int count_of_arguments, char **arguments)
{
	char line[LINE_MAX_BYTES], *words[WORDS_MAX], *rest;

	if (count_of_arguments != 2)
		die("usage: play-librdmacm SECONDS < SCENARIO");
	patience_ms = atoi(arguments[1]) * 1000;
	setlinebuf(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		int count = 0;

		line_number++;
		line[strcspn(line, "\n")] = 0;
		if (!strncmp(line, "sh ", 3)) {
			if (system(line + 3))
				die("failed: %s", line + 3);
			continue;
		}
		for (char *word = strtok_r(line, " ", &rest); word && count < WORDS_MAX - 1; word = strtok_r(NULL, " ", &rest))
			words[count++] = word;
		for (int at = count; at < WORDS_MAX; at++)
			words[at] = "";
		if (count && words[0][0] != '#')
			perform(words, count);
	}
	return 0;
}
