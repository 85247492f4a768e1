/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Hints, a list of addresses, a connection to the first that answers, and freeing the list.
 *
 *   rdma_getaddrinfo -l PORT [ADDRESS]    serves one connection
 *   rdma_getaddrinfo HOST PORT            connects, sends a message and prints the answer
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#define MESSAGE_LEN 64

/* The reason is in errno for -1 and for EAI_SYSTEM; other codes have their own text. */
static int complain(const char *what, int code)
{
	if (code == -1 || code == EAI_SYSTEM)
		fprintf(stderr, "%s: %s\n", what, strerror(errno));
	else
		fprintf(stderr, "%s: %s\n", what, gai_strerror(code));
	return 1;
}

static const char *text_of(const struct sockaddr *address, socklen_t length)
{
	static char text[NI_MAXHOST + NI_MAXSERV + 4];
	char host[NI_MAXHOST], port[NI_MAXSERV];

	if (!length || getnameinfo(address, length, host, sizeof(host), port, sizeof(port),
				   NI_NUMERICHOST | NI_NUMERICSERV))
		return "none";
	snprintf(text, sizeof(text), "[%s]:%s", host, port);
	return text;
}

/* One message in each direction at a time; every request is signaled. */
static struct ibv_qp_init_attr queues(void)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};

	return attr;
}

static int succeeded(int count, const struct ibv_wc *wc)
{
	if (count == 1 && wc->status == IBV_WC_SUCCESS)
		return 1;
	fprintf(stderr, "the work failed: %s\n",
		count == 1 ? ibv_wc_status_str(wc->status) : strerror(errno));
	return 0;
}

/* Prints a peer's message, which may lack a terminating zero. */
static void print(const char *what, const char *message, const struct ibv_wc *wc)
{
	printf("%s: %.*s\n", what, (int)wc->byte_len, message);
}

/* Connects an endpoint, then sends and receives; 0 on success. */
static int converse(struct rdma_cm_id *id)
{
	char out[MESSAGE_LEN] = "ahoy", in[MESSAGE_LEN] = "";
	struct ibv_mr *sends = rdma_reg_msgs(id, out, sizeof(out));
	struct ibv_mr *receives = rdma_reg_msgs(id, in, sizeof(in));
	struct ibv_wc wc;
	int failed = 1;

	if (!sends || !receives || rdma_post_recv(id, NULL, in, sizeof(in), receives))
		perror("preparing");
	else if (rdma_connect(id, NULL))
		perror("rdma_connect");
	else {
		if (rdma_post_send(id, NULL, out, sizeof(out), sends, 0))
			perror("rdma_post_send");
		else if (succeeded(rdma_get_send_comp(id, &wc), &wc) &&
			 succeeded(rdma_get_recv_comp(id, &wc), &wc)) {
			print("answered", in, &wc);
			failed = 0;
		}
		rdma_disconnect(id);
	}
	if (receives)
		rdma_dereg_mr(receives);
	if (sends)
		rdma_dereg_mr(sends);
	return failed;
}

static int client(const char *host, const char *port)
{
	struct rdma_addrinfo hints, *res, *cur;
	int failed = 1, code;

	memset(&hints, 0, sizeof(hints));
	hints.ai_family = AF_UNSPEC;
	hints.ai_qp_type = IBV_QPT_RC;
	hints.ai_port_space = RDMA_PS_TCP;
	code = rdma_getaddrinfo(host, port, &hints, &res);
	if (code)
		return complain("rdma_getaddrinfo", code);
	for (cur = res; cur && failed; cur = cur->ai_next) {
		struct ibv_qp_init_attr attr = queues();
		struct rdma_cm_id *id;

		printf("to %s", text_of(cur->ai_dst_addr, cur->ai_dst_len));
		printf(" from %s\n", text_of(cur->ai_src_addr, cur->ai_src_len));
		if (rdma_create_ep(&id, cur, NULL, &attr)) {
			perror("rdma_create_ep");
			continue;
		}
		failed = converse(id);
		rdma_destroy_ep(id);
	}
	rdma_freeaddrinfo(res);
	return failed;
}

/* Receives a message on an accepted connection and sends it back. */
static int answer(struct rdma_cm_id *id)
{
	char message[MESSAGE_LEN] = "";
	struct ibv_mr *region = rdma_reg_msgs(id, message, sizeof(message));
	struct ibv_wc wc;
	int failed = 1;

	if (!region || rdma_post_recv(id, NULL, message, sizeof(message), region))
		perror("preparing");
	else if (rdma_accept(id, NULL))
		perror("rdma_accept");
	else {
		if (succeeded(rdma_get_recv_comp(id, &wc), &wc)) {
			print("heard", message, &wc);
			failed = rdma_post_send(id, NULL, message, sizeof(message), region, 0) ||
				 !succeeded(rdma_get_send_comp(id, &wc), &wc);
		}
		rdma_disconnect(id);
	}
	if (region)
		rdma_dereg_mr(region);
	return failed;
}

static int server(const char *address, const char *port)
{
	struct ibv_qp_init_attr attr = queues();
	struct rdma_cm_id *listener, *id;
	struct rdma_addrinfo hints, *res;
	int failed = 1, code;

	memset(&hints, 0, sizeof(hints));
	hints.ai_flags = RAI_PASSIVE;
	hints.ai_port_space = RDMA_PS_TCP;
	code = rdma_getaddrinfo(address, port, &hints, &res);
	if (code)
		return complain("rdma_getaddrinfo", code);
	code = rdma_create_ep(&listener, res, NULL, &attr);
	rdma_freeaddrinfo(res);
	if (code)
		return complain("rdma_create_ep", -1);
	if (rdma_listen(listener, 1))
		perror("rdma_listen");
	else {
		printf("listening\n");
		fflush(stdout);
		if (rdma_get_request(listener, &id))
			perror("rdma_get_request");
		else {
			failed = answer(id);
			rdma_destroy_ep(id);
		}
	}
	rdma_destroy_ep(listener);
	return failed;
}

int main(int argc, char **argv)
{
	if (argc >= 3 && !strcmp(argv[1], "-l"))
		return server(argc > 3 ? argv[3] : NULL, argv[2]);
	if (argc == 3)
		return client(argv[1], argv[2]);
	fprintf(stderr, "usage: %s HOST PORT | -l PORT [ADDRESS]\n", argv[0]);
	return 2;
}
