/*
 * Cancels threads (pthread_cancel(3)). Those that wait for events end at once. Those in another call end after it,
 * at their next cancellation point.
 */
#define _GNU_SOURCE
#include <infiniband/verbs.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Threads that are cancelled while others poll the same completion queue. */
#define POLLERS 200

static struct ibv_context *context;
static struct ibv_comp_channel *completions;
static struct rdma_event_channel *connections;
static _Atomic long waiter;

static void *of_the_device(void *unused)
{
	struct ibv_async_event event;
	waiter = syscall(SYS_gettid);
	ibv_get_async_event(context, &event);
	return unused;
}

static void *of_completions(void *unused)
{
	struct ibv_cq *cq;
	void *cookie;
	waiter = syscall(SYS_gettid);
	ibv_get_cq_event(completions, &cq, &cookie);
	return unused;
}

static void *of_connections(void *unused)
{
	struct rdma_cm_event *event;
	waiter = syscall(SYS_gettid);
	rdma_get_cm_event(connections, &event);
	return unused;
}

/* A queue pair that is on the network, with its completion queue. */
static struct ibv_qp *sender;

/* Sends to an unreachable peer: the call may go down to sendmsg(2). */
static int send_one(void)
{
	struct ibv_ah_attr to = { .port_num = 1, .is_global = 1 };
	struct ibv_send_wr *bad, work = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
	int failed;
	ibv_query_gid(context, 1, 0, &to.grh.dgid);
	if (!(work.wr.ud.ah = ibv_create_ah(sender->pd, &to)))
		return -1;
	work.wr.ud.remote_qpn = 2;
	failed = ibv_post_send(sender, &work, &bad);
	return ibv_destroy_ah(work.wr.ud.ah) || failed;
}

/* Is cancelled before its calls, and must still complete them. */
static void *of_data(void *done)
{
	struct ibv_wc completion;
	pthread_cancel(pthread_self());
	if (send_one())
		return NULL;
	while (!ibv_poll_cq(sender->send_cq, 1, &completion))
		;
	if (ibv_poll_cq(sender->send_cq, 1, &completion) || ibv_req_notify_cq(sender->send_cq, 0))
		return NULL;
	*(int *)done = 1;
	pthread_testcancel();
	return NULL;
}

static void *of_names(void *done)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *list;
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	pthread_cancel(pthread_self());
	if (rdma_getaddrinfo("127.0.0.1", "7471", &hints, &list) || !(channel = rdma_create_event_channel()) ||
	    rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) || rdma_resolve_addr(id, NULL, list->ai_dst_addr, 2000) ||
	    rdma_destroy_id(id))
		return NULL;
	rdma_freeaddrinfo(list);
	rdma_destroy_event_channel(channel);
	*(int *)done = 1;
	pthread_testcancel();
	return NULL;
}

/* Is cancelled before a call that need not wait, and must not complete it. */
static void *of_queued_event(void *done)
{
	struct ibv_cq *queue;
	void *cookie;
	if (ibv_req_notify_cq(sender->send_cq, 0) || send_one())
		return NULL;
	*(int *)done = 1;
	pthread_cancel(pthread_self());
	ibv_get_cq_event(completions, &queue, &cookie);
	return NULL;
}

/* Polls until it is cancelled. */
static void *of_polling(void *unused)
{
	struct ibv_wc completion;
	waiter = 1;
	while (ibv_poll_cq(sender->send_cq, 1, &completion) >= 0)
		pthread_testcancel();
	return unused;
}

static void cancelled_after(const char *name, void *(*body)(void *))
{
	pthread_t thread;
	void *result;
	int done = 0;
	if (pthread_create(&thread, NULL, body, &done) || pthread_join(thread, &result))
		exit(1);
	printf("%s: %s, %s\n", name, done ? "done" : "failed", result == PTHREAD_CANCELED ? "cancelled" : "returned");
}

static void cancelled_while_polling(void)
{
	int ended = 0;
	for (int poller = 0; poller < POLLERS; poller++) {
		pthread_t thread;
		void *result;
		waiter = 0;
		if (pthread_create(&thread, NULL, of_polling, NULL))
			exit(1);
		while (!waiter)
			sched_yield();
		pthread_cancel(thread);
		if (!pthread_join(thread, &result) && result == PTHREAD_CANCELED)
			ended++;
	}
	printf("%d who poll: cancelled\n", ended);
}

static int open_sender(void)
{
	struct ibv_pd *domain = ibv_alloc_pd(context);
	struct ibv_cq *queue = ibv_create_cq(context, 16, NULL, completions, 0);
	struct ibv_qp_init_attr kind = {
		.send_cq = queue, .recv_cq = queue, .qp_type = IBV_QPT_UD, .cap = { 16, 16, 1, 1, 0 },
	};
	struct ibv_qp_attr state = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 1 };
	if (!domain || !queue || !(sender = ibv_create_qp(domain, &kind)) ||
	    ibv_modify_qp(sender, &state, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY))
		return 0;
	state.qp_state = IBV_QPS_RTR;
	if (ibv_modify_qp(sender, &state, IBV_QP_STATE))
		return 0;
	state.qp_state = IBV_QPS_RTS;
	return !ibv_modify_qp(sender, &state, IBV_QP_STATE | IBV_QP_SQ_PSN);
}

static int close_sender(void)
{
	struct ibv_pd *domain = sender->pd;
	struct ibv_cq *queue = sender->send_cq;
	return !ibv_destroy_qp(sender) && !ibv_destroy_cq(queue) && !ibv_dealloc_pd(domain);
}

/* Whether the thread sleeps in a system call (state S). */
static int sleeps(long thread)
{
	char path[64], state = 0;
	snprintf(path, sizeof path, "/proc/self/task/%ld/stat", thread);
	FILE *file = fopen(path, "r");
	if (!file)
		return 0;
	if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
		state = 0;
	fclose(file);
	return state == 'S';
}

static void cancelled(const char *name, void *(*body)(void *))
{
	pthread_t thread;
	void *result;
	struct timespec deadline;
	waiter = 0;
	if (pthread_create(&thread, NULL, body, NULL))
		exit(1);
	while (!waiter || !sleeps(waiter))
		usleep(1000);
	pthread_cancel(thread);
	clock_gettime(CLOCK_REALTIME, &deadline);
	deadline.tv_sec += 60;
	if (pthread_timedjoin_np(thread, &result, &deadline)) {
		printf("%s: still waits\n", name);
		exit(1);
	}
	printf("%s: %s\n", name, result == PTHREAD_CANCELED ? "cancelled" : "returned");
}

int main(void)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	if (!devices || !devices[0] || !(context = ibv_open_device(devices[0])))
		return 1;
	ibv_free_device_list(devices);
	completions = ibv_create_comp_channel(context);
	connections = rdma_create_event_channel();
	if (!completions || !connections)
		return 1;
	cancelled("ibv_get_async_event", of_the_device);
	cancelled("ibv_get_cq_event", of_completions);
	cancelled("rdma_get_cm_event", of_connections);
	if (!open_sender())
		return 1;
	cancelled_after("data", of_data);
	cancelled_after("names and ids", of_names);
	cancelled_after("a queued event", of_queued_event);
	cancelled_while_polling();
	/* The cancelled threads hold nothing. */
	rdma_destroy_event_channel(connections);
	if (!close_sender() || ibv_destroy_comp_channel(completions) || ibv_close_device(context))
		return 1;
	printf("closed\n");
	return 0;
}
