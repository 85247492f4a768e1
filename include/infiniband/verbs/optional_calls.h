/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Calls that a device may lack: they then return EOPNOTSUPP, or null with that errno. Part of infiniband/verbs.h.
 */
#ifndef PORTOLAN_VERBS_OPTIONAL_CALLS_H
#define PORTOLAN_VERBS_OPTIONAL_CALLS_H

#include <infiniband/verbs/calls.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Passes a call to the open device's function of that name. */
#define PORTOLAN_HAND_ON(context, op, ...)                                          \
	struct verbs_context *verbs = verbs_get_ctx_op(context, op);                \
                                                                                    \
	return verbs ? verbs->op(__VA_ARGS__) : EOPNOTSUPP
#define PORTOLAN_HAND_ON_FOR(kind, context, op, ...)                                \
	struct verbs_context *verbs = verbs_get_ctx_op(context, op);                \
                                                                                    \
	return verbs ? verbs->op(__VA_ARGS__) : (kind *)PORTOLAN_LACKING

/* Attributes of a device; unsupported newer fields are zero. */
static inline int ibv_query_device_ex(struct ibv_context *context,
				      const struct ibv_query_device_ex_input *input,
				      struct ibv_device_attr_ex *attr)
{
	struct verbs_context *verbs = verbs_get_ctx_op(context, query_device_ex);
	int error = EOPNOTSUPP;

	if (input && input->comp_mask)
		return EINVAL;
	if (verbs)
		error = verbs->query_device_ex(context, input, attr, sizeof(*attr));
	if (error != EOPNOTSUPP && error != ENOSYS)
		return error;
	memset(attr, 0, sizeof(*attr));
	return ibv_query_device(context, &attr->orig_attr);
}

static inline int ibv_query_rt_values_ex(struct ibv_context *context, struct ibv_values_ex *values)
{
	PORTOLAN_HAND_ON(context, query_rt_values, context, values);
}

/* Completion queues. */
static inline struct ibv_cq_ex *ibv_create_cq_ex(struct ibv_context *context,
						 struct ibv_cq_init_attr_ex *cq_attr)
{
	PORTOLAN_HAND_ON_FOR(struct ibv_cq_ex, context, create_cq_ex, context, cq_attr);
}

static inline int ibv_modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *attr)
{
	PORTOLAN_HAND_ON(cq->context, modify_cq, cq, attr);
}

/* Shared receive queues; the older call creates ordinary ones. */
static inline struct ibv_srq *ibv_create_srq_ex(struct ibv_context *context,
						struct ibv_srq_init_attr_ex *attr)
{
	const uint32_t plain = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE;
	const uint32_t mask = attr->comp_mask;
	const int is_basic = !(mask & IBV_SRQ_INIT_ATTR_TYPE) || attr->srq_type == IBV_SRQT_BASIC;

	if ((mask | plain) == plain && (mask & IBV_SRQ_INIT_ATTR_PD) && is_basic)
		return ibv_create_srq(attr->pd, (struct ibv_srq_init_attr *)attr);
	PORTOLAN_HAND_ON_FOR(struct ibv_srq, context, create_srq_ex, context, attr);
}

static inline int ibv_get_srq_num(struct ibv_srq *srq, uint32_t *srq_num)
{
	PORTOLAN_HAND_ON(srq->context, get_srq_num, srq, srq_num);
}

static inline int ibv_post_srq_ops(struct ibv_srq *srq, struct ibv_ops_wr *op,
				   struct ibv_ops_wr **bad_op)
{
	struct verbs_context *verbs = verbs_get_ctx_op(srq->context, post_srq_ops);

	if (verbs)
		return verbs->post_srq_ops(srq, op, bad_op);
	*bad_op = op;
	return EOPNOTSUPP;
}

