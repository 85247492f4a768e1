/*
 * The far end of `portolan-verify`, over the machine's libibverbs and librdmacm. It executes one requested
 * operation after the other and reports whether the received data are the sent data. The messages are documented in
 * crates/cli/examples/verify/message.rs.
 *
 *   verify serve ADDRESS PORT                 serves one connection
 *   verify read ADDRESS PORT LENGTH COUNT     asks another `verify serve` for reads, and prints their times
 *
 * Exits with 0 if the peer disconnected while no operation was in progress, and all data read were right.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
	/* The longest message that rdma_rxe accepts. */
	LENGTH_MAX = 8 << 20,
	/* Around the data, to detect writes beside it. */
	GUARD = 64,
	GUARD_BYTE = 0xa5,
	WORD = 8,
	AREA = GUARD + WORD + LENGTH_MAX + GUARD,
	/* Concurrent reads and atomics, in each direction. */
	READS_MAX = 16,
	RESOLVE_TIMEOUT_MS = 20000,
	/* Far longer than the slowest operation takes on a network that loses packets. */
	PATIENCE_MS = 600000,
	COUNT_MAX = 1000000,
};

enum kind { REQUEST = 1, READY, DONE, VERDICT };
enum operation { SEND = 1, WRITE, READ, FETCH_ADD, COMPARE_SWAP };
enum initiator { ASKER = 1, ASKED };
enum outcome { RIGHT, WRONG_DATA, WRONG_LENGTH, WRONG_NEIGHBOUR };

#define MAGIC 0x50766679

/* All in network order. */
struct message {
	uint32_t magic;
	uint8_t kind, operation, initiator, outcome;
	uint32_t length, rkey;
	uint64_t addr, seed, operand, swap, offset, reserved;
};

/* The purpose of a work request: its wr_id. */
enum work { RECEIVE_MESSAGE, SEND_MESSAGE, RECEIVE_DATA, MOVE_DATA, WORKS };

struct connection {
	struct rdma_event_channel *events;
	struct rdma_cm_id *id;
	struct ibv_comp_channel *completions;
	struct ibv_cq *cq;
	struct ibv_mr *area_mr, *messages_mr;
	unsigned char *area;
	/* A received message and a sent one. */
	struct message *messages;
	unsigned ended[WORKS];
	uint32_t received_bytes;
	int is_established, is_disconnected;
};

static void die(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fprintf(stderr, "\n");
	exit(1);
}

/* A number of 1 to `max`. */
static uint32_t number_of(const char *text, uint32_t max)
{
	char *end;
	unsigned long value = strtoul(text, &end, 10);

	if (*text < '0' || *text > '9' || *end || value < 1 || value > max)
		die("%s is not a number from 1 to %u", text, max);
	return value;
}

static void must(int is_good, const char *what)
{
	if (!is_good)
		die("%s: %m", what);
}

/* --- data --- */

static uint64_t pattern_word(uint64_t seed, uint64_t number)
{
	uint64_t word = seed + number * 0x9e3779b97f4a7c15;

	word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9;
	word = (word ^ word >> 27) * 0x94d049bb133111eb;
	return htole64(word ^ word >> 31);
}

/* XORs each byte with `flip`: 0 for the pattern, or 0xff so that no byte equals the pattern's. */
static void fill(unsigned char *data, uint32_t length, uint64_t seed, unsigned char flip)
{
	uint64_t flips = flip * 0x0101010101010101u;

	for (uint32_t at = 0; at < length; at += WORD) {
		uint64_t word = pattern_word(seed, at / WORD) ^ flips;

		memcpy(data + at, &word, length - at < WORD ? length - at : WORD);
	}
	memset(data - GUARD, GUARD_BYTE, GUARD);
	memset(data + length, GUARD_BYTE, GUARD);
}

