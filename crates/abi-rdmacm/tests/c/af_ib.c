/*
 * AF_IB: names that lead to it, and its addresses in the calls on ids. Prints one line for each result.
 *
 * Usage: af_ib LOCAL_IPV4
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <infiniband/ib.h>
#include <rdma/rdma_cma.h>

static struct in_addr here;

static const char *told(int result)
{
	static char text[64];

	if (result < 0)
		snprintf(text, sizeof(text), "-1, %s", strerrorname_np(errno));
	else
		snprintf(text, sizeof(text), "%d", result);
	return text;
}

static void show(const char *what, const struct sockaddr *addr, size_t length)
{
	char text[INET6_ADDRSTRLEN] = "?";

	printf("  %s: ", what);
	if (!addr || !length) {
		printf("none\n");
	} else if (addr->sa_family == AF_IB) {
		const struct sockaddr_ib *ib = (const struct sockaddr_ib *)addr;

		inet_ntop(AF_INET6, &ib->sib_addr, text, sizeof(text));
		printf("AF_IB pkey %#x flow %#x %s sid %#llx mask %#llx scope %llu, %zu bytes\n", ntohs(ib->sib_pkey),
		       ntohl(ib->sib_flowinfo), text, (unsigned long long)be64toh(ib->sib_sid),
		       (unsigned long long)be64toh(ib->sib_sid_mask), (unsigned long long)ib->sib_scope_id, length);
	} else if (addr->sa_family == AF_INET) {
		const struct sockaddr_in *in = (const struct sockaddr_in *)addr;

		inet_ntop(AF_INET, &in->sin_addr, text, sizeof(text));
		printf("AF_INET %s %s\n", in->sin_addr.s_addr == here.s_addr ? "here" : text, in->sin_port ? "port" : "no port");
	} else {
		printf("family %d\n", addr->sa_family);
	}
}

static void name(const char *node, const char *service, int flags, int family, int type, int space)
{
	struct rdma_addrinfo hints = { .ai_flags = flags, .ai_family = family, .ai_qp_type = type, .ai_port_space = space };
	struct rdma_addrinfo *found = NULL;
	int result = rdma_getaddrinfo(node, service, &hints, &found);

	printf("name %s %s flags %#x family %d type %d space %#x: ", node ? node : "-", service ? service : "-", flags, family, type,
	       space);
	printf("%s\n", result ? "refused" : "found");
	for (struct rdma_addrinfo *each = found; each; each = each->ai_next) {
		printf("  family %d type %d space %#x flags %#x\n", each->ai_family, each->ai_qp_type, each->ai_port_space, each->ai_flags);
		show("source", each->ai_src_addr, each->ai_src_len);
		show("destination", each->ai_dst_addr, each->ai_dst_len);
	}
	if (!result)
		rdma_freeaddrinfo(found);
}

static struct sockaddr_ib ib(const char *gid, unsigned long long sid, unsigned long long mask, int pkey)
{
	struct sockaddr_ib made = { .sib_family = AF_IB, .sib_pkey = htons(pkey), .sib_sid = htobe64(sid), .sib_sid_mask = htobe64(mask) };

	inet_pton(AF_INET6, gid, &made.sib_addr);
	return made;
}

static void call(const char *what, enum rdma_port_space space, struct sockaddr_ib *bind, struct sockaddr_ib *to)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id = NULL;
	struct rdma_cm_event *event;

	printf("%s, space %#x\n", what, space);
	if (!channel || rdma_create_id(channel, &id, NULL, space)) {
		printf("  no id: %s\n", told(-1));
		exit(1);
	}
	if (bind) {
		int result = rdma_bind_addr(id, (struct sockaddr *)bind);

		printf("  rdma_bind_addr = %s\n", told(result));
		if (!result) {
			show("rdma_get_local_addr", rdma_get_local_addr(id), sizeof(*bind));
			printf("  rdma_get_src_port %s\n", rdma_get_src_port(id) ? "set" : "0");
			printf("  rdma_listen = %s\n", told(rdma_listen(id, 1)));
		}
	}
	if (to) {
		int result = rdma_resolve_addr(id, NULL, (struct sockaddr *)to, 300);

		printf("  rdma_resolve_addr = %s\n", told(result));
		if (!result && !rdma_get_cm_event(channel, &event)) {
			printf("  %s, status %s\n", rdma_event_str(event->event), event->status ? "set" : "0");
			rdma_ack_cm_event(event);
			show("rdma_get_peer_addr", rdma_get_peer_addr(id), sizeof(*to));
		}
	}
	rdma_destroy_id(id);
	rdma_destroy_event_channel(channel);
}

int main(int count, char **arguments)
{
	char gid[64];
	struct sockaddr_ib a, any;
	const int all = RAI_FAMILY | RAI_NUMERICHOST;

	if (count != 2)
		return 2;
	alarm(60);
	setvbuf(stdout, NULL, _IOLBF, 0);
	inet_pton(AF_INET, arguments[1], &here);
	snprintf(gid, sizeof(gid), "::ffff:%s", arguments[1]);

	name(gid, NULL, all, AF_IB, 0, 0);
	name(gid, "7471", all, AF_IB, 0, 0);
	name(gid, "7471", all, AF_IB, IBV_QPT_RC, RDMA_PS_TCP);
	name(gid, "7471", all, AF_IB, IBV_QPT_UD, RDMA_PS_UDP);
	name(gid, "7471", all, AF_IB, IBV_QPT_RC, RDMA_PS_IB);
	name(gid, "7471", all | RAI_PASSIVE, AF_IB, IBV_QPT_RC, RDMA_PS_TCP);
	name("fe80::1", "7471", all, AF_IB, IBV_QPT_RC, RDMA_PS_TCP);
	name("no gid", "7471", all, AF_IB, IBV_QPT_RC, RDMA_PS_TCP);
	name(arguments[1], "7471", all, AF_IB, IBV_QPT_RC, RDMA_PS_TCP);
	name(NULL, "7471", all | RAI_PASSIVE, AF_IB, IBV_QPT_RC, RDMA_PS_TCP);
	name(arguments[1], "7471", RAI_NUMERICHOST, 0, IBV_QPT_RC, RDMA_PS_TCP);

	a = ib(gid, 0x0000000001061d2fULL, 0xffffffffffffffffULL, 0xffff);
	call("its own GID, a TCP service", RDMA_PS_TCP, &a, NULL);
	call("its own GID, a TCP service", RDMA_PS_IB, &a, NULL);
	call("its own GID, a TCP service", RDMA_PS_UDP, &a, NULL);
	a = ib(gid, 0, 0, 0xffff);
	call("its own GID, no service", RDMA_PS_TCP, &a, NULL);
	a = ib(gid, 0x0000000001061d2fULL, 0xffffffffffffffffULL, 0x8001);
	call("its own GID, another partition", RDMA_PS_TCP, &a, NULL);
	a = ib("fe80::dead", 0x0000000001061d2fULL, 0xffffffffffffffffULL, 0xffff);
	call("a GID of nobody", RDMA_PS_TCP, &a, NULL);
	any = ib("::", 0x0000000001061d2fULL, 0xffffffffffffffffULL, 0xffff);
	call("any GID", RDMA_PS_TCP, &any, NULL);
	a = ib(gid, 0x0000000001061d2fULL, 0xffffffffffffffffULL, 0xffff);
	call("to its own GID", RDMA_PS_TCP, NULL, &a);
	call("to its own GID", RDMA_PS_UDP, NULL, &a);
	a = ib("fe80::dead", 0x0000000001061d2fULL, 0xffffffffffffffffULL, 0xffff);
	call("to a GID of nobody", RDMA_PS_TCP, NULL, &a);
	printf("== end\n");
	return 0;
}
