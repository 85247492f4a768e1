/*
 * rdma_getaddrinfo and rdma_freeaddrinfo as C sees them. Prints the result of each call and the lists, and frees so
 * many lists that a leak in each would be visible.
 *
 * Usage: lists LOCAL_IPV4
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <malloc.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <rdma/rdma_cma.h>

#define LISTS 2000
/* Less than a byte per list. */
#define SLACK_BYTES 1999

/* Prints the hints and the result. */
#define TELL(node, service, ...) tell(#__VA_ARGS__, node, service, &(struct rdma_addrinfo){ __VA_ARGS__ })

static void tell_address(const char *whose, const struct sockaddr *address, socklen_t length)
{
	char text[INET6_ADDRSTRLEN] = "-";
	in_port_t port = 0;

	if (address && address->sa_family == AF_INET && length == sizeof(struct sockaddr_in)) {
		const struct sockaddr_in *four = (const void *)address;

		inet_ntop(AF_INET, &four->sin_addr, text, sizeof(text));
		port = four->sin_port;
	} else if (address && address->sa_family == AF_INET6 && length == sizeof(struct sockaddr_in6)) {
		const struct sockaddr_in6 *six = (const void *)address;

		inet_ntop(AF_INET6, &six->sin6_addr, text, sizeof(text));
		port = six->sin6_port;
	} else if (address || length) {
		strcpy(text, "wrong");
	}
	printf(", %s %s port %d", whose, text, ntohs(port));
}

static void tell(const char *asked, const char *node, const char *service, const struct rdma_addrinfo *hints)
{
	struct rdma_addrinfo *list = NULL;
	int given;

	errno = 0;
	given = rdma_getaddrinfo(node, service, hints, &list);
	printf("%s, %s, { %s }: %d, %s\n", node ? node : "NULL", service ? service : "NULL", asked, given,
	       given ? strerrorname_np(errno) : "no error");
	if (given && list)
		printf("  a list all the same\n");
	for (const struct rdma_addrinfo *each = list; each; each = each->ai_next) {
		printf("  family %d, type %d, port space %x", each->ai_family, each->ai_qp_type, each->ai_port_space);
		tell_address("from", each->ai_src_addr, each->ai_src_len);
		tell_address("to", each->ai_dst_addr, each->ai_dst_len);
		printf("%s\n", each->ai_next ? "" : ", the last");
	}
	if (!given)
		rdma_freeaddrinfo(list);
}

static size_t in_use_bytes(void)
{
	struct mallinfo2 info = mallinfo2();

	return info.uordblks + info.hblkhd;
}

static void free_lists(void)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP };
	size_t before = 0, after;

	for (int lists = -1; lists < LISTS; lists++) {
		struct rdma_addrinfo *list;

		if (rdma_getaddrinfo(NULL, "7471", &hints, &list) || !list->ai_next) {
			printf("no list of two\n");
			exit(1);
		}
		rdma_freeaddrinfo(list);
		/* The first one leaves allocations that are made once. */
		if (lists < 0)
			before = in_use_bytes();
	}
	after = in_use_bytes();
	if (after > before + SLACK_BYTES)
		printf("%d lists left %zu bytes behind\n", LISTS, after - before);
	else
		printf("%d lists of two freed\n", LISTS);
}

int main(int argc, char **argv)
{
	const char *local = argv[1];
	int given;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc != 2)
		return 2;
	printf("== found\n");
	TELL(local, "7471", .ai_port_space = RDMA_PS_TCP);
	TELL(local, "7471", .ai_qp_type = IBV_QPT_UD, .ai_port_space = RDMA_PS_UDP);
	TELL(NULL, "7471", .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP);
	printf("== not found\n");
	TELL("not.a.number", "7471", .ai_flags = RAI_NUMERICHOST);
	TELL(local, "no such service", .ai_port_space = RDMA_PS_TCP);
	TELL(local, "7471", .ai_flags = 1 << 30);
	TELL(local, "7471", .ai_flags = RAI_FAMILY, .ai_family = AF_UNIX);
	TELL(local, "7471", .ai_qp_type = IBV_QPT_UD, .ai_port_space = RDMA_PS_TCP);
	TELL(NULL, NULL, .ai_flags = 0);
	given = rdma_getaddrinfo(local, "7471", NULL, NULL);
	printf("no place for a list: %d, %s\n", given, strerrorname_np(errno));
	printf("== freed\n");
	rdma_freeaddrinfo(NULL);
	free_lists();
	printf("== end\n");
	return 0;
}
