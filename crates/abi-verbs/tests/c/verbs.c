/*
 * Covers what Debian's programs do not: both ends in one process, requests built by calls, every error that a
 * program may get, events, windows, memory at another address. Exits with 0, or prints the wrong line.
 */

#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CHECK(is_so) ((is_so) ? (void)0 : failed(__LINE__, #is_so))
/* Long, for busy machines. */
#define DEADLINE_MS 60000

static void failed(int line, const char *what) {
	fprintf(stderr, "line %d: %s (errno %d: %s)\n", line, what, errno, strerror(errno));
	exit(1);
}

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct ibv_comp_channel *channel;
static struct ibv_cq_ex *cq;
static union ibv_gid gid;
/* Page-aligned, so that atomics are aligned too. */
static char memory[8192] __attribute__((aligned(4096)));

static struct ibv_context *open_loopback(void) {
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);
	struct ibv_context *found = NULL;
	CHECK(list && count > 0 && !list[count]);
	for (int at = 0; at < count; at++)
		if (!strcmp(ibv_get_device_name(list[at]), "sw_lo")) {
			CHECK(ibv_get_device_guid(list[at]) && ibv_get_device_index(list[at]) > 0);
			found = ibv_open_device(list[at]);
		}
	ibv_free_device_list(list);
	CHECK(found);
	return found;
}

static void queries(void) {
	struct ibv_device_attr_ex attr;
	struct ibv_port_attr port;
	struct ibv_gid_entry entry, table[256];
	__be16 pkey;
	CHECK(!ibv_query_device_ex(context, NULL, &attr));
	CHECK(attr.orig_attr.max_qp > 0 && attr.phys_port_cnt_ex == 1);
	CHECK(!ibv_query_port(context, 1, &port) && port.state == IBV_PORT_ACTIVE);
	CHECK(port.link_layer == IBV_LINK_LAYER_ETHERNET && port.flags == IBV_QPF_GRH_REQUIRED);
	CHECK(ibv_query_port(context, 2, &port) == EINVAL);
	CHECK(!ibv_query_gid(context, 1, 0, &gid));
	CHECK(ibv_query_gid(context, 1, 9999, &gid) == -1);
	CHECK(!ibv_query_gid_ex(context, 1, 0, &entry, 0) && !memcmp(&entry.gid, &gid, sizeof(gid)));
	CHECK(entry.gid_type == IBV_GID_TYPE_ROCE_V2 && entry.ndev_ifindex > 0);
	CHECK(ibv_query_gid_ex(context, 1, 255, &entry, 0) == ENODATA);
	CHECK(ibv_query_gid_ex(context, 1, 256, &entry, 0) == EINVAL);
	CHECK(ibv_query_gid_table(context, table, 256, 0) >= 1 && !table[0].gid_index);
	CHECK(ibv_query_gid_table(context, table, 0, 0) == -EINVAL);
	CHECK(!ibv_query_pkey(context, 1, 0, &pkey) && pkey == 0xffff);
	CHECK(ibv_query_pkey(context, 1, 1, &pkey) == -1);
	CHECK(ibv_get_pkey_index(context, 1, 0xffff) == 0 && ibv_get_pkey_index(context, 1, 1) == -1);
	CHECK(ibv_is_fork_initialized() == IBV_FORK_UNNEEDED && !ibv_fork_init());
}

/* Features that rdma_rxe lacks too. */
static void absent(void) {
	struct ibv_alloc_dm_attr dm = {.length = 64};
	struct ibv_td_init_attr td = {0};
	struct ibv_cq_init_attr_ex vlans = {
		.cqe = 1, .wc_flags = IBV_WC_EX_WITH_CVLAN};
	struct ibv_qp_init_attr raw = {.qp_type = IBV_QPT_RAW_PACKET};
	CHECK(!ibv_alloc_dm(context, &dm) && errno == EOPNOTSUPP);
	CHECK(!ibv_alloc_td(context, &td) && errno == EOPNOTSUPP);
	CHECK(!ibv_alloc_null_mr(pd) && errno == EOPNOTSUPP);
	CHECK(!ibv_create_cq_ex(context, &vlans) && errno == EOPNOTSUPP);
	CHECK(!ibv_create_qp(pd, &raw) && errno == EOPNOTSUPP);
	CHECK(!ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_ON_DEMAND) && errno == EOPNOTSUPP);
	CHECK(!ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL);
	CHECK(!ibv_reg_mr(pd, (void *)4096, 4096, IBV_ACCESS_LOCAL_WRITE) && errno == EFAULT);
}

