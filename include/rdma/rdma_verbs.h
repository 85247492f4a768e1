/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Work on an id's own queues: the inline functions of librdmacm's header of this name. They return 0, or -1 and set errno,
 * unless stated otherwise.
 */
#ifndef RDMA_VERBS_H
#define RDMA_VERBS_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Converts the error number that a verb returns. */
static inline int rdma_seterrno(int error)
{
	if (!error)
		return 0;
	errno = error;
	return -1;
}

int rdma_create_srq(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_srq_init_attr *attr);
int rdma_create_srq_ex(struct rdma_cm_id *id, struct ibv_srq_init_attr_ex *attr);
void rdma_destroy_srq(struct rdma_cm_id *id);

/* Registers memory: for messages, for remote reads, for remote writes. Null means failure. */
static inline struct ibv_mr *rdma_reg_msgs(struct rdma_cm_id *id, void *addr, size_t length)
{
	return ibv_reg_mr(id->pd, addr, length, IBV_ACCESS_LOCAL_WRITE);
}

static inline struct ibv_mr *rdma_reg_read(struct rdma_cm_id *id, void *addr, size_t length)
{
	return ibv_reg_mr(id->pd, addr, length, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
}

static inline struct ibv_mr *rdma_reg_write(struct rdma_cm_id *id, void *addr, size_t length)
{
	return ibv_reg_mr(id->pd, addr, length, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
}

static inline int rdma_dereg_mr(struct ibv_mr *mr)
{
	return rdma_seterrno(ibv_dereg_mr(mr));
}

/* With several scatter/gather elements. */
static inline int rdma_post_recvv(struct rdma_cm_id *id, void *context, struct ibv_sge *sgl,
				  int nsge)
{
	struct ibv_recv_wr work, *failed;

	work.wr_id = (uintptr_t)context;
	work.next = NULL;
	work.sg_list = sgl;
	work.num_sge = nsge;
	return rdma_seterrno(id->srq ? ibv_post_srq_recv(id->srq, &work, &failed) :
				       ibv_post_recv(id->qp, &work, &failed));
}

/* Posts a request; the remote address is for operations on the peer's memory. */
static inline int portolan_post(struct rdma_cm_id *id, void *context, struct ibv_sge *sgl, int nsge,
				enum ibv_wr_opcode opcode, int flags, uint64_t remote_addr,
				uint32_t rkey)
{
	struct ibv_send_wr work, *failed;

	work.wr_id = (uintptr_t)context;
	work.next = NULL;
	work.sg_list = sgl;
	work.num_sge = nsge;
	work.opcode = opcode;
	work.send_flags = flags;
	work.wr.rdma.remote_addr = remote_addr;
	work.wr.rdma.rkey = rkey;
	return rdma_seterrno(ibv_post_send(id->qp, &work, &failed));
}

static inline int rdma_post_sendv(struct rdma_cm_id *id, void *context, struct ibv_sge *sgl,
				  int nsge, int flags)
{
	return portolan_post(id, context, sgl, nsge, IBV_WR_SEND, flags, 0, 0);
}

static inline int rdma_post_readv(struct rdma_cm_id *id, void *context, struct ibv_sge *sgl,
				  int nsge, int flags, uint64_t remote_addr, uint32_t rkey)
{
	return portolan_post(id, context, sgl, nsge, IBV_WR_RDMA_READ, flags, remote_addr, rkey);
}

static inline int rdma_post_writev(struct rdma_cm_id *id, void *context, struct ibv_sge *sgl,
				   int nsge, int flags, uint64_t remote_addr, uint32_t rkey)
{
	return portolan_post(id, context, sgl, nsge, IBV_WR_RDMA_WRITE, flags, remote_addr, rkey);
}

/* With one scatter/gather element; without a region only for inline data. */
static inline struct ibv_sge portolan_piece(void *addr, size_t length, struct ibv_mr *mr)
{
	struct ibv_sge piece;

	piece.addr = (uintptr_t)addr;
	piece.length = (uint32_t)length;
	piece.lkey = mr ? mr->lkey : 0;
	return piece;
}

static inline int rdma_post_recv(struct rdma_cm_id *id, void *context, void *addr, size_t length,
				 struct ibv_mr *mr)
{
	struct ibv_sge piece = portolan_piece(addr, length, mr);

	return rdma_post_recvv(id, context, &piece, 1);
}

static inline int rdma_post_send(struct rdma_cm_id *id, void *context, void *addr, size_t length,
				 struct ibv_mr *mr, int flags)
{
	struct ibv_sge piece = portolan_piece(addr, length, mr);

	return rdma_post_sendv(id, context, &piece, 1, flags);
}

static inline int rdma_post_read(struct rdma_cm_id *id, void *context, void *addr, size_t length,
				 struct ibv_mr *mr, int flags, uint64_t remote_addr, uint32_t rkey)
{
	struct ibv_sge piece = portolan_piece(addr, length, mr);

	return rdma_post_readv(id, context, &piece, 1, flags, remote_addr, rkey);
}

static inline int rdma_post_write(struct rdma_cm_id *id, void *context, void *addr, size_t length,
				  struct ibv_mr *mr, int flags, uint64_t remote_addr, uint32_t rkey)
{
	struct ibv_sge piece = portolan_piece(addr, length, mr);

	return rdma_post_writev(id, context, &piece, 1, flags, remote_addr, rkey);
}

static inline int rdma_post_ud_send(struct rdma_cm_id *id, void *context, void *addr, size_t length,
				    struct ibv_mr *mr, int flags, struct ibv_ah *ah,
				    uint32_t remote_qpn)
{
	struct ibv_sge piece = portolan_piece(addr, length, mr);
	struct ibv_send_wr work, *failed;

	work.wr_id = (uintptr_t)context;
	work.next = NULL;
	work.sg_list = &piece;
	work.num_sge = 1;
	work.opcode = IBV_WR_SEND;
	work.send_flags = flags;
	work.wr.ud.ah = ah;
	work.wr.ud.remote_qpn = remote_qpn;
	work.wr.ud.remote_qkey = RDMA_UDP_QKEY;
	return rdma_seterrno(ibv_post_send(id->qp, &work, &failed));
}

/* Waits on the channel for a completion of the queue; returns 1, or -1 and sets errno. */
static inline int portolan_await(struct ibv_cq *cq, struct ibv_comp_channel *channel,
				 struct ibv_wc *wc)
{
	struct ibv_cq *ready;
	void *context;
	int count;

	for (;;) {
		count = ibv_poll_cq(cq, 1, wc);
		if (count)
			break;
		count = ibv_req_notify_cq(cq, 0);
		if (count)
			return rdma_seterrno(count);
		/* Completions before the request cause no event. */
		count = ibv_poll_cq(cq, 1, wc);
		if (count)
			break;
		if (ibv_get_cq_event(channel, &ready, &context))
			return -1;
		ibv_ack_cq_events(ready, 1);
	}
	return count < 0 ? rdma_seterrno(-count) : count;
}

static inline int rdma_get_send_comp(struct rdma_cm_id *id, struct ibv_wc *wc)
{
	return portolan_await(id->send_cq, id->send_cq_channel, wc);
}

static inline int rdma_get_recv_comp(struct rdma_cm_id *id, struct ibv_wc *wc)
{
	return portolan_await(id->recv_cq, id->recv_cq_channel, wc);
}

#ifdef __cplusplus
}
#endif

#endif
