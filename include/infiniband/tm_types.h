/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Wire format of the headers of tag-matched messages. */
#ifndef _TM_TYPES_H
#define _TM_TYPES_H

#include <linux/types.h>
#include <stdint.h>

enum ibv_tmh_op {
	IBV_TMH_NO_TAG = 0,
	IBV_TMH_RNDV = 1,
	IBV_TMH_FIN = 2,
	IBV_TMH_EAGER = 3
};

/* Precedes every message. */
struct ibv_tmh {
	uint8_t opcode; /* enum ibv_tmh_op */
	uint8_t reserved[3];
	__be32 app_ctx;
	__be64 tag;
};

/* For a rendezvous: the location of the data to read. */
struct ibv_rvh {
	__be64 va;
	__be32 rkey;
	__be32 len;
};

#endif
