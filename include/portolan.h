/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What Portolan's libraries have and older headers of rdma-core do not declare: the calls of RDMACM_1.4 (in rdma-core since
 * 60), and ibv_gid_reachable (in none). With Portolan's own headers, or rdma-core's of any version.
 *
 * All of it is in librdmacm.so.1: link with -lrdmacm -libverbs.
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
 * Whether a GID can be reached from a port of an open device: on InfiniBand the subnet administrator is asked for a path, on
 * Ethernet the routes and the next hop are. Blocks until that is known.
 *
 * `port` 0 stands for any port; `timeout` is reserved and 0. Gives 0 if it can be reached, else -1 and errno: ENXIO there is
 * no path, EINVAL an argument is wrong, EIO asking failed, ENOMEM, EINTR.
 */
#ifndef PORTOLAN_GID_REACHABLE
#define PORTOLAN_GID_REACHABLE
int ibv_gid_reachable(struct ibv_context *context, unsigned int port, union ibv_gid *gid_p,
		      int timeout);
#endif

/* Headers that know the name of one know the rest. */
#ifndef RAI_SA

#define RAI_SA 0x00000010
#define RAI_DNS 0x00000020

#define RDMA_CM_EVENT_ADDRINFO_RESOLVED ((enum rdma_cm_event_type)16)
#define RDMA_CM_EVENT_ADDRINFO_ERROR ((enum rdma_cm_event_type)17)
#define RDMA_CM_EVENT_USER ((enum rdma_cm_event_type)18)
#define RDMA_CM_EVENT_INTERNAL ((enum rdma_cm_event_type)19)

/*
 * rdma_getaddrinfo without waiting. Gives 0, and RDMA_CM_EVENT_ADDRINFO_RESOLVED or RDMA_CM_EVENT_ADDRINFO_ERROR follows on
 * the id's channel; or -1 and errno, and nothing follows.
 */
int rdma_resolve_addrinfo(struct rdma_cm_id *id, const char *node, const char *service,
			  const struct rdma_addrinfo *hints);

/*
 * The result, after RDMA_CM_EVENT_ADDRINFO_RESOLVED; the caller frees it by rdma_freeaddrinfo. Gives 0, or -1 and errno:
 * ENOENT if there is none.
 */
int rdma_query_addrinfo(struct rdma_cm_id *id, struct rdma_addrinfo **info);

/* Puts an event, RDMA_CM_EVENT_USER, behind those that wait for the id's channel. Gives 0, or -1 and errno. */
int rdma_write_cm_event(struct rdma_cm_id *id, enum rdma_cm_event_type event, int status,
			uint64_t arg);

#endif

/* The argument of RDMA_CM_EVENT_USER, whether or not the header's structure names its field. */
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
