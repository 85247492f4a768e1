/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Declares calls of Portolan's libraries that rdma-core's headers lack: those of RDMACM_1.4 (in rdma-core since version 60),
 * and ibv_gid_reachable (in no version). Use it with Portolan's own headers, or rdma-core's of any version. repoll_create,
 * repoll_ctl and repoll_wait are in Portolan's rdma/rsocket.h only.
 *
 * All calls are in librdmacm.so.1: link with -lrdmacm -libverbs.
 */
#ifndef PORTOLAN_H
#define PORTOLAN_H

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Checks whether a GID is reachable from a port of an open device. On InfiniBand this queries the subnet administrator for a
 * path, on Ethernet the routing table and the next hop. Blocks until the result is known.
 *
 * `port` 0 means any port; `timeout` is reserved and must be 0. Returns 0 if the GID is reachable. Otherwise returns -1 and
 * sets errno: ENXIO if there is no path, EINVAL for an invalid argument, EIO if the query failed; ENOMEM, EINTR.
 */
#ifndef PORTOLAN_GID_REACHABLE
#define PORTOLAN_GID_REACHABLE
int ibv_gid_reachable(struct ibv_context *context, unsigned int port, union ibv_gid *gid_p,
		      int timeout);
#endif

/* A header that declares one of these declares all. */
#ifndef RAI_SA

#define RAI_SA 0x00000010
#define RAI_DNS 0x00000020

#define RDMA_CM_EVENT_ADDRINFO_RESOLVED ((enum rdma_cm_event_type)16)
#define RDMA_CM_EVENT_ADDRINFO_ERROR ((enum rdma_cm_event_type)17)
#define RDMA_CM_EVENT_USER ((enum rdma_cm_event_type)18)
#define RDMA_CM_EVENT_INTERNAL ((enum rdma_cm_event_type)19)

/*
 * rdma_getaddrinfo without blocking. On success returns 0, and RDMA_CM_EVENT_ADDRINFO_RESOLVED or
 * RDMA_CM_EVENT_ADDRINFO_ERROR follows on the id's channel. On failure returns -1 and sets errno; no event follows.
 */
int rdma_resolve_addrinfo(struct rdma_cm_id *id, const char *node, const char *service,
			  const struct rdma_addrinfo *hints);

/*
 * Returns the result after RDMA_CM_EVENT_ADDRINFO_RESOLVED; the caller frees it with rdma_freeaddrinfo. Returns 0, or -1 and
 * sets errno: ENOENT if there is no result.
 */
int rdma_query_addrinfo(struct rdma_cm_id *id, struct rdma_addrinfo **info);

/* Queues the event RDMA_CM_EVENT_USER on the id's channel. Returns 0, or -1 and sets errno. */
int rdma_write_cm_event(struct rdma_cm_id *id, enum rdma_cm_event_type event, int status,
			uint64_t arg);

#endif

/* Returns the argument of RDMA_CM_EVENT_USER, whether or not the header declares its field. */
static inline uint64_t portolan_event_arg(const struct rdma_cm_event *event)
{
	uint64_t arg;

	__builtin_memcpy(&arg, &event->param, sizeof(arg));
	return arg;
}

#ifdef __cplusplus
}
#endif

#endif
