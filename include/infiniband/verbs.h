/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Verbs for C programs: the declarations of libibverbs's header of this name in rdma-core 44, which later versions keep. The
 * man pages describe the calls. Calls that return an int return 0 or an error number (or -1 with errno set, if the page
 * says so). Calls that return a pointer return null and set errno on failure.
 *
 * The structures are part of the binary interface: sizes, offsets and numbers are those of rdma-core.
 */
#ifndef INFINIBAND_VERBS_H
#define INFINIBAND_VERBS_H

/* Common types, objects, work requests, devices, calls. */
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