static struct ibv_qp *make_qp(enum ibv_qp_type type, struct ibv_srq *srq) {
	struct ibv_qp_init_attr_ex init = {
		.send_cq = ibv_cq_ex_to_cq(cq), .recv_cq = ibv_cq_ex_to_cq(cq), .srq = srq,
		.cap = {.max_send_wr = 16, .max_recv_wr = srq ? 0 : 16, .max_send_sge = 2, .max_recv_sge = 2,
			.max_inline_data = 64},
		.qp_type = type, .sq_sig_all = 1, .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = pd};
	if (type == IBV_QPT_RC) {
		init.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
		init.send_ops_flags = IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE |
			IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD |
			IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_BIND_MW;
	}
	struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
	CHECK(qp && init.cap.max_inline_data >= 64 && qp->state == IBV_QPS_RESET);
	CHECK(!!ibv_qp_to_qp_ex(qp) == (type == IBV_QPT_RC));
	return qp;
}

static void connect_to(struct ibv_qp *qp, uint32_t peer) {
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC};
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer, .rq_psn = 7,
		.max_dest_rd_atomic = 4, .min_rnr_timer = 12, .ah_attr = {.port_num = 1}};
	int rtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	/* RoCE requires a global route. */
	CHECK(ibv_modify_qp(qp, &attr, rtr) == EINVAL && qp->state == IBV_QPS_INIT);
	attr.ah_attr.is_global = 1;
	attr.ah_attr.grh.dgid = gid;
	attr.ah_attr.grh.hop_limit = 64;
	CHECK(!ibv_modify_qp(qp, &attr, rtr));
	attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
		.sq_psn = 7, .max_rd_atomic = 4};
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
		IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
	struct ibv_qp_init_attr init;
	CHECK(!ibv_query_qp(qp, &attr, IBV_QP_STATE, &init));
	CHECK(attr.qp_state == IBV_QPS_RTS && attr.dest_qp_num == peer && attr.timeout == 14);
	CHECK(init.send_cq == qp->send_cq && init.cap.max_send_wr >= 16);
}

static void post_receive(struct ibv_qp *qp, uint64_t wr_id, uint32_t length) {
	struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = length, .lkey = mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1}, *bad;
	CHECK(!ibv_post_recv(qp, &wr, &bad));
}

static void wait_for(int fd) {
	struct pollfd ready = {.fd = fd, .events = POLLIN};
	CHECK(poll(&ready, 1, DEADLINE_MS) == 1);
}

/* Polls until `wanted` completions were seen. Returns the bits of those that failed. */
static unsigned walk(int wanted, uint32_t *imm_data) {
	struct ibv_poll_cq_attr attr = {0};
	unsigned errors = 0;
	while (wanted) {
		int got = ibv_start_poll(cq, &attr);
		if (got == ENOENT)
			continue;
		CHECK(!got);
		do {
			if (cq->status != IBV_WC_SUCCESS)
				errors |= 1u << cq->status;
			else if (ibv_wc_read_wc_flags(cq) & IBV_WC_WITH_IMM) {
				CHECK(ibv_wc_read_opcode(cq) == IBV_WC_RECV);
				CHECK(imm_data && cq->wr_id == 77);
				*imm_data = ibv_wc_read_imm_data(cq);
			}
			CHECK(ibv_wc_read_qp_num(cq) && !ibv_wc_read_vendor_err(cq));
			wanted--;
		} while (wanted && !ibv_next_poll(cq));
		ibv_end_poll(cq);
	}
	return errors;
}

