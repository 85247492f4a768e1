/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Common types. Part of infiniband/verbs.h. */
#ifndef PORTOLAN_VERBS_BASE_H
#define PORTOLAN_VERBS_BASE_H

#include <errno.h>
#include <infiniband/verbs_api.h>
#include <linux/types.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>

/* Objects that other structures point to. */
struct ibv_ah;
struct ibv_comp_channel;
struct ibv_context;
struct ibv_counters;
struct ibv_cq;
struct ibv_cq_ex;
struct ibv_device;
struct ibv_dm;
struct ibv_flow;
struct ibv_flow_action;
struct ibv_mr;
struct ibv_mw;
struct ibv_pd;
struct ibv_qp;
struct ibv_qp_ex;
struct ibv_srq;
struct ibv_td;
struct ibv_wq;
struct ibv_xrcd;

/* A scatter/gather element of registered memory. */
struct ibv_sge {
	uint64_t addr;
	uint32_t length;
	uint32_t lkey;
};

/* Memory that need not be registered, because its data is copied. */
struct ibv_data_buf {
	void *addr;
	size_t length;
};

/* Vendor options of a connection. */
struct ibv_ece {
	uint32_t vendor_id;
	uint32_t options;
	uint32_t comp_mask;
};

/* Whether a structure of `length` bytes includes a field of its newest version. */
#define vext_field_avail(kind, field, length) (offsetof(kind, field) < (length))

#endif
