/*
 * Memory that passes between the program and the library. As in librdmacm each part is allocated with malloc: the
 * library frees records that the program made, and the program replaces parts of the library's records.
 *
 * Usage: freed LOCAL_IPV4
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <rdma/rdma_cma.h>

#define PORT 7471
#define TIMEOUT_MS 10000
#define CONNECT_BYTES 36

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			printf("line %d: " #condition " is not so\n", __LINE__); \
			exit(1); \
		} \
	} while (0)

static const char *local;

static struct sockaddr *address(void)
{
	struct sockaddr_in *at = calloc(1, sizeof(*at));

	at->sin_family = AF_INET;
	at->sin_port = htons(PORT);
	inet_pton(AF_INET, local, &at->sin_addr);
	return (struct sockaddr *)at;
}

/* A record made by the program, with every optional part. */
static struct rdma_addrinfo *whole_record(struct rdma_addrinfo *next)
{
	struct rdma_addrinfo *record = calloc(1, sizeof(*record));

	record->ai_src_len = record->ai_dst_len = sizeof(struct sockaddr_in);
	record->ai_src_addr = address();
	record->ai_dst_addr = address();
	record->ai_src_canonname = strdup("here");
	record->ai_dst_canonname = strdup("there");
	record->ai_route_len = sizeof(struct ibv_path_data);
	record->ai_route = calloc(1, record->ai_route_len);
	record->ai_connect_len = CONNECT_BYTES;
	record->ai_connect = calloc(1, CONNECT_BYTES);
	record->ai_next = next;
	return record;
}

static struct rdma_addrinfo *looked_up(int flags)
{
	struct rdma_addrinfo hints = { .ai_flags = flags, .ai_port_space = RDMA_PS_TCP };
	struct rdma_addrinfo *list = NULL;

	CHECK(rdma_getaddrinfo(flags & RAI_PASSIVE ? NULL : local, "7471", &hints, &list) == 0);
	return list;
}

static void records_of_the_program(void)
{
	struct rdma_addrinfo *list;

	rdma_freeaddrinfo(calloc(1, sizeof(*list)));
	rdma_freeaddrinfo(whole_record(whole_record(NULL)));
	/* One record of each kind in a list. */
	rdma_freeaddrinfo(whole_record(looked_up(RAI_PASSIVE)));
}

static void records_that_the_program_changed(void)
{
	struct rdma_addrinfo *list = looked_up(0), *rest;

	/* The source is removed or replaced, whether or not there was one. */
	free(list->ai_src_addr);
	list->ai_src_addr = NULL;
	list->ai_src_len = 0;
	rdma_freeaddrinfo(list);

	list = looked_up(0);
	free(list->ai_src_addr);
	list->ai_src_addr = address();
	list->ai_src_len = sizeof(struct sockaddr_in);
	free(list->ai_dst_canonname);
	list->ai_dst_canonname = strdup("a name of some length that the library has not given");
	free(list->ai_route);
	list->ai_route_len = 2 * sizeof(struct ibv_path_data);
	list->ai_route = calloc(2, sizeof(struct ibv_path_data));
	free(list->ai_connect);
	list->ai_connect_len = CONNECT_BYTES;
	list->ai_connect = calloc(1, CONNECT_BYTES);
	rdma_freeaddrinfo(list);

	/* The program takes a list apart. */
	list = looked_up(RAI_PASSIVE);
	rest = list->ai_next;
	CHECK(rest);
	list->ai_next = NULL;
	rdma_freeaddrinfo(list);
	/* And frees a record by itself. */
	CHECK(!rest->ai_next);
	free(rest->ai_src_addr);
	free(rest->ai_dst_addr);
	free(rest->ai_src_canonname);
	free(rest->ai_dst_canonname);
	free(rest->ai_route);
	free(rest->ai_connect);
	free(rest);
}

static void lists_of_devices(void)
{
	struct ibv_context **contexts;
	struct ibv_device **devices;
	int count;

	contexts = rdma_get_devices(&count);
	CHECK(contexts && count >= 1);
	contexts[0] = NULL;
	rdma_free_devices(contexts);
	contexts = rdma_get_devices(NULL);
	CHECK(contexts);
	free(contexts);
	devices = ibv_get_device_list(&count);
	CHECK(devices && count >= 1);
	devices[0] = NULL;
	ibv_free_device_list(devices);
	devices = ibv_get_device_list(NULL);
	CHECK(devices);
	free(devices);
}

static struct rdma_cm_id *with_a_route(void)
{
	struct rdma_addrinfo *to = looked_up(0);
	struct rdma_cm_id *id;

	CHECK(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addr(id, NULL, to->ai_dst_addr, TIMEOUT_MS) == 0);
	CHECK(rdma_resolve_route(id, TIMEOUT_MS) == 0);
	CHECK(id->route.num_paths >= 1 && id->route.path_rec);
	rdma_freeaddrinfo(to);
	return id;
}

static void paths_of_an_id(void)
{
	struct rdma_cm_id *id = with_a_route();

	CHECK(rdma_destroy_id(id) == 0);

	id = with_a_route();
	free(id->route.path_rec);
	id->route.path_rec = NULL;
	id->route.num_paths = 0;
	CHECK(rdma_destroy_id(id) == 0);

	id = with_a_route();
	free(id->route.path_rec);
	id->route.path_rec = calloc(3, sizeof(*id->route.path_rec));
	id->route.num_paths = 3;
	CHECK(rdma_destroy_id(id) == 0);
}

int main(int argc, char **argv)
{
	if (argc != 2)
		return 2;
	local = argv[1];
	setvbuf(stdout, NULL, _IOLBF, 0);
	records_of_the_program();
	records_that_the_program_changed();
	lists_of_devices();
	paths_of_an_id();
	printf("all as it should be\n");
	return 0;
}