static void built_requests(struct ibv_qp *from, struct ibv_qp *to) {
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(from);
	uint64_t *words = (uint64_t *)(memory + 4096), *back = (uint64_t *)(memory + 2048);
	uintptr_t at = (uintptr_t)words;
	struct ibv_data_buf parts[2] = {{"per", 3}, {"ils", 4}};
	uint32_t imm_data = 0;
	words[0] = 40;
	post_receive(to, 77, 64);
	ibv_wr_start(qp);
	qp->wr_flags = 0;
	qp->wr_id = 1;
	ibv_wr_atomic_fetch_add(qp, mr->rkey, at, 2);
	ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)&back[0], 8);
	qp->wr_flags = IBV_SEND_FENCE;
	qp->wr_id = 2;
	ibv_wr_atomic_cmp_swp(qp, mr->rkey, at, 42, 43);
	ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)&back[1], 8);
	ibv_wr_rdma_read(qp, mr->rkey, at);
	ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)&back[2], 8);
	ibv_wr_rdma_write(qp, mr->rkey, at + 8);
	ibv_wr_set_inline_data(qp, "written", 8);
	ibv_wr_send_imm(qp, 0x01020304);
	ibv_wr_set_inline_data_list(qp, 2, parts);
	CHECK(!ibv_wr_complete(qp));
	CHECK(walk(6, &imm_data) == 0);
	CHECK(imm_data == 0x01020304 && !strcmp(memory, "perils"));
	CHECK(back[0] == 40 && back[1] == 42 && back[2] == 43 && words[0] == 43);
	CHECK(!strcmp((char *)&words[1], "written"));
	/* Aborted or wrong: nothing is sent. */
	ibv_wr_start(qp);
	ibv_wr_rdma_write(qp, mr->rkey, at);
	ibv_wr_abort(qp);
	ibv_wr_start(qp);
	ibv_wr_rdma_write(qp, mr->rkey, at);
	ibv_wr_set_inline_data(qp, memory, 4096);
	CHECK(ibv_wr_complete(qp) == EINVAL);
	CHECK(ibv_start_poll(cq, &(struct ibv_poll_cq_attr){0}) == ENOENT);
}

/* A batch larger than the send queue: nothing is sent. A batch as large as the queue: everything is. */
static void whole_batches(struct ibv_qp *from) {
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(from);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	uint64_t *word = (uint64_t *)(memory + 4096);
	CHECK(!ibv_query_qp(from, &attr, IBV_QP_CAP, &init));
	*word = 0;
	for (uint32_t more = 2; more--;) {
		uint64_t value = 1;
		ibv_wr_start(qp);
		for (uint32_t at = 0; at < init.cap.max_send_wr + more; at++) {
			ibv_wr_rdma_write(qp, mr->rkey, (uintptr_t)word);
			ibv_wr_set_inline_data(qp, &value, sizeof(value));
		}
		CHECK(ibv_wr_complete(qp) == (more ? ENOSPC : 0));
		CHECK(walk(more ? 0 : (int)init.cap.max_send_wr, NULL) == 0);
		CHECK(*word == !more);
	}
	/* If any of the first batch had been sent, there would be more. */
	CHECK(ibv_start_poll(cq, &(struct ibv_poll_cq_attr){0}) == ENOENT);
}

/* Requests and their pieces lie in packed structures of some programs (libiscsi). */
static void packed_requests(struct ibv_qp *from, struct ibv_qp *to) {
	struct __attribute__((packed)) {
		char odd;
		struct ibv_sge sge;
		struct ibv_send_wr wr;
	} out = {.sge = {.addr = (uintptr_t)memory + 1024, .length = 4, .lkey = mr->lkey},
		.wr = {.num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}};
	struct __attribute__((packed)) {
		char odd;
		struct ibv_sge sges[2];
		struct ibv_recv_wr wr;
	} in = {.sges = {{.addr = (uintptr_t)memory, .length = 2, .lkey = mr->lkey},
			{.addr = (uintptr_t)memory + 2, .length = 2, .lkey = mr->lkey}},
		.wr = {.num_sge = 2}};
	void *pieces = (char *)&in + 1, *request = pieces + sizeof(in.sges), *piece = (char *)&out + 1;
	struct ibv_recv_wr *bad_receive;
	struct ibv_send_wr *bad_send;
	in.wr.sg_list = pieces;
	out.wr.sg_list = piece;
	memcpy(memory + 1024, "ahoy", 4);
	memset(memory, 0, 4);
	CHECK(!ibv_post_recv(to, request, &bad_receive));
	CHECK(!ibv_post_send(from, piece + sizeof(out.sge), &bad_send));
	CHECK(walk(2, NULL) == 0 && !memcmp(memory, "ahoy", 4));
}