/* Queue pairs; the older call creates those with only a protection domain. */
static inline struct ibv_qp *ibv_create_qp_ex(struct ibv_context *context,
					      struct ibv_qp_init_attr_ex *attr)
{
	if (attr->comp_mask == IBV_QP_INIT_ATTR_PD)
		return ibv_create_qp(attr->pd, (struct ibv_qp_init_attr *)attr);
	PORTOLAN_HAND_ON_FOR(struct ibv_qp, context, create_qp_ex, context, attr);
}

static inline struct ibv_qp *ibv_open_qp(struct ibv_context *context, struct ibv_qp_open_attr *attr)
{
	PORTOLAN_HAND_ON_FOR(struct ibv_qp, context, open_qp, context, attr);
}

static inline int ibv_modify_qp_rate_limit(struct ibv_qp *qp, struct ibv_qp_rate_limit_attr *attr)
{
	PORTOLAN_HAND_ON(qp->context, modify_qp_rate_limit, qp, attr);
}

/* Domains. */
static inline struct ibv_td *ibv_alloc_td(struct ibv_context *context,
					  struct ibv_td_init_attr *init_attr)
{
	PORTOLAN_HAND_ON_FOR(struct ibv_td, context, alloc_td, context, init_attr);
}

static inline int ibv_dealloc_td(struct ibv_td *td)
{
	PORTOLAN_HAND_ON(td->context, dealloc_td, td);
}

static inline struct ibv_pd *ibv_alloc_parent_domain(struct ibv_context *context,
						     struct ibv_parent_domain_init_attr *attr)
{
	PORTOLAN_HAND_ON_FOR(struct ibv_pd, context, alloc_parent_domain, context, attr);
}

static inline struct ibv_xrcd *ibv_open_xrcd(struct ibv_context *context,
					     struct ibv_xrcd_init_attr *xrcd_init_attr)
{
	PORTOLAN_HAND_ON_FOR(struct ibv_xrcd, context, open_xrcd, context, xrcd_init_attr);
}

static inline int ibv_close_xrcd(struct ibv_xrcd *xrcd)
{
	PORTOLAN_HAND_ON(xrcd->context, close_xrcd, xrcd);
}

/* Memory. */
static inline int ibv_advise_mr(struct ibv_pd *pd, enum ibv_advise_mr_advice advice, uint32_t flags,
				struct ibv_sge *sg_list, uint32_t num_sge)
{
	PORTOLAN_HAND_ON(pd->context, advise_mr, pd, advice, flags, sg_list, num_sge);
}

static inline struct ibv_mr *ibv_alloc_null_mr(struct ibv_pd *pd)
{
	PORTOLAN_HAND_ON_FOR(struct ibv_mr, pd->context, alloc_null_mr, pd);
}

static inline struct ibv_dm *ibv_alloc_dm(struct ibv_context *context,
					  struct ibv_alloc_dm_attr *attr)
{
	PORTOLAN_HAND_ON_FOR(struct ibv_dm, context, alloc_dm, context, attr);
}

static inline int ibv_free_dm(struct ibv_dm *dm)
{
	PORTOLAN_HAND_ON(dm->context, free_dm, dm);
}

static inline struct ibv_mr *ibv_reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t dm_offset,
					   size_t length, unsigned int access)
{
	PORTOLAN_HAND_ON_FOR(struct ibv_mr, pd->context, reg_dm_mr, pd, dm, dm_offset, length, access);
}

static inline int ibv_memcpy_to_dm(struct ibv_dm *dm, uint64_t dm_offset, const void *host_addr,
				   size_t length)
{
	return dm->memcpy_to_dm(dm, dm_offset, host_addr, length);
}

static inline int ibv_memcpy_from_dm(void *host_addr, struct ibv_dm *dm, uint64_t dm_offset,
				     size_t length)
{
	return dm->memcpy_from_dm(host_addr, dm, dm_offset, length);
}

