/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Verbs for C programs: what libibverbs's header of this name declares in rdma-core 44, and so in every later one. What
 * the calls do is on their man pages. Those that give an int give 0, or the number of an error (-1 and errno where their
 * page says so); those that give a pointer give a null pointer and errno.
 *
 * Structures are the binary interface: sizes, places of fields and numbers are those of rdma-core.
 */
#ifndef INFINIBAND_VERBS_H
#define INFINIBAND_VERBS_H

/* What everything stands on, then objects, then who carries work out, then the calls. */
#include <infiniband/verbs/base.h>
#include <infiniband/verbs/address.h>
#include <infiniband/verbs/memory.h>
#include <infiniband/verbs/completion.h>
#include <infiniband/verbs/shared_receive.h>
#include <infiniband/verbs/queue_pair.h>
#include <infiniband/verbs/work.h>
#include <infiniband/verbs/builder.h>
#include <infiniband/verbs/flow.h>
#include <infiniband/verbs/device.h>
#include <infiniband/verbs/port.h>
#include <infiniband/verbs/context.h>
#include <infiniband/verbs/calls.h>
#include <infiniband/verbs/optional_calls.h>

#endif
