/*
 * The calls of RDMACM_1.4, which rdma-core has since version 60, and ibv_gid_reachable. Prints the results and the
 * following events.
 *
 * Usage: newer LOCAL_IPV4 UNREACHABLE_IPV4
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <portolan.h>

#define PATIENCE_MS 40000

/* Prints what a call returns, and errno if it failed. */
#define TELL(call)                                                              \
	({                                                                      \
		errno = 0;                                                      \
		int told_ = (call);                                             \
		printf("%s = %d%s%s\n", #call, told_, told_ ? ", " : "",       \
		       told_ ? strerrorname_np(errno) : "");                    \
		told_;                                                          \
	})

static struct rdma_event_channel *channel;

static void tell_event(void)
{
	struct pollfd ready = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *event;

	if (poll(&ready, 1, PATIENCE_MS) != 1 || rdma_get_cm_event(channel, &event)) {
		printf("no event\n");
		exit(1);
	}
	printf("  event %d, status %d", event->event, event->status);
	if (event->event == RDMA_CM_EVENT_USER) {
		uint64_t arg;

		memcpy(&arg, &event->param, sizeof(arg));
		printf(", argument %llx", (unsigned long long)arg);
	}
	printf("\n");
	rdma_ack_cm_event(event);
}

static void tell_list(struct rdma_addrinfo *list)
{
	for (struct rdma_addrinfo *each = list; each; each = each->ai_next) {
		char text[INET6_ADDRSTRLEN] = "";
		struct sockaddr_in *to = (struct sockaddr_in *)each->ai_dst_addr;

		if (each->ai_family != AF_INET || !to)
			continue;
		inet_ntop(AF_INET, &to->sin_addr, text, sizeof(text));
		printf("  to %s port %d, type %d, port space %x, source %s\n", text,
		       ntohs(to->sin_port), each->ai_qp_type, each->ai_port_space,
		       each->ai_src_len ? "yes" : "no");
	}
}

static void names(const char *local)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP };
	struct rdma_addrinfo by_administrator = { .ai_flags = RAI_SA };
	struct rdma_addrinfo contradiction = { .ai_flags = RAI_SA | RAI_DNS };
	struct sockaddr_in address = { .sin_family = AF_INET };
	struct rdma_addrinfo *list = NULL;
	struct rdma_cm_id *id;

	printf("== names\n");
	TELL(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	TELL(rdma_query_addrinfo(id, &list));
	TELL(rdma_query_addrinfo(id, NULL));
	TELL(rdma_resolve_addrinfo(NULL, local, "7471", NULL));
	TELL(rdma_resolve_addrinfo(id, NULL, NULL, NULL));
	TELL(rdma_resolve_addrinfo(id, NULL, "7471", &contradiction));
	TELL(rdma_resolve_addrinfo(id, NULL, "7471", &by_administrator));
	TELL(rdma_resolve_addrinfo(id, local, "7471", &hints));
	TELL(rdma_resolve_addrinfo(id, local, "7471", &hints));
	TELL(rdma_query_addrinfo(id, &list));
	tell_event();
	TELL(rdma_resolve_addrinfo(id, local, "7471", &hints));
	TELL(rdma_query_addrinfo(id, &list));
	tell_list(list);
	rdma_freeaddrinfo(list);
	TELL(rdma_query_addrinfo(id, &list));

	/* Whether answered at once or in the background, there is an event. */
	TELL(rdma_resolve_addrinfo(id, "localhost", "7471", &hints));
	tell_event();
	TELL(rdma_query_addrinfo(id, &list));
	tell_list(list);
	rdma_freeaddrinfo(list);

	/* Nobody takes the result of this one. */
	TELL(rdma_resolve_addrinfo(id, local, "7471", &hints));
	TELL(rdma_destroy_id(id));

	TELL(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	inet_pton(AF_INET, local, &address.sin_addr);
	TELL(rdma_bind_addr(id, (struct sockaddr *)&address));
	TELL(rdma_resolve_addrinfo(id, NULL, "7471", &by_administrator));
	TELL(rdma_destroy_id(id));

	printf("== a synchronous id\n");
	TELL(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	TELL(rdma_resolve_addrinfo(id, local, "7471", &hints));
	TELL(rdma_query_addrinfo(id, &list));
	tell_list(list);
	rdma_freeaddrinfo(list);
	TELL(rdma_destroy_id(id));
}

static void written(void)
{
	struct rdma_cm_id *id;

	printf("== written events\n");
	TELL(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	TELL(rdma_write_cm_event(id, RDMA_CM_EVENT_ESTABLISHED, 0, 1));
	TELL(rdma_write_cm_event(id, RDMA_CM_EVENT_INTERNAL, 0, 1));
	TELL(rdma_write_cm_event(NULL, RDMA_CM_EVENT_USER, 0, 1));
	TELL(rdma_write_cm_event(id, RDMA_CM_EVENT_USER, -7, 0x123456789abcdef0));
	TELL(rdma_write_cm_event(id, RDMA_CM_EVENT_USER, 0, 2));
	tell_event();
	tell_event();
	TELL(rdma_destroy_id(id));
}

static union ibv_gid gid_of(const char *text)
{
	union ibv_gid gid = { .raw = { [10] = 0xff, [11] = 0xff } };

	inet_pton(AF_INET, text, &gid.raw[12]);
	return gid;
}

static void reachable(const char *local, const char *unreachable)
{
	union ibv_gid here = gid_of(local), there = gid_of(unreachable), group = gid_of("239.1.1.1");
	struct sockaddr_in address = { .sin_family = AF_INET };
	struct rdma_cm_id *id;

	printf("== reachable\n");
	inet_pton(AF_INET, local, &address.sin_addr);
	TELL(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	TELL(rdma_bind_addr(id, (struct sockaddr *)&address));
	TELL(ibv_gid_reachable(id->verbs, 0, &here, 0));
	TELL(ibv_gid_reachable(id->verbs, 1, &here, 0));
	TELL(ibv_gid_reachable(id->verbs, 2, &here, 0));
	TELL(ibv_gid_reachable(id->verbs, 257, &here, 0));
	TELL(ibv_gid_reachable(id->verbs, 1, &here, 1));
	TELL(ibv_gid_reachable(id->verbs, 1, NULL, 0));
	TELL(ibv_gid_reachable(NULL, 1, &here, 0));
	TELL(ibv_gid_reachable(id->verbs, 1, &group, 0));
	TELL(ibv_gid_reachable(id->verbs, 1, &there, 0));
	TELL(rdma_destroy_id(id));
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	channel = rdma_create_event_channel();
	if (argc != 3 || !channel)
		return 2;
	names(argv[1]);
	written();
	reachable(argv[1], argv[2]);
	rdma_destroy_event_channel(channel);
	printf("== end\n");
	return 0;
}
