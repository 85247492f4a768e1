/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Byte order of 64 bits, for programs from before endian.h had it. */
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