static enum outcome check(const unsigned char *data, uint32_t length, uint64_t seed, uint64_t *offset)
{
	for (uint32_t at = 0; at < length; at += WORD) {
		uint32_t bytes = length - at < WORD ? length - at : WORD;
		uint64_t word = pattern_word(seed, at / WORD), found = word;

		memcpy(&found, data + at, bytes);
		if (found != word) {
			*offset = at + __builtin_ctzll(le64toh(found ^ word)) / 8;
			return WRONG_DATA;
		}
	}
	for (int at = 0; at < GUARD; at++)
		if (data[at - GUARD] != GUARD_BYTE || data[length + at] != GUARD_BYTE)
			return WRONG_NEIGHBOUR;
	return RIGHT;
}

/* Address of a request's data. Words must be aligned, other data need not be. */
static unsigned char *place(struct connection *c, const struct message *request)
{
	uint64_t offset = be64toh(request->offset);

	if (request->operation == FETCH_ADD || request->operation == COMPARE_SWAP) {
		if (offset % WORD || offset > LENGTH_MAX - WORD)
			die("a word at %llu", (unsigned long long)offset);
		return c->area + GUARD + offset;
	}
	return c->area + GUARD + ntohl(request->length) % WORD;
}

/* --- work --- */

static void post_receive(struct connection *c, enum work work, void *to, uint32_t length, struct ibv_mr *mr)
{
	struct ibv_sge piece = { .addr = (uintptr_t)to, .length = length, .lkey = mr->lkey };
	struct ibv_recv_wr request = { .wr_id = work, .sg_list = &piece, .num_sge = 1 }, *bad;

	must(!ibv_post_recv(c->id->qp, &request, &bad), "ibv_post_recv");
}

static void post_send(struct connection *c, struct ibv_send_wr *request, void *from, uint32_t length,
		      struct ibv_mr *mr)
{
	struct ibv_sge piece = { .addr = (uintptr_t)from, .length = length, .lkey = mr->lkey };
	struct ibv_send_wr *bad;

	request->sg_list = &piece;
	request->num_sge = 1;
	request->send_flags = IBV_SEND_SIGNALED;
	must(!ibv_post_send(c->id->qp, request, &bad), "ibv_post_send");
}

static void take_event(struct connection *c)
{
	struct rdma_cm_event *event;

	must(!rdma_get_cm_event(c->events, &event), "rdma_get_cm_event");
	if (event->event == RDMA_CM_EVENT_ESTABLISHED)
		c->is_established = 1;
	else if (event->event == RDMA_CM_EVENT_DISCONNECTED)
		c->is_disconnected = 1;
	else
		die("%s, status %d", rdma_event_str(event->event), event->status);
	rdma_ack_cm_event(event);
}

static void take_completions(struct connection *c)
{
	struct ibv_wc completion;
	int taken;

	while ((taken = ibv_poll_cq(c->cq, 1, &completion)) > 0) {
		if (completion.status == IBV_WC_WR_FLUSH_ERR) {
			c->is_disconnected = 1;
			continue;
		}
		if (completion.status != IBV_WC_SUCCESS)
			die("work %d: %s", (int)completion.wr_id, ibv_wc_status_str(completion.status));
		c->ended[completion.wr_id]++;
		if (completion.wr_id == RECEIVE_DATA)
			c->received_bytes = completion.byte_len;
	}
	must(taken == 0, "ibv_poll_cq");
}

static void sleep_until_something(struct connection *c)
{
	struct pollfd watched[] = {
		{ .fd = c->completions->fd, .events = POLLIN },
		{ .fd = c->events->fd, .events = POLLIN },
	};
	struct ibv_cq *cq;
	void *context;

	if (poll(watched, 2, PATIENCE_MS) <= 0)
		die("nothing happened in %d ms", PATIENCE_MS);
	if (watched[0].revents) {
		must(!ibv_get_cq_event(c->completions, &cq, &context), "ibv_get_cq_event");
		ibv_ack_cq_events(cq, 1);
		must(!ibv_req_notify_cq(c->cq, 0), "ibv_req_notify_cq");
	}
	if (watched[1].revents)
		take_event(c);
}

/* Waits until a piece of work completes; 0 if the peer disconnected instead. */
static int await_work(struct connection *c, enum work work)
{
	for (;;) {
		take_completions(c);
		if (c->ended[work]) {
			c->ended[work]--;
			return 1;
		}
		if (c->is_disconnected)
			return 0;
		sleep_until_something(c);
	}
}

