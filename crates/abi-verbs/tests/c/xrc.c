/*
 * Extended reliable connections: domains shared through a file, shared receive queues with their own completion
 * queues, queue pairs opened several times. Exits with 0, or prints the wrong line.
 */

#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(is_so) ((is_so) ? (void)0 : failed(__LINE__, #is_so))

static void failed(int line, const char *what) {
	fprintf(stderr, "line %d: %s (errno %d: %s)\n", line, what, errno, strerror(errno));
	exit(1);
}

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static union ibv_gid gid;
static char memory[8192] __attribute__((aligned(4096)));

static void open_loopback(void) {
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list);
	for (int at = 0; list[at]; at++)
		if (!strcmp(ibv_get_device_name(list[at]), "sw_lo"))
			context = ibv_open_device(list[at]);
	ibv_free_device_list(list);
	CHECK(context);
}

static struct ibv_xrcd *open_domain(int fd, int oflags) {
	struct ibv_xrcd_init_attr attr = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = fd, .oflags = oflags};
	return ibv_open_xrcd(context, &attr);
}

static struct ibv_srq *make_srq(struct ibv_xrcd *xrcd, struct ibv_cq *cq, uint32_t *number) {
	struct ibv_srq_init_attr_ex attr = {
		.attr = {.max_wr = 4, .max_sge = 1}, .srq_type = IBV_SRQT_XRC, .pd = pd, .xrcd = xrcd, .cq = cq,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD |
			IBV_SRQ_INIT_ATTR_CQ};
	struct ibv_srq *srq = ibv_create_srq_ex(context, &attr);
	CHECK(srq && attr.attr.max_wr >= 4 && !ibv_get_srq_num(srq, number) && *number);
	return srq;
}

static struct ibv_qp *make_receiver(struct ibv_xrcd *xrcd) {
	struct ibv_qp_init_attr_ex init = {
		.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = xrcd, .qp_context = memory};
	struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
	CHECK(qp && !qp->pd && !qp->send_cq && !qp->recv_cq && !qp->srq && qp->qp_context == memory);
	return qp;
}

static struct ibv_qp *open_again(struct ibv_xrcd *xrcd, uint32_t number) {
	struct ibv_qp_open_attr attr = {
		.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE,
		.qp_num = number, .xrcd = xrcd, .qp_type = IBV_QPT_XRC_RECV};
	return ibv_open_qp(context, &attr);
}

/* Attributes of the other half are missing at either end. */
static void make_ready(struct ibv_qp *qp, uint32_t peer) {
	int receives = qp->qp_type == IBV_QPT_XRC_RECV;
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer, .rq_psn = 7,
		.max_dest_rd_atomic = 4, .min_rnr_timer = 12,
		.ah_attr = {.port_num = 1, .is_global = 1, .grh = {.dgid = gid, .hop_limit = 64}}};
	int rtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	int responder = IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	CHECK(ibv_modify_qp(qp, &attr, receives ? rtr : rtr | responder) == EINVAL);
	CHECK(!ibv_modify_qp(qp, &attr, receives ? rtr | responder : rtr));
}

static void connect_to(struct ibv_qp *qp, uint32_t peer) {
	int receives = qp->qp_type == IBV_QPT_XRC_RECV;
	make_ready(qp, peer);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .sq_psn = 7};
	int rts = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_SQ_PSN;
	int requester = IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	CHECK(ibv_modify_qp(qp, &attr, receives ? rts | requester : rts) == EINVAL);
	CHECK(!ibv_modify_qp(qp, &attr, receives ? rts : rts | requester));
}

static void receive(struct ibv_srq *srq, uint64_t wr_id, char *place) {
	struct ibv_sge sge = {.addr = (uintptr_t)place, .length = 64, .lkey = mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1}, *bad;
	CHECK(!ibv_post_srq_recv(srq, &wr, &bad));
}

