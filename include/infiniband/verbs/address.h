/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Addresses and address vectors. Part of infiniband/verbs.h. */
#ifndef PORTOLAN_VERBS_ADDRESS_H
#define PORTOLAN_VERBS_ADDRESS_H

#include <infiniband/verbs/base.h>

/* 16 bytes in network order: on Ethernet an IPv6 or IPv4-mapped address. */
union ibv_gid {
	uint8_t raw[16];
	struct {
		__be64 subnet_prefix;
		__be64 interface_id;
	} global;
};

enum ibv_gid_type {
	IBV_GID_TYPE_IB = 0,
	IBV_GID_TYPE_ROCE_V1 = 1,
	IBV_GID_TYPE_ROCE_V2 = 2
};

/* An entry of a port's GID table. */
struct ibv_gid_entry {
	union ibv_gid gid;
	uint32_t gid_index;
	uint32_t port_num;
	uint32_t gid_type; /* enum ibv_gid_type */
	uint32_t ndev_ifindex; /* the network interface; 0 on InfiniBand */
};

/* The global route of an address vector. */
struct ibv_global_route {
	union ibv_gid dgid;
	uint32_t flow_label;
	uint8_t sgid_index;
	uint8_t hop_limit;
	uint8_t traffic_class;
};

/* The network header before a datagram. */
struct ibv_grh {
	__be32 version_tclass_flow;
	__be16 paylen;
	uint8_t next_hdr;
	uint8_t hop_limit;
	union ibv_gid sgid;
	union ibv_gid dgid;
};

/* An address vector: on Ethernet only `grh` is used, and `is_global` is 1. */
struct ibv_ah_attr {
	struct ibv_global_route grh;
	uint16_t dlid;
	uint8_t sl;
	uint8_t src_path_bits;
	uint8_t static_rate; /* enum ibv_rate */
	uint8_t is_global;
	uint8_t port_num;
};

/* An address handle, for datagrams. */
struct ibv_ah {
	struct ibv_context *context;
	struct ibv_pd *pd;
	uint32_t handle;
};

/* Numbers of rates in path records and address vectors. */
enum ibv_rate {
	IBV_RATE_MAX = 0,
	IBV_RATE_2_5_GBPS = 2,
	IBV_RATE_5_GBPS = 5,
	IBV_RATE_10_GBPS = 3,
	IBV_RATE_14_GBPS = 11,
	IBV_RATE_20_GBPS = 6,
	IBV_RATE_25_GBPS = 15,
	IBV_RATE_28_GBPS = 19,
	IBV_RATE_30_GBPS = 4,
	IBV_RATE_40_GBPS = 7,
	IBV_RATE_50_GBPS = 20,
	IBV_RATE_56_GBPS = 12,
	IBV_RATE_60_GBPS = 8,
	IBV_RATE_80_GBPS = 9,
	IBV_RATE_100_GBPS = 16,
	IBV_RATE_112_GBPS = 13,
	IBV_RATE_120_GBPS = 10,
	IBV_RATE_168_GBPS = 14,
	IBV_RATE_200_GBPS = 17,
	IBV_RATE_300_GBPS = 18,
	IBV_RATE_400_GBPS = 21,
	IBV_RATE_600_GBPS = 22,
	IBV_RATE_800_GBPS = 23,
	IBV_RATE_1200_GBPS = 24
};

/* RoCEv2: range of UDP source ports, and mask of a flow label. */
#define IB_ROCE_UDP_ENCAP_VALID_PORT_MIN (0xC000)
#define IB_ROCE_UDP_ENCAP_VALID_PORT_MAX (0xFFFF)
#define IB_GRH_FLOWLABEL_MASK (0x000FFFFF)

/* The source port of a flow: the label's low 14 bits, with its high 6 folded in. */
static inline uint16_t ibv_flow_label_to_udp_sport(uint32_t flow_label)
{
	const uint32_t low = flow_label & 0x03FFF, high = (flow_label & 0xFC000) >> 14;

	return (uint16_t)(IB_ROCE_UDP_ENCAP_VALID_PORT_MIN | (low ^ high));
}

/* Length of an Ethernet address, in bytes. */
#define ETHERNET_LL_SIZE 6

#endif
