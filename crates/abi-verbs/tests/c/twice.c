/*
 * Destroys each object twice, as programs with overlapping error paths do. The second call must be refused, and the
 * other objects must continue to work. Exits with 0, or prints the wrong line.
 */

#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(is_so) ((is_so) ? (void)0 : failed(__LINE__, #is_so))
/* The second call must not wait. Long, for busy machines. */
#define DEADLINE_SECONDS 60
#define ENDERS 4
#define TURNS 200

static void failed(int line, const char *what) {
	fprintf(stderr, "line %d: %s (errno %d: %s)\n", line, what, errno, strerror(errno));
	exit(1);
}

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static char memory[4096] __attribute__((aligned(4096)));

static struct ibv_context *open_loopback(void) {
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);
	struct ibv_context *found = NULL;
	CHECK(list && count > 0);
	for (int at = 0; at < count; at++)
		if (!strcmp(ibv_get_device_name(list[at]), "sw_lo"))
			found = ibv_open_device(list[at]);
	ibv_free_device_list(list);
	CHECK(found);
	return found;
}

static struct ibv_qp *make_qp(struct ibv_srq *srq) {
	struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1}};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	return qp;
}

static atomic_int waiting, ended;

static void *end_one(void *qp) {
	atomic_fetch_sub(&waiting, 1);
	while (atomic_load(&waiting) > 0)
		;
	int outcome = ibv_destroy_qp(qp);
	CHECK(outcome == 0 || outcome == EINVAL);
	if (!outcome)
		atomic_fetch_add(&ended, 1);
	return NULL;
}

/* If several threads destroy the same queue pair, one succeeds. */
static void at_the_same_time(void) {
	for (int turn = 0; turn < TURNS; turn++) {
		pthread_t enders[ENDERS];
		struct ibv_qp *qp = make_qp(NULL);
		atomic_store(&waiting, ENDERS);
		atomic_store(&ended, 0);
		for (int at = 0; at < ENDERS; at++)
			CHECK(!pthread_create(&enders[at], NULL, end_one, qp));
		for (int at = 0; at < ENDERS; at++)
			CHECK(!pthread_join(enders[at], NULL));
		CHECK(atomic_load(&ended) == 1);
	}
}

int main(void) {
	alarm(DEADLINE_SECONDS);
	context = open_loopback();
	pd = ibv_alloc_pd(context);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	CHECK(pd && channel);
	cq = ibv_create_cq(context, 16, NULL, channel, 0);
	struct ibv_srq_init_attr srq_init = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct ibv_srq *srq = ibv_create_srq(pd, &srq_init);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	union ibv_gid gid;
	CHECK(cq && srq && mr && mw && !ibv_query_gid(context, 1, 0, &gid));
	struct ibv_ah_attr to = {.port_num = 1, .is_global = 1, .grh = {.dgid = gid, .hop_limit = 1}};
	struct ibv_ah *ah = ibv_create_ah(pd, &to);
	struct ibv_qp *qp = make_qp(NULL), *other = make_qp(srq);
	CHECK(ah);

	CHECK(!ibv_destroy_qp(qp) && ibv_destroy_qp(qp) == EINVAL && errno == EINVAL);
	/* An object that is refused because it is in use must survive. */
	CHECK(ibv_destroy_srq(srq) == EBUSY && ibv_destroy_srq(srq) == EBUSY);
	CHECK(ibv_destroy_cq(cq) == EBUSY && ibv_dealloc_pd(pd) == EBUSY);
	CHECK(ibv_destroy_comp_channel(channel) == EBUSY);
	CHECK(!ibv_destroy_qp(other) && ibv_destroy_qp(other) == EINVAL);
	at_the_same_time();
	CHECK(!ibv_destroy_srq(srq) && ibv_destroy_srq(srq) == EINVAL);
	CHECK(!ibv_destroy_ah(ah) && ibv_destroy_ah(ah) == EINVAL);
	/* The inline call is part of the program and reads from the window. */
	CHECK(!ibv_dealloc_mw(mw) && context->ops.dealloc_mw(mw) == EINVAL);
	CHECK(!ibv_dereg_mr(mr) && ibv_dereg_mr(mr) == EINVAL);
	CHECK(!ibv_destroy_cq(cq) && ibv_destroy_cq(cq) == EINVAL);
	CHECK(!ibv_destroy_comp_channel(channel) && ibv_destroy_comp_channel(channel) == EINVAL);
	CHECK(!ibv_dealloc_pd(pd) && ibv_dealloc_pd(pd) == EINVAL);
	CHECK(!ibv_close_device(context) && ibv_close_device(context) == EINVAL);
	puts("all as it should be");
	return 0;
}