static struct ibv_wc next(struct ibv_cq *cq) {
	struct ibv_wc wc;
	int got;
	while (!(got = ibv_poll_cq(cq, 1, &wc)))
		;
	CHECK(got == 1);
	return wc;
}

/* Sends with a list of requests, and with calls. */
static void messages(struct ibv_qp *from, struct ibv_cq *sends, uint32_t number, const char *text, int by_calls) {
	if (by_calls) {
		struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(from);
		CHECK(qp);
		ibv_wr_start(qp);
		qp->wr_id = 9;
		qp->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_send(qp);
		ibv_wr_set_xrc_srqn(qp, number);
		ibv_wr_set_inline_data(qp, (void *)text, strlen(text) + 1);
		CHECK(!ibv_wr_complete(qp));
	} else {
		struct ibv_sge sge = {.addr = (uintptr_t)text, .length = strlen(text) + 1};
		struct ibv_send_wr wr = {.wr_id = 9, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
			.send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED, .qp_type.xrc.remote_srqn = number}, *bad;
		CHECK(!ibv_post_send(from, &wr, &bad));
	}
	struct ibv_wc wc = next(sends);
	CHECK(wc.wr_id == 9 && wc.status == IBV_WC_SUCCESS);
}

static void domains(void) {
	char name[] = "/tmp/portolan-xrcd-XXXXXX";
	int fd = mkstemp(name);
	CHECK(fd >= 0 && !unlink(name));
	struct ibv_xrcd_init_attr none = {0};
	CHECK(!ibv_open_xrcd(context, &none) && errno == EINVAL);
	CHECK(!open_domain(-2, O_CREAT) && errno == EBADF);
	CHECK(!open_domain(fd, 0) && errno == EAGAIN);
	struct ibv_xrcd *first = open_domain(fd, O_CREAT);
	CHECK(first && first->context == context);
	CHECK(!open_domain(fd, O_CREAT | O_EXCL) && errno == EINVAL);
	int copy = dup(fd);
	struct ibv_xrcd *same = open_domain(copy, 0), *own = open_domain(-1, O_CREAT);
	CHECK(same && own);
	/* A queue pair of the file's domain can be opened only through that domain. */
	struct ibv_qp *qp = make_receiver(first);
	CHECK(!open_again(own, qp->qp_num) && errno == EINVAL);
	CHECK(!open_again(same, qp->qp_num + 1) && errno == EINVAL);
	struct ibv_qp *again = open_again(same, qp->qp_num);
	CHECK(again && again != qp && again->qp_num == qp->qp_num && again->state == IBV_QPS_RESET);
	CHECK(ibv_close_xrcd(first) == EBUSY && ibv_close_xrcd(same) == EBUSY);
	CHECK(!ibv_destroy_qp(qp) && !ibv_close_xrcd(first));
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
	CHECK(!ibv_modify_qp(again, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	uint32_t number = again->qp_num;
	CHECK(!ibv_destroy_qp(again) && !open_again(same, number));
	CHECK(!ibv_close_xrcd(same) && !ibv_close_xrcd(own));
	/* The domain is gone with its last user. */
	CHECK(!open_domain(fd, 0) && errno == EAGAIN);
	CHECK(!close(fd) && !close(copy));
}

/* Events of a queue pair go to one of the structures that still exist. */
static void events(struct ibv_xrcd *xrcd, struct ibv_srq *srq, uint32_t number, struct ibv_cq *receives) {
	struct ibv_cq *sends = ibv_create_cq(context, 8, NULL, NULL, 0);
	struct ibv_qp *first = make_receiver(xrcd), *again = open_again(xrcd, first->qp_num);
	struct ibv_qp_init_attr_ex init = {
		.qp_type = IBV_QPT_XRC_SEND, .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = pd, .send_cq = sends,
		.cap = {.max_send_wr = 4, .max_send_sge = 1}};
	struct ibv_qp *from = ibv_create_qp_ex(context, &init);
	struct pollfd readable = {.fd = context->async_fd, .events = POLLIN};
	struct ibv_async_event event;
	CHECK(sends && again && from);
	connect_to(from, first->qp_num);
	make_ready(first, from->qp_num);
	CHECK(!ibv_destroy_qp(first));
	receive(srq, 5, memory + 4096);
	messages(from, sends, number, "before RTS", 0);
	CHECK(next(receives).wr_id == 5);
	CHECK(poll(&readable, 1, 10000) == 1 && !ibv_get_async_event(context, &event));
	CHECK(event.event_type == IBV_EVENT_COMM_EST && event.element.qp == again);
	ibv_ack_async_event(&event);
	CHECK(!ibv_destroy_qp(again) && !ibv_destroy_qp(from) && !ibv_destroy_cq(sends));
}

int main(void) {
	struct ibv_device_attr device;
	open_loopback();
	CHECK(!ibv_query_device(context, &device) && device.device_cap_flags & IBV_DEVICE_XRC);
	CHECK(!ibv_query_gid(context, 1, 0, &gid));
	pd = ibv_alloc_pd(context);
	mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
	CHECK(pd && mr);
	domains();

	struct ibv_xrcd *xrcd = open_domain(-1, O_CREAT);
	struct ibv_cq *sends = ibv_create_cq(context, 8, NULL, NULL, 0);
	struct ibv_cq *cqs[2] = {ibv_create_cq(context, 8, NULL, NULL, 0), ibv_create_cq(context, 8, NULL, NULL, 0)};
	uint32_t numbers[2];
	CHECK(xrcd && sends && cqs[0] && cqs[1]);
	struct ibv_srq *srqs[2] = {make_srq(xrcd, cqs[0], &numbers[0]), make_srq(xrcd, cqs[1], &numbers[1])};
	struct ibv_srq_init_attr_ex lacking = {
		.attr = {.max_wr = 4, .max_sge = 1}, .srq_type = IBV_SRQT_XRC, .pd = pd,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD};
	CHECK(!ibv_create_srq_ex(context, &lacking) && errno == EINVAL);
	struct ibv_qp *to = make_receiver(xrcd);
	struct ibv_qp_init_attr_ex init = {
		.qp_type = IBV_QPT_XRC_SEND, .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .pd = pd,
		.send_cq = sends, .cap = {.max_send_wr = 4, .max_send_sge = 1, .max_recv_wr = 4},
		.send_ops_flags = IBV_QP_EX_WITH_SEND};
	struct ibv_qp *from = ibv_create_qp_ex(context, &init);
	CHECK(from && !init.cap.max_recv_wr && init.cap.max_inline_data >= 16);
	connect_to(from, to->qp_num);
	connect_to(to, from->qp_num);
	for (int turn = 0; turn < 4; turn++) {
		const char *text = turn & 1 ? "to the second" : "to the first";
		char *place = memory + 4096 + turn * 64;
		receive(srqs[turn & 1], turn, place);
		messages(from, sends, numbers[turn & 1], text, turn / 2);
		struct ibv_wc wc = next(cqs[turn & 1]);
		CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == (uint64_t)turn && wc.opcode == IBV_WC_RECV);
		CHECK(wc.qp_num == to->qp_num && !strcmp(place, text));
	}
	events(xrcd, srqs[0], numbers[0], cqs[0]);
	/* Only its owner destroys the queue, whoever sends to it. */
	CHECK(ibv_destroy_cq(cqs[0]) == EBUSY && ibv_close_xrcd(xrcd) == EBUSY);
	CHECK(!ibv_destroy_srq(srqs[0]) && !ibv_destroy_srq(srqs[1]));
	CHECK(!ibv_destroy_qp(from) && !ibv_destroy_qp(to) && !ibv_close_xrcd(xrcd));
	CHECK(!ibv_destroy_cq(sends) && !ibv_destroy_cq(cqs[0]) && !ibv_destroy_cq(cqs[1]));
	CHECK(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	puts("all as it should be");
	return 0;
}