static void send_to(struct ibv_qp *qp, enum ibv_wr_opcode opcode, uint64_t addr, uint32_t rkey, int expected) {
	struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = 8, .lkey = mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = opcode,
		.wr.rdma = {.remote_addr = addr, .rkey = rkey}}, *bad = NULL;
	CHECK(ibv_post_send(qp, &wr, &bad) == expected && (!expected || bad == &wr));
}

static void windows_and_addresses(struct ibv_qp *from, struct ibv_qp *to) {
	struct ibv_mr *low = ibv_reg_mr_iova(pd, memory, sizeof(memory), 4096,
		IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_MW_BIND);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	CHECK(low && mw && low->addr == memory);
	strcpy(memory, "through");
	send_to(from, IBV_WR_RDMA_WRITE, 4096 + 6000, low->rkey, 0);
	CHECK(walk(1, NULL) == 0 && !strcmp(memory + 6000, "through"));
	struct ibv_mw_bind bind = {.wr_id = 5, .bind_info = {.mr = low, .addr = 4096 + 7000, .length = 8,
		.mw_access_flags = IBV_ACCESS_REMOTE_WRITE}};
	uint32_t before = mw->rkey;
	CHECK(!ibv_bind_mw(to, mw, &bind) && mw->rkey != before);
	CHECK(walk(1, NULL) == 0);
	send_to(from, IBV_WR_RDMA_WRITE, 4096 + 7000, mw->rkey, 0);
	CHECK(walk(1, NULL) == 0 && !strcmp(memory + 7000, "through"));
	CHECK(ibv_dereg_mr(low) == EBUSY);
	CHECK(!ibv_dealloc_mw(mw) && !ibv_dereg_mr(low));
}

/* Re-registers a region: its keys stay, and a refused change leaves it as it was. */
static void changed_regions(struct ibv_qp *from) {
	int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	struct ibv_context *again = open_loopback();
	struct ibv_pd *other = ibv_alloc_pd(context), *foreign = ibv_alloc_pd(again);
	struct ibv_mr *region = ibv_reg_mr(pd, memory, 4096, IBV_ACCESS_LOCAL_WRITE);
	CHECK(other && foreign && region);
	uint32_t rkey = region->rkey;
	CHECK(ibv_rereg_mr(region, 0, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT && errno == EINVAL);
	CHECK(ibv_rereg_mr(region, 8, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT && errno == EINVAL);
	CHECK(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_PD, other, NULL, 0, rights) == IBV_REREG_MR_ERR_INPUT);
	CHECK(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_PD, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT);
	CHECK(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_PD, foreign, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT);
	CHECK(ibv_rereg_mr(NULL, IBV_REREG_MR_CHANGE_PD, other, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT);
	CHECK(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, memory, 0, 0) == IBV_REREG_MR_ERR_INPUT);
	CHECK(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, (void *)4096, 64, 0) ==
		IBV_REREG_MR_ERR_INPUT && errno == EFAULT);
	CHECK(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_ON_DEMAND) ==
		IBV_REREG_MR_ERR_INPUT && errno == EOPNOTSUPP);
	CHECK(region->pd == pd && region->addr == memory && region->length == 4096 && region->rkey == rkey);
	CHECK(!ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS |
		IBV_REREG_MR_CHANGE_TRANSLATION, other, memory + 4096, 4000, rights));
	CHECK(region->pd == other && region->addr == memory + 4096 && region->length == 4000);
	CHECK(ibv_dealloc_pd(other) == EBUSY);
	CHECK(!ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_PD, pd, NULL, 0, 0) && region->pd == pd);
	CHECK(!ibv_dealloc_pd(other) && !ibv_dealloc_pd(foreign) && !ibv_close_device(again));
	CHECK(region->rkey == rkey && region->lkey == rkey);
	strcpy(memory, "changed");
	send_to(from, IBV_WR_RDMA_WRITE, (uintptr_t)memory + 4096, rkey, 0);
	CHECK(walk(1, NULL) == 0 && !strcmp(memory + 4096, "changed"));
	CHECK(!ibv_dereg_mr(region));
}

