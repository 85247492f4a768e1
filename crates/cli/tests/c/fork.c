/*
 * Forks while a thread of the parent pings without a pause and may hold any lock of the libraries.
 *
 *   fork KIND ADDRESS PORT      KIND is what each child does: touch, exit, exec, own, again; with "thread", it is
 *                               own, and another thread than the first forks
 */
#include "pinger.h"
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHILDREN 20
/* The signal ends a child that hangs. */
#define CHILD_TIME_S 60

static struct pinger pinger;
/* Something to wait for forever. */
static struct rdma_event_channel *connections;
static struct ibv_comp_channel *completions;
static _Atomic int is_done;

static void *ping_on(void *failed)
{
	while (!is_done && !*(int *)failed)
		*(int *)failed = pinger_ping(&pinger);
	return NULL;
}

static int mistakes;

static void refused(const char *call, int is_refused)
{
	if (is_refused && errno == EOPNOTSUPP)
		return;
	printf("%s: %s, %s\n", call, is_refused ? "refused" : "not refused", strerror(errno));
	mistakes++;
}

#define REFUSED(call, answer) (errno = 0, refused(#call, (call) == (answer)))

/* The parent's objects belong to the parent: each call must be refused. */
static int touch(void)
{
	struct rdma_conn_param param = depths;
	struct sockaddr *address = rdma_get_peer_addr(pinger.id);
	struct ibv_qp *qp = pinger.id->qp;
	struct ibv_context *verbs = pinger.id->verbs;
	struct ibv_sge sge = { (uintptr_t)&pinger.memory.out, 16, pinger.region->lkey };
	struct ibv_send_wr send = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad_send;
	struct ibv_recv_wr receive = { .sg_list = &sge, .num_sge = 1 }, *bad_receive;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct ibv_qp_init_attr init = queues;
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	struct ibv_cq *cq;
	struct ibv_wc wc;
	void *context;

	REFUSED(rdma_get_cm_event(connections, &event), -1);
	REFUSED(ibv_get_cq_event(completions, &cq, &context), -1);
	REFUSED(ibv_get_cq_event(pinger.completions, &cq, &context), -1);
	/* ibv_poll_cq reports errors only as a negative number. */
	if (ibv_poll_cq(pinger.cq, 1, &wc) >= 0 && ++mistakes)
		printf("ibv_poll_cq: not refused\n");
	REFUSED(ibv_req_notify_cq(pinger.cq, 0), EOPNOTSUPP);
	REFUSED(ibv_post_send(qp, &send, &bad_send), EOPNOTSUPP);
	REFUSED(ibv_post_recv(qp, &receive, &bad_receive), EOPNOTSUPP);
	REFUSED(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EOPNOTSUPP);
	REFUSED(ibv_reg_mr(pinger.id->pd, &pinger.memory, 16, 0), NULL);
	REFUSED(ibv_create_cq(verbs, 1, NULL, NULL, 0), NULL);
	REFUSED(ibv_create_comp_channel(verbs), NULL);
	REFUSED(ibv_alloc_pd(verbs), NULL);
	REFUSED(rdma_create_id(pinger.channel, &id, NULL, RDMA_PS_TCP), -1);
	REFUSED(rdma_create_qp(pinger.id, NULL, &init), -1);
	REFUSED(rdma_resolve_addr(pinger.id, NULL, address, RESOLVE_MS), -1);
	REFUSED(rdma_resolve_route(pinger.id, RESOLVE_MS), -1);
	REFUSED(rdma_connect(pinger.id, &param), -1);
	REFUSED(rdma_disconnect(pinger.id), -1);
	/* The copies may be destroyed; the results are undefined. */
	rdma_destroy_qp(pinger.id);
	ibv_dereg_mr(pinger.region);
	ibv_destroy_cq(pinger.cq);
	ibv_destroy_comp_channel(pinger.completions);
	rdma_destroy_id(pinger.id);
	rdma_destroy_event_channel(pinger.channel);
	rdma_destroy_event_channel(connections);
	return mistakes;
}

/* Acts like the parent, with a connection of its own. */
static int call(const char *host, const char *port)
{
	struct pinger own = { 0 };
	int failed = pinger_connect(&own, host, port) || pinger_ping(&own);

	pinger_close(&own);
	return failed;
}

/* Has connections of its own; so has a child of it, before and after it has. */
static int call_again(char **argv)
{
	for (int calls = 0; calls < 2; calls++) {
		int status;
		pid_t pid = fork();

		if (pid == 0) {
			alarm(CHILD_TIME_S);
			_exit(call(argv[2], argv[3]) != 0);
		}
		if (pid < 0 || waitpid(pid, &status, 0) != pid || status)
			return broken("a child of a child");
		if (call(argv[2], argv[3]))
			return -1;
	}
	return 0;
}

static void child(char **argv)
{
	alarm(CHILD_TIME_S);
	if (!strcmp(argv[1], "own") || !strcmp(argv[1], "thread"))
		/* What it has of its parent is refused before and after. */
		_exit(call(argv[2], argv[3]) || touch() || call(argv[2], argv[3]));
	if (!strcmp(argv[1], "again"))
		_exit(call_again(argv) != 0);
	if (!strcmp(argv[1], "touch"))
		_exit(touch() != 0);
	if (!strcmp(argv[1], "exec")) {
		execl("/proc/self/exe", argv[0], "call", argv[2], argv[3], NULL);
		_exit(127);
	}
	/* Runs the libraries' exit handlers. */
	exit(0);
}

/* How many children failed. */
static int badly;

static void *fork_all(void *arguments)
{
	char **argv = arguments;
	int status;

	for (int i = 0; i < CHILDREN; i++) {
		pid_t pid = fork();

		if (pid == 0)
			child(argv);
		if (pid < 0 || waitpid(pid, &status, 0) != pid) {
			broken("fork");
			badly++;
		} else if (status) {
			printf("child %d: status 0x%x\n", i, status);
			badly++;
		}
	}
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t thread, forks;
	int failed = 0;

	if (argc != 4)
		return 2;
	/* A child must not print its parent's buffered output again. */
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!strcmp(argv[1], "call"))
		return call(argv[2], argv[3]) != 0;
	if (pinger_connect(&pinger, argv[2], argv[3]))
		return 1;
	connections = rdma_create_event_channel();
	completions = ibv_create_comp_channel(pinger.id->verbs);
	if (!connections || !completions || pthread_create(&thread, NULL, ping_on, &failed))
		return 1;
	if (strcmp(argv[1], "thread"))
		fork_all(argv);
	else if (pthread_create(&forks, NULL, fork_all, argv) || pthread_join(forks, NULL))
		return 1;
	is_done = 1;
	pthread_join(thread, NULL);
	if (!failed)
		failed = pinger_ping(&pinger);
	printf("%d children, %d badly; parent %s\n", CHILDREN, badly, failed ? "broken" : "goes on");
	rdma_destroy_event_channel(connections);
	ibv_destroy_comp_channel(completions);
	pinger_close(&pinger);
	return badly || failed;
}
