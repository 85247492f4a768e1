/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Follows tutorials of rdma_getaddrinfo: hints, an error's text, each address in the list, freeing the list. It
 * knows nothing of Portolan.
 */
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <rdma/rdma_cma.h>

static int connected;

/* Connects to an address and disconnects. */
static void create_rdma_connection(struct rdma_addrinfo *info)
{
	struct ibv_qp_init_attr attr;
	struct rdma_cm_id *id;

	memset(&attr, 0, sizeof(attr));
	attr.cap.max_send_wr = attr.cap.max_recv_wr = 1;
	attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
	if (rdma_create_ep(&id, info, NULL, &attr)) {
		perror("rdma_create_ep");
		return;
	}
	if (rdma_connect(id, NULL))
		perror("rdma_connect");
	else {
		printf("connected\n");
		connected++;
		rdma_disconnect(id);
	}
	rdma_destroy_ep(id);
}

static void get_rdma_addr(const char *host, const char *port)
{
	struct rdma_addrinfo hints, *list, *info;
	int error;

	memset(&hints, 0, sizeof(hints));
	hints.ai_family = AF_UNSPEC;
	hints.ai_qp_type = IBV_QPT_RC;
	hints.ai_port_space = RDMA_PS_TCP;
	error = rdma_getaddrinfo(host, port, &hints, &list);
	if (error) {
		fprintf(stderr, "rdma_getaddrinfo: %s\n", gai_strerror(error));
		return;
	}
	for (info = list; info; info = info->ai_next)
		create_rdma_connection(info);
	rdma_freeaddrinfo(list);
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	get_rdma_addr(argv[1], argv[2]);
	return !connected;
}
