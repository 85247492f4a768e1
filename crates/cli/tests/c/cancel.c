/* Threads that wait for events are cancelled (pthread_cancel(3)), and end. */
#define _GNU_SOURCE
#include <infiniband/verbs.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

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

/* Whether the thread sleeps in a system call: its state is S. */
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
	/* Nothing is held by who is gone. */
	rdma_destroy_event_channel(connections);
	if (ibv_destroy_comp_channel(completions) || ibv_close_device(context))
		return 1;
	printf("closed\n");
	return 0;
}
