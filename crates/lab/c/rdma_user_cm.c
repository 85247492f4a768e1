/*
 * Checks commands in the kernel's newest header that rdma-core's headers in stable suites lack. The test is to
 * compile this file. crates/kernel/src/rdma_cm uses the same numbers.
 */
#include <stddef.h>
#include <rdma/rdma_user_cm.h>

_Static_assert(RDMA_USER_CM_CMD_RESOLVE_IB_SERVICE == 23, "the command's number");
_Static_assert(RDMA_USER_CM_CMD_WRITE_CM_EVENT == 24, "the command's number");
_Static_assert(RDMA_USER_CM_QUERY_IB_SERVICE == 3, "the query's number");
_Static_assert(RDMA_USER_CM_IB_SERVICE_FLAG_ID == 1, "by id");
_Static_assert(RDMA_USER_CM_IB_SERVICE_FLAG_NAME == 2, "by name");
_Static_assert(RDMA_USER_CM_IB_SERVICE_NAME_SIZE == 64, "length of a name");

_Static_assert(sizeof(struct rdma_ucm_resolve_ib_service) == 88, "the command's length");
_Static_assert(offsetof(struct rdma_ucm_resolve_ib_service, id) == 0, "id");
_Static_assert(offsetof(struct rdma_ucm_resolve_ib_service, ibs.service_id) == 8, "service id");
_Static_assert(offsetof(struct rdma_ucm_resolve_ib_service, ibs.service_name) == 16, "name");
_Static_assert(offsetof(struct rdma_ucm_resolve_ib_service, ibs.flags) == 80, "flags");

_Static_assert(offsetof(struct rdma_ucm_query_ib_service_resp, num_service_recs) == 0, "count");
_Static_assert(offsetof(struct rdma_ucm_query_ib_service_resp, recs) == 8, "records");
_Static_assert(sizeof(struct ib_user_service_rec) == 176, "a record's length");
_Static_assert(offsetof(struct ib_user_service_rec, id) == 0, "service id");
_Static_assert(offsetof(struct ib_user_service_rec, gid) == 8, "GID");
_Static_assert(offsetof(struct ib_user_service_rec, pkey) == 24, "partition");
_Static_assert(offsetof(struct ib_user_service_rec, name) == 48, "name");

_Static_assert(sizeof(struct rdma_ucm_write_cm_event) == 328 - 8, "the command's length, as the kernel reads it");
_Static_assert(offsetof(struct rdma_ucm_write_cm_event, param.arg) == 16, "argument");
