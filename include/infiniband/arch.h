/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Byte order of 64-bit numbers, for programs older than endian.h's functions. */
#ifndef INFINIBAND_ARCH_H
#define INFINIBAND_ARCH_H

#include <endian.h>
#include <stdint.h>

#ifndef ntohll
static inline uint64_t ntohll(uint64_t number)
{
	return be64toh(number);
}

static inline uint64_t htonll(uint64_t number)
{
	return htobe64(number);
}
#define ntohll ntohll
#define htonll htonll
#endif

#endif