/* A write beyond what the peer permits: an error here, an event there. */
static void asynchronous_events(struct ibv_qp *from, struct ibv_qp *to) {
	struct ibv_async_event event;
	int flags = fcntl(context->async_fd, F_GETFL);
	CHECK(!fcntl(context->async_fd, F_SETFL, flags | O_NONBLOCK));
	CHECK(ibv_get_async_event(context, &event) == -1 && errno == EAGAIN);
	send_to(from, IBV_WR_RDMA_WRITE, 0, 0, 0);
	CHECK(walk(1, NULL) == 1u << IBV_WC_REM_ACCESS_ERR);
	wait_for(context->async_fd);
	CHECK(!ibv_get_async_event(context, &event));
	CHECK(event.event_type == IBV_EVENT_QP_ACCESS_ERR && event.element.qp == to);
	ibv_ack_async_event(&event);
	CHECK(to->events_completed == 1);
}

/* A completion queue overflow is reported, and the queue pair that completes there fails. */
static void overrun(void) {
	struct ibv_cq *small = ibv_create_cq(context, 2, NULL, NULL, 0);
	CHECK(small);
	struct ibv_qp_init_attr init = {.send_cq = small, .recv_cq = small, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = {.max_send_wr = 16, .max_send_sge = 1, .max_recv_wr = 1, .max_recv_sge = 1}};
	struct ibv_qp *from = ibv_create_qp(pd, &init), *to = ibv_create_qp(pd, &init);
	int cq_errors = 0, fatal = 0;
	CHECK(from && to);
	connect_to(from, to->qp_num);
	connect_to(to, from->qp_num);
	for (int at = 0; at <= small->cqe; at++)
		send_to(from, IBV_WR_RDMA_WRITE, (uintptr_t)memory, mr->rkey, 0);
	while (!cq_errors || !fatal) {
		struct ibv_async_event event;
		wait_for(context->async_fd);
		CHECK(!ibv_get_async_event(context, &event));
		if (event.event_type == IBV_EVENT_CQ_ERR) {
			CHECK(event.element.cq == small);
			cq_errors++;
		} else {
			CHECK(event.event_type == IBV_EVENT_QP_FATAL && event.element.qp == from);
			fatal++;
		}
		ibv_ack_async_event(&event);
	}
	CHECK(small->async_events_completed == (uint32_t)cq_errors);
	CHECK(!ibv_destroy_qp(from) && !ibv_destroy_qp(to) && !ibv_destroy_cq(small));
}

static void completion_events(struct ibv_qp *from, struct ibv_qp *to) {
	struct ibv_cq *seen;
	void *seen_context;
	int flags = fcntl(channel->fd, F_GETFL);
	CHECK(!fcntl(channel->fd, F_SETFL, flags | O_NONBLOCK));
	CHECK(ibv_get_cq_event(channel, &seen, &seen_context) == -1 && errno == EAGAIN);
	CHECK(!ibv_req_notify_cq(ibv_cq_ex_to_cq(cq), 1));
	post_receive(to, 1, 64);
	send_to(from, IBV_WR_SEND, 0, 0, 0);
	/* Not solicited, so the receive raises no event, and there are no errors. */
	CHECK(walk(2, NULL) == 0);
	CHECK(!ibv_req_notify_cq(ibv_cq_ex_to_cq(cq), 0));
	post_receive(to, 1, 64);
	send_to(from, IBV_WR_SEND, 0, 0, 0);
	wait_for(channel->fd);
	CHECK(!ibv_get_cq_event(channel, &seen, &seen_context));
	CHECK(seen == ibv_cq_ex_to_cq(cq) && seen_context == memory);
	CHECK(walk(2, NULL) == 0);
	ibv_ack_cq_events(seen, 1);
}

static uint64_t raw_clock(void) {
	struct ibv_values_ex values = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK};
	CHECK(!ibv_query_rt_values_ex(context, &values) && values.comp_mask == IBV_VALUES_MASK_RAW_CLOCK);
	return values.raw_clock.tv_sec * 1000000000ull + values.raw_clock.tv_nsec;
}