static void must_end(struct connection *c, enum work work)
{
	if (!await_work(c, work))
		die("the peer disconnected while work was in progress");
}

/* --- messages --- */

static void await_next_message(struct connection *c)
{
	post_receive(c, RECEIVE_MESSAGE, &c->messages[0], sizeof(struct message), c->messages_mr);
}

static void send_message(struct connection *c, struct message message, enum kind kind)
{
	struct ibv_send_wr request = { .wr_id = SEND_MESSAGE, .opcode = IBV_WR_SEND };

	message.magic = htonl(MAGIC);
	message.kind = kind;
	c->messages[1] = message;
	post_send(c, &request, &c->messages[1], sizeof(message), c->messages_mr);
}

static void tell(struct connection *c, struct message message, enum kind kind)
{
	send_message(c, message, kind);
	must_end(c, SEND_MESSAGE);
}

/*
 * The asker may disconnect once it has the last verdict. If its acknowledgement is lost, it never arrives. The
 * asker reports the verdict itself.
 */
static void tell_verdict(struct connection *c, struct message verdict)
{
	send_message(c, verdict, VERDICT);
	await_work(c, SEND_MESSAGE);
}

/* Executes an operation on the asker's memory, or sends to it. */
static void move_data(struct connection *c, const struct message *request, unsigned char *data)
{
	static const enum ibv_wr_opcode opcodes[] = {
		[SEND] = IBV_WR_SEND,
		[WRITE] = IBV_WR_RDMA_WRITE,
		[READ] = IBV_WR_RDMA_READ,
		[FETCH_ADD] = IBV_WR_ATOMIC_FETCH_AND_ADD,
		[COMPARE_SWAP] = IBV_WR_ATOMIC_CMP_AND_SWP,
	};
	struct ibv_send_wr work = { .wr_id = MOVE_DATA, .opcode = opcodes[request->operation] };

	if (request->operation >= FETCH_ADD) {
		work.wr.atomic.remote_addr = be64toh(request->addr);
		work.wr.atomic.rkey = ntohl(request->rkey);
		work.wr.atomic.compare_add = be64toh(request->operand);
		work.wr.atomic.swap = be64toh(request->swap);
	} else {
		work.wr.rdma.remote_addr = be64toh(request->addr);
		work.wr.rdma.rkey = ntohl(request->rkey);
	}
	post_send(c, &work, data, ntohl(request->length), c->area_mr);
	must_end(c, MOVE_DATA);
}

/* --- serving --- */

static struct message word_at(struct message message, const unsigned char *data)
{
	uint64_t word;

	memcpy(&word, data, WORD);
	message.operand = htobe64(word);
	return message;
}

static struct message checked(struct message message, const unsigned char *data)
{
	uint64_t offset = 0;

	message.outcome = check(data, ntohl(message.length), be64toh(message.seed), &offset);
	message.offset = htobe64(offset);
	return message;
}

/* The asker will execute the operation: prepares what it will find here, or what it will overwrite. */
static void prepare(struct connection *c, struct message request)
{
	unsigned char *data = place(c, &request);
	uint32_t length = ntohl(request.length);
	uint64_t seed = be64toh(request.seed);

	if (request.operation >= FETCH_ADD)
		memcpy(data, &seed, WORD);
	else
		fill(data, length, seed, request.operation == READ ? 0 : 0xff);
	if (request.operation == SEND)
		post_receive(c, RECEIVE_DATA, data, length, c->area_mr);
	await_next_message(c);
	request.addr = htobe64((uintptr_t)data);
	request.rkey = htonl(c->area_mr->rkey);
	tell(c, request, READY);
}

/* The asker has executed the operation. */
static void judge(struct connection *c, struct message request)
{
	unsigned char *data = place(c, &request);
	struct message verdict = request;

	await_next_message(c);
	if (request.operation >= FETCH_ADD)
		verdict = word_at(verdict, data);
	else
		verdict = checked(verdict, data);
	if (request.operation == SEND) {
		must_end(c, RECEIVE_DATA);
		if (c->received_bytes != ntohl(request.length))
			verdict.outcome = WRONG_LENGTH;
	}
	tell_verdict(c, verdict);
}

