/*
 * A minimal libibverbs for programs on a simulated fabric that look for ports before they query the subnet
 * administrator through libibumad. It has one device, whose port is the first one of libibumad. Its queue pairs
 * accept work but never complete any. Preloaded with LD_PRELOAD.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <infiniband/umad.h>
#include <infiniband/verbs.h>

/* The simulator gives each program one port. */
static umad_port_t umad_port_of_this_host;
static struct ibv_device device;
static struct ibv_device *devices[] = { &device, NULL };

static int look(void)
{
	if (umad_init() < 0)
		return -1;
	if (umad_port_of_this_host.portnum == 0 &&
	    umad_get_port(NULL, 0, &umad_port_of_this_host) < 0)
		return -1;
	return 0;
}

struct ibv_device **ibv_get_device_list(int *count)
{
	if (look() < 0)
		return NULL;
	device.node_type = IBV_NODE_CA;
	device.transport_type = IBV_TRANSPORT_IB;
	strncpy(device.name, umad_port_of_this_host.ca_name, sizeof device.name - 1);
	if (count)
		*count = 1;
	return devices;
}

void ibv_free_device_list(struct ibv_device **list)
{
	(void) list;
}

__be64 ibv_get_device_guid(struct ibv_device *of)
{
	(void) of;
	return umad_port_of_this_host.port_guid;
}

static int no_work(struct ibv_cq *cq, int count, struct ibv_wc *work)
{
	(void) cq;
	(void) count;
	(void) work;
	return 0;
}

static int armed(struct ibv_cq *cq, int solicited)
{
	(void) cq;
	(void) solicited;
	return 0;
}

static int sent(struct ibv_qp *qp, struct ibv_send_wr *work, struct ibv_send_wr **bad)
{
	(void) qp;
	(void) work;
	(void) bad;
	return 0;
}

static int awaited(struct ibv_qp *qp, struct ibv_recv_wr *work, struct ibv_recv_wr **bad)
{
	(void) qp;
	(void) work;
	(void) bad;
	return 0;
}

struct ibv_context *ibv_open_device(struct ibv_device *of)
{
	struct ibv_context *context = calloc(1, sizeof *context);
	int events[2];

	if (!context || pipe(events))
		return NULL;
	context->device = of;
	context->cmd_fd = -1;
	/* Never written to. */
	context->async_fd = events[0];
	context->num_comp_vectors = 1;
	context->ops.poll_cq = no_work;
	context->ops.req_notify_cq = armed;
	context->ops.post_send = sent;
	context->ops.post_recv = awaited;
	return context;
}

int ibv_close_device(struct ibv_context *context)
{
	close(context->async_fd);
	free(context);
	return 0;
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	(void) context;
	memset(attr, 0, sizeof *attr);
	attr->node_guid = umad_port_of_this_host.port_guid;
	attr->phys_port_cnt = 1;
	return 0;
}

#undef ibv_query_port
int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *to)
{
	struct ibv_port_attr attr;

	(void) context;
	if (port != 1)
		return EINVAL;
	memset(&attr, 0, sizeof attr);
	attr.state = umad_port_of_this_host.state;
	attr.max_mtu = attr.active_mtu = IBV_MTU_2048;
	attr.gid_tbl_len = 1;
	attr.pkey_tbl_len = 1;
	attr.lid = umad_port_of_this_host.base_lid;
	attr.lmc = umad_port_of_this_host.lmc;
	attr.sm_lid = umad_port_of_this_host.sm_lid;
	attr.sm_sl = umad_port_of_this_host.sm_sl;
	attr.subnet_timeout = 18;
	/* 4X, 2.5 Gb/s a lane. */
	attr.active_width = 2;
	attr.active_speed = 1;
	attr.link_layer = IBV_LINK_LAYER_INFINIBAND;
	memcpy(to, &attr, offsetof(struct ibv_port_attr, link_layer) + 1);
	return 0;
}

int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid)
{
	(void) context;
	if (port != 1 || index != 0)
		return -1;
	gid->global.subnet_prefix = umad_port_of_this_host.gid_prefix;
	gid->global.interface_id = umad_port_of_this_host.port_guid;
	return 0;
}

int ibv_query_pkey(struct ibv_context *context, uint8_t port, int index, __be16 *pkey)
{
	(void) context;
	if (port != 1 || index != 0)
		return -1;
	*pkey = htons(0xffff);
	return 0;
}

int ibv_get_pkey_index(struct ibv_context *context, uint8_t port, __be16 pkey)
{
	(void) context;
	return port == 1 && pkey == htons(0xffff) ? 0 : -1;
}

static void *of_context(struct ibv_context *context, size_t size)
{
	/* Every object begins with its context. */
	struct ibv_pd *object = calloc(1, size);

	if (object)
		object->context = context;
	return object;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	return of_context(context, sizeof(struct ibv_pd));
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	free(pd);
	return 0;
}

#undef ibv_reg_mr
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *address, size_t length, int access)
{
	struct ibv_mr *mr = of_context(pd->context, sizeof *mr);

	(void) access;
	if (mr) {
		mr->pd = pd;
		mr->addr = address;
		mr->length = length;
	}
	return mr;
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	free(mr);
	return 0;
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
	struct ibv_comp_channel *channel = of_context(context, sizeof *channel);
	int events[2];

	if (!channel || pipe(events))
		return NULL;
	channel->fd = events[0];
	return channel;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
	close(channel->fd);
	free(channel);
	return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context,
			     struct ibv_comp_channel *channel, int vector)
{
	struct ibv_cq *cq = of_context(context, sizeof *cq);

	(void) vector;
	if (cq) {
		cq->cqe = cqe;
		cq->cq_context = cq_context;
		cq->channel = channel;
	}
	return cq;
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
	free(cq);
	return 0;
}

/* No work completes, so there are no events: callers wait forever. */
int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
	char byte;

	(void) cq;
	(void) cq_context;
	while (read(channel->fd, &byte, 1) < 0 && errno == EINTR)
		;
	return -1;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int count)
{
	(void) cq;
	(void) count;
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
	char byte;

	(void) event;
	while (read(context->async_fd, &byte, 1) < 0 && errno == EINTR)
		;
	return -1;
}

void ibv_ack_async_event(struct ibv_async_event *event)
{
	(void) event;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct ibv_qp *qp = of_context(pd->context, sizeof *qp);

	if (qp) {
		qp->pd = pd;
		qp->qp_context = attr->qp_context;
		qp->qp_num = 2;
		qp->qp_type = attr->qp_type;
	}
	return qp;
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	(void) qp;
	(void) attr;
	(void) mask;
	return 0;
}

int ibv_destroy_qp(struct ibv_qp *qp)
{
	free(qp);
	return 0;
}

struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	(void) attr;
	return of_context(pd->context, sizeof(struct ibv_ah));
}

int ibv_destroy_ah(struct ibv_ah *ah)
{
	free(ah);
	return 0;
}

int ibv_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	(void) qp;
	(void) gid;
	(void) lid;
	return 0;
}

int ibv_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	return ibv_attach_mcast(qp, gid, lid);
}
