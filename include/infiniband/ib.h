/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* InfiniBand socket addresses: the kernel's AF_IB. */
#ifndef PORTOLAN_INFINIBAND_IB_H
#define PORTOLAN_INFINIBAND_IB_H
/* librdmacm's header of this name, if included later, adds nothing. */
#define _RDMA_IB_H

#include <endian.h>
#include <linux/types.h>
#include <string.h>

#ifndef AF_IB
#define AF_IB 27
#endif
#ifndef PF_IB
#define PF_IB AF_IB
#endif

/* A GID, big-endian. */
struct ib_addr {
	union {
		__u8 uib_addr8[16];
		__be16 uib_addr16[8];
		__be32 uib_addr32[4];
		__be64 uib_addr64[2];
	} ib_u;
};

#define sib_addr8 ib_u.uib_addr8
#define sib_addr16 ib_u.uib_addr16
#define sib_addr32 ib_u.uib_addr32
#define sib_addr64 ib_u.uib_addr64
#define sib_raw ib_u.uib_addr8
#define sib_subnet_prefix ib_u.uib_addr64[0]
#define sib_interface_id ib_u.uib_addr64[1]

static inline int ib_addr_any(const struct ib_addr *addr)
{
	return !(addr->sib_addr64[0] | addr->sib_addr64[1]);
}

static inline int ib_addr_loopback(const struct ib_addr *addr)
{
	return !addr->sib_addr64[0] && addr->sib_addr64[1] == htobe64(1);
}

static inline void ib_addr_set(struct ib_addr *addr, __be32 first, __be32 second, __be32 third,
			       __be32 fourth)
{
	const __be32 words[4] = { first, second, third, fourth };

	memcpy(addr, words, sizeof(words));
}

static inline int ib_addr_cmp(const struct ib_addr *one, const struct ib_addr *other)
{
	return memcmp(one, other, sizeof(*one));
}

/* Big-endian, except the family and the scope id. */
struct sockaddr_ib {
	unsigned short int sib_family;
	__be16 sib_pkey;
	__be32 sib_flowinfo;
	struct ib_addr sib_addr;
	__be64 sib_sid;
	__be64 sib_sid_mask;
	__u64 sib_scope_id;
};

#endif