/* Executes the operation here, on the asker's memory. */
static void carry_out(struct connection *c, struct message request)
{
	unsigned char *data = place(c, &request);
	struct message verdict = request;

	await_next_message(c);
	fill(data, ntohl(request.length), be64toh(request.seed), request.operation == READ ? 0xff : 0);
	move_data(c, &request, data);
	if (request.operation >= FETCH_ADD)
		verdict = word_at(verdict, data);
	else
		verdict = checked(verdict, data);
	tell_verdict(c, verdict);
}

static void serve(struct connection *c)
{
	struct message request = { .kind = 0 }, message;
	unsigned served = 0;

	while (await_work(c, RECEIVE_MESSAGE)) {
		message = c->messages[0];
		if (message.magic != htonl(MAGIC) || message.operation < SEND ||
		    message.operation > COMPARE_SWAP || ntohl(message.length) > LENGTH_MAX ||
		    (message.operation >= FETCH_ADD && ntohl(message.length) != WORD))
			die("a malformed message");
		if (message.kind == DONE && request.kind == REQUEST) {
			judge(c, request);
			request.kind = 0;
		} else if (message.kind != REQUEST || request.kind) {
			die("a message of kind %d is out of order", message.kind);
		} else if (message.initiator == ASKER) {
			request = message;
			prepare(c, request);
		} else {
			carry_out(c, message);
		}
		served += message.kind == REQUEST;
	}
	printf("%u requests served\n", served);
	if (request.kind)
		die("the peer disconnected in the middle of a request");
}

/* --- asking --- */

static double now_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

static struct message answer(struct connection *c, enum kind kind)
{
	must_end(c, RECEIVE_MESSAGE);
	if (c->messages[0].magic != htonl(MAGIC) || c->messages[0].kind != kind)
		die("a message of kind %d instead of %d", c->messages[0].kind, kind);
	if (c->messages[0].operation < SEND || c->messages[0].operation > COMPARE_SWAP)
		die("no operation: %d", c->messages[0].operation);
	return c->messages[0];
}

static void ask_for_reads(struct connection *c, uint32_t length, unsigned count)
{
	for (unsigned number = 0; number < count; number++) {
		struct message request = {
			.operation = READ,
			.initiator = ASKER,
			.length = htonl(length),
			.seed = htobe64(number + 1),
		};
		unsigned char *data = place(c, &request);
		struct message ready;
		double started;

		fill(data, length, number + 1, 0xff);
		tell(c, request, REQUEST);
		ready = answer(c, READY);
		/* The peer's answer contains only the address. */
		request.addr = ready.addr;
		request.rkey = ready.rkey;
		await_next_message(c);
		started = now_s();
		move_data(c, &request, data);
		printf("read of %u bytes: %.3f s\n", length, now_s() - started);
		fflush(stdout);
		if (checked(request, data).outcome != RIGHT)
			die("what was read is wrong");
		tell(c, request, DONE);
		if (answer(c, VERDICT).outcome != RIGHT)
			die("the peer found something wrong");
		await_next_message(c);
	}
	must(!rdma_disconnect(c->id), "rdma_disconnect");
}

/* --- connecting --- */

static struct rdma_cm_event *await_event(struct connection *c, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;

	must(!rdma_get_cm_event(c->events, &event), "rdma_get_cm_event");
	if (event->event != type)
		die("%s, status %d, instead of %s", rdma_event_str(event->event), event->status,
		    rdma_event_str(type));
	return event;
}