/* Work queues. */
static inline struct ibv_wq *ibv_create_wq(struct ibv_context *context,
					   struct ibv_wq_init_attr *wq_init_attr)
{
	struct verbs_context *verbs = verbs_get_ctx_op(context, create_wq);
	struct ibv_wq *wq =
		verbs ? verbs->create_wq(context, wq_init_attr) : (struct ibv_wq *)PORTOLAN_LACKING;

	/* The part that the caller set. */
	if (wq) {
		wq->wq_context = wq_init_attr->wq_context;
		wq->events_completed = 0;
		pthread_mutex_init(&wq->mutex, NULL);
		pthread_cond_init(&wq->cond, NULL);
	}
	return wq;
}

static inline int ibv_modify_wq(struct ibv_wq *wq, struct ibv_wq_attr *wq_attr)
{
	PORTOLAN_HAND_ON(wq->context, modify_wq, wq, wq_attr);
}

static inline int ibv_destroy_wq(struct ibv_wq *wq)
{
	PORTOLAN_HAND_ON(wq->context, destroy_wq, wq);
}

static inline struct ibv_rwq_ind_table *
ibv_create_rwq_ind_table(struct ibv_context *context, struct ibv_rwq_ind_table_init_attr *attr)
{
	PORTOLAN_HAND_ON_FOR(struct ibv_rwq_ind_table, context, create_rwq_ind_table, context, attr);
}

static inline int ibv_destroy_rwq_ind_table(struct ibv_rwq_ind_table *rwq_ind_table)
{
	PORTOLAN_HAND_ON(rwq_ind_table->context, destroy_rwq_ind_table, rwq_ind_table);
}

/* Flows. */
static inline struct ibv_flow *ibv_create_flow(struct ibv_qp *qp, struct ibv_flow_attr *flow)
{
	PORTOLAN_HAND_ON_FOR(struct ibv_flow, qp->context, ibv_create_flow, qp, flow);
}

static inline int ibv_destroy_flow(struct ibv_flow *flow_id)
{
	PORTOLAN_HAND_ON(flow_id->context, ibv_destroy_flow, flow_id);
}

static inline struct ibv_flow_action *
ibv_create_flow_action_esp(struct ibv_context *ctx, struct ibv_flow_action_esp_attr *esp)
{
	PORTOLAN_HAND_ON_FOR(struct ibv_flow_action, ctx, create_flow_action_esp, ctx, esp);
}

static inline int ibv_modify_flow_action_esp(struct ibv_flow_action *action,
					     struct ibv_flow_action_esp_attr *esp)
{
	PORTOLAN_HAND_ON(action->context, modify_flow_action_esp, action, esp);
}

static inline int ibv_destroy_flow_action(struct ibv_flow_action *action)
{
	PORTOLAN_HAND_ON(action->context, destroy_flow_action, action);
}

static inline struct ibv_counters *ibv_create_counters(struct ibv_context *context,
						       struct ibv_counters_init_attr *init_attr)
{
	PORTOLAN_HAND_ON_FOR(struct ibv_counters, context, create_counters, context, init_attr);
}

static inline int ibv_destroy_counters(struct ibv_counters *counters)
{
	PORTOLAN_HAND_ON(counters->context, destroy_counters, counters);
}

static inline int ibv_attach_counters_point_flow(struct ibv_counters *counters,
						 struct ibv_counter_attach_attr *attr,
						 struct ibv_flow *flow)
{
	PORTOLAN_HAND_ON(counters->context, attach_counters_point_flow, counters, attr, flow);
}

static inline int ibv_read_counters(struct ibv_counters *counters, uint64_t *counters_value,
				    uint32_t ncounters, uint32_t flags)
{
	PORTOLAN_HAND_ON(counters->context, read_counters, counters, counters_value, ncounters,
			 flags);
}

#undef PORTOLAN_HAND_ON
#undef PORTOLAN_HAND_ON_FOR

#ifdef __cplusplus
}
#endif

#endif