static uint64_t time_of_day(void) {
	struct timespec now;
	CHECK(!clock_gettime(CLOCK_REALTIME, &now));
	return now.tv_sec * 1000000000ull + now.tv_nsec;
}

/* Time stamps of completions lie between the clock before posting and after polling, in order. */
static void time_stamps(void) {
	struct ibv_cq_ex *all = cq;
	struct ibv_device_attr_ex attr;
	struct ibv_cq_init_attr_ex init = {.cqe = 64, .wc_flags = IBV_WC_STANDARD_FLAGS |
		IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK};
	struct ibv_values_ex none = {0};
	CHECK(!ibv_query_device_ex(context, NULL, &attr));
	CHECK(attr.completion_timestamp_mask == UINT64_MAX && attr.hca_core_clock == 1000000);
	CHECK(!ibv_query_rt_values_ex(context, &none) && !none.comp_mask && !none.raw_clock.tv_nsec);
	cq = ibv_create_cq_ex(context, &init);
	CHECK(cq);
	struct ibv_qp *from = make_qp(IBV_QPT_RC, NULL), *to = make_qp(IBV_QPT_RC, NULL);
	connect_to(from, to->qp_num);
	connect_to(to, from->qp_num);
	uint64_t last = raw_clock(), last_of_day = time_of_day();
	/* The time of day may be adjusted meanwhile. */
	uint64_t tolerance = 1000000000;
	for (int turn = 0; turn < 3; turn++) {
		struct ibv_poll_cq_attr poll_attr = {0};
		int left = 2, got;
		post_receive(to, 1, 64);
		send_to(from, IBV_WR_SEND, 0, 0, 0);
		while (left) {
			if ((got = ibv_start_poll(cq, &poll_attr)) == ENOENT)
				continue;
			CHECK(!got);
			do {
				uint64_t now = ibv_wc_read_completion_ts(cq);
				uint64_t now_of_day = ibv_wc_read_completion_wallclock_ns(cq);
				CHECK(cq->status == IBV_WC_SUCCESS && now >= last && now <= raw_clock());
				CHECK(now_of_day + tolerance >= last_of_day);
				CHECK(now_of_day <= time_of_day() + tolerance);
				last = now;
				last_of_day = now_of_day;
				left--;
			} while (left && !ibv_next_poll(cq));
			ibv_end_poll(cq);
		}
	}
	CHECK(!ibv_destroy_qp(from) && !ibv_destroy_qp(to) && !ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
	cq = all;
}

static void shared_receives(void) {
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 8, .max_sge = 1}};
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	struct ibv_srq_attr attr = {.srq_limit = 2};
	struct ibv_async_event event;
	uint32_t number;
	CHECK(srq && init.attr.max_wr >= 8 && !ibv_get_srq_num(srq, &number) && number);
	struct ibv_qp *from = make_qp(IBV_QPT_RC, NULL), *to = make_qp(IBV_QPT_RC, srq);
	connect_to(from, to->qp_num);
	connect_to(to, from->qp_num);
	struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = 64, .lkey = mr->lkey};
	struct ibv_recv_wr second = {.wr_id = 2, .sg_list = &sge, .num_sge = 1};
	struct ibv_recv_wr first = {.wr_id = 1, .next = &second, .sg_list = &sge, .num_sge = 1}, *bad;
	CHECK(!ibv_post_srq_recv(srq, &first, &bad));
	CHECK(!ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT));
	CHECK(!ibv_query_srq(srq, &attr) && attr.srq_limit == 2);
	send_to(from, IBV_WR_SEND, 0, 0, 0);
	CHECK(walk(2, NULL) == 0);
	wait_for(context->async_fd);
	CHECK(!ibv_get_async_event(context, &event));
	CHECK(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == srq);
	ibv_ack_async_event(&event);
	CHECK(ibv_destroy_srq(srq) == EBUSY);
	CHECK(!ibv_destroy_qp(from) && !ibv_destroy_qp(to) && !ibv_destroy_srq(srq));
}