static void make_queue_pair(struct connection *c)
{
	struct ibv_qp_init_attr attributes = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};

	c->completions = ibv_create_comp_channel(c->id->verbs);
	must(c->completions != NULL, "ibv_create_comp_channel");
	c->cq = ibv_create_cq(c->id->verbs, 2 * WORKS, NULL, c->completions, 0);
	must(c->cq != NULL, "ibv_create_cq");
	must(!ibv_req_notify_cq(c->cq, 0), "ibv_req_notify_cq");
	attributes.send_cq = attributes.recv_cq = c->cq;
	/* In the device's protection domain that librdmacm keeps. */
	must(!rdma_create_qp(c->id, NULL, &attributes), "rdma_create_qp");
	must(!posix_memalign((void **)&c->area, GUARD, AREA), "memory");
	must(!posix_memalign((void **)&c->messages, GUARD, 2 * sizeof(struct message)), "memory");
	memset(c->area, 0, AREA);
	c->area_mr = ibv_reg_mr(c->id->pd, c->area, AREA,
				IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
					IBV_ACCESS_REMOTE_ATOMIC);
	c->messages_mr = ibv_reg_mr(c->id->pd, c->messages, 2 * sizeof(struct message), IBV_ACCESS_LOCAL_WRITE);
	must(c->area_mr && c->messages_mr, "ibv_reg_mr");
	await_next_message(c);
}

static struct sockaddr_storage address(const char *text, const char *port)
{
	struct sockaddr_storage storage = { 0 };
	struct sockaddr_in *v4 = (void *)&storage;
	struct sockaddr_in6 *v6 = (void *)&storage;

	if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons(atoi(port));
	} else if (inet_pton(AF_INET6, text, &v6->sin6_addr) == 1) {
		v6->sin6_family = AF_INET6;
		v6->sin6_port = htons(atoi(port));
	} else {
		die("no address: %s", text);
	}
	return storage;
}

static struct rdma_conn_param parameters = {
	.responder_resources = READS_MAX,
	.initiator_depth = READS_MAX,
	.retry_count = 7,
	.rnr_retry_count = 7,
};

static void accept_one(struct connection *c, const char *text, const char *port)
{
	struct sockaddr_storage at = address(text, port);
	struct rdma_cm_id *listener;
	struct rdma_cm_event *event;

	must(!rdma_create_id(c->events, &listener, NULL, RDMA_PS_TCP), "rdma_create_id");
	must(!rdma_bind_addr(listener, (struct sockaddr *)&at), "rdma_bind_addr");
	must(!rdma_listen(listener, 1), "rdma_listen");
	printf("listening on %s port %s\n", text, port);
	fflush(stdout);
	event = await_event(c, RDMA_CM_EVENT_CONNECT_REQUEST);
	c->id = event->id;
	make_queue_pair(c);
	must(!rdma_accept(c->id, &parameters), "rdma_accept");
	rdma_ack_cm_event(event);
	while (!c->is_established)
		take_event(c);
}

static void connect_to(struct connection *c, const char *text, const char *port)
{
	struct sockaddr_storage at = address(text, port);

	must(!rdma_create_id(c->events, &c->id, NULL, RDMA_PS_TCP), "rdma_create_id");
	must(!rdma_resolve_addr(c->id, NULL, (struct sockaddr *)&at, RESOLVE_TIMEOUT_MS), "rdma_resolve_addr");
	rdma_ack_cm_event(await_event(c, RDMA_CM_EVENT_ADDR_RESOLVED));
	must(!rdma_resolve_route(c->id, RESOLVE_TIMEOUT_MS), "rdma_resolve_route");
	rdma_ack_cm_event(await_event(c, RDMA_CM_EVENT_ROUTE_RESOLVED));
	make_queue_pair(c);
	must(!rdma_connect(c->id, &parameters), "rdma_connect");
	rdma_ack_cm_event(await_event(c, RDMA_CM_EVENT_ESTABLISHED));
}

int main(int count, char **words)
{
	struct connection c = { 0 };

	c.events = rdma_create_event_channel();
	must(c.events != NULL, "rdma_create_event_channel");
	if (count == 4 && !strcmp(words[1], "serve")) {
		accept_one(&c, words[2], words[3]);
		serve(&c);
	} else if (count == 6 && !strcmp(words[1], "read")) {
		connect_to(&c, words[2], words[3]);
		ask_for_reads(&c, number_of(words[4], LENGTH_MAX), number_of(words[5], COUNT_MAX));
	} else {
		die("verify serve ADDRESS PORT | verify read ADDRESS PORT LENGTH COUNT");
	}
	return 0;
}