/* A datagram, and one back to its sender. */
static void datagrams(void) {
	struct ibv_qp *qp = make_qp(IBV_QPT_UD, NULL);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x11};
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
	struct ibv_ah_attr to = {.port_num = 1, .grh = {.dgid = gid, .hop_limit = 1}};
	CHECK(!ibv_create_ah(pd, &to) && errno == EINVAL);
	to.is_global = 1;
	struct ibv_ah *ah = ibv_create_ah(pd, &to);
	CHECK(ah);
	for (int turn = 0; turn < 2; turn++) {
		struct ibv_wc wc;
		struct ibv_sge sge = {.addr = (uintptr_t)memory + 4096, .length = 8, .lkey = mr->lkey};
		struct ibv_send_wr wr = {.wr_id = 8, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
			.wr.ud = {.ah = ah, .remote_qpn = qp->qp_num, .remote_qkey = 0x11}}, *bad;
		memset(memory, 0, 64);
		strcpy(memory + 4096, "carried");
		post_receive(qp, 9, 64);
		CHECK(!ibv_post_send(qp, &wr, &bad));
		int left = 2, is_received = 0;
		while (left) {
			int got = ibv_poll_cq(ibv_cq_ex_to_cq(cq), 1, &wc);
			CHECK(got >= 0 && (!got || wc.status == IBV_WC_SUCCESS));
			left -= got;
			if (got && wc.wr_id == 9) {
				CHECK(wc.wc_flags & IBV_WC_GRH && wc.src_qp == qp->qp_num && wc.byte_len == 48);
				CHECK(!ibv_destroy_ah(ah));
				ah = ibv_create_ah_from_wc(pd, &wc, (struct ibv_grh *)memory, 1);
				CHECK(ah && !strcmp(memory + 40, "carried"));
				is_received = 1;
			}
		}
		CHECK(is_received);
	}
	union ibv_gid group = {.raw = {0xff, 0x0e, [15] = 9}};
	CHECK(ibv_attach_mcast(qp, &gid, 0) == EINVAL && ibv_detach_mcast(qp, &group, 0) == EINVAL);
	CHECK(!ibv_destroy_ah(ah) && !ibv_destroy_qp(qp));
}

int main(void) {
	struct ibv_cq_init_attr_ex init = {.cqe = 64, .cq_context = memory,
		.wc_flags = IBV_WC_STANDARD_FLAGS};
	context = open_loopback();
	pd = ibv_alloc_pd(context);
	CHECK(pd);
	queries();
	CHECK(!ibv_query_gid(context, 1, 0, &gid));
	absent();
	channel = ibv_create_comp_channel(context);
	CHECK(channel);
	init.channel = channel;
	cq = ibv_create_cq_ex(context, &init);
	CHECK(cq && cq->cqe >= 64);
	mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
		IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_RELAXED_ORDERING);
	CHECK(mr && mr->length == sizeof(memory));

	struct ibv_qp *from = make_qp(IBV_QPT_RC, NULL), *to = make_qp(IBV_QPT_RC, NULL);
	struct ibv_ece ece = {.vendor_id = 1};
	CHECK(ibv_query_ece(from, &ece) == EOPNOTSUPP && ibv_set_ece(from, &ece) == EOPNOTSUPP);
	send_to(from, IBV_WR_SEND, 0, 0, EINVAL);
	connect_to(from, to->qp_num);
	connect_to(to, from->qp_num);
	built_requests(from, to);
	whole_batches(from);
	packed_requests(from, to);
	windows_and_addresses(from, to);
	changed_regions(from);
	completion_events(from, to);
	asynchronous_events(from, to);
	CHECK(ibv_dealloc_pd(pd) == EBUSY && ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == EBUSY);
	CHECK(ibv_destroy_comp_channel(channel) == EBUSY);
	CHECK(!ibv_destroy_qp(from) && !ibv_destroy_qp(to));
	overrun();
	time_stamps();
	shared_receives();
	datagrams();
	CHECK(!ibv_resize_cq(ibv_cq_ex_to_cq(cq), 128) && cq->cqe >= 128);
	CHECK(!ibv_dereg_mr(mr) && !ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
	CHECK(!ibv_destroy_comp_channel(channel) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	puts("all as it should be");
	return 0;
}
