/*
 * Datagram sockets between two processes. The first datagrams go over UDP, the others between queue pairs. Exits with 0
 * if the calls behave as in rsocket(7) and their manual pages. Otherwise prints the failed condition.
 *
 * Usage: datagrams LOCAL_IPV4
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <rdma/rsocket.h>

#define PORT 7620
#define ROUNDS 300
#define LENGTH_MAX 900
#define BUFFER_BYTES (1 << 19)
#define BURST 200
#define QUEUE 300
#define PATIENCE_MS 30000

static struct sockaddr_in server;
static pid_t child;

#define CHECK(condition)                                                        \
	do {                                                                    \
		if (!(condition)) {                                             \
			printf("line %d: %s is not so, errno %s\n", __LINE__,   \
			       #condition, strerrorname_np(errno));             \
			if (child > 0)                                          \
				kill(child, SIGKILL);                           \
			exit(1);                                                \
		}                                                               \
	} while (0)
#define FAILS(call, number)                                                     \
	do {                                                                    \
		errno = 0;                                                      \
		CHECK((call) == -1);                                            \
		CHECK(errno == (number));                                       \
	} while (0)

static int wait_for(int socket, short events)
{
	struct pollfd fd = { .fd = socket, .events = events };

	CHECK(rpoll(&fd, 1, PATIENCE_MS) == 1);
	return fd.revents;
}

/*
 * Makes room for a burst of datagrams: one in 2048 bytes, of which the socket has twice the number that is set, at most
 * the queue's size.
 */
static void make_room(int socket)
{
	int bytes = BUFFER_BYTES, queue = QUEUE, value;
	socklen_t length = sizeof(value);

	CHECK(!rsetsockopt(socket, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes)));
	CHECK(!rgetsockopt(socket, SOL_SOCKET, SO_RCVBUF, &value, &length) && value == 2 * bytes);
	CHECK(!rsetsockopt(socket, SOL_RDMA, RDMA_RQSIZE, &queue, sizeof(queue)));
	CHECK(!rgetsockopt(socket, SOL_RDMA, RDMA_RQSIZE, &value, &length) && value == queue);
}

/* A socket whose buffers and queues are larger than any device supports works nevertheless. */
static void exceed(void)
{
	int most = -1, queue = 65535, socket = rsocket(AF_INET, SOCK_DGRAM, 0);

	CHECK(socket >= 0);
	CHECK(!rsetsockopt(socket, SOL_SOCKET, SO_RCVBUF, &most, sizeof(most)));
	CHECK(!rsetsockopt(socket, SOL_SOCKET, SO_SNDBUF, &most, sizeof(most)));
	CHECK(!rsetsockopt(socket, SOL_RDMA, RDMA_RQSIZE, &queue, sizeof(queue)));
	CHECK(!rsetsockopt(socket, SOL_RDMA, RDMA_SQSIZE, &queue, sizeof(queue)));
	CHECK(!rconnect(socket, (struct sockaddr *)&server, sizeof(server)));
	CHECK(!rclose(socket));
}

/* Echoes every datagram to its sender, up to the first datagram of one byte. */
static void serve(int told)
{
	static char bytes[4096];
	struct sockaddr_in peer;
	socklen_t length;
	ssize_t got;
	int socket = rsocket(AF_INET, SOCK_DGRAM, 0);

	CHECK(socket >= 0);
	make_room(socket);
	CHECK(!rbind(socket, (struct sockaddr *)&server, sizeof(server)));
	FAILS(rsetsockopt(socket, SOL_RDMA, RDMA_RQSIZE, &(int){ 500 }, sizeof(int)), EINVAL);
	CHECK(write(told, "", 1) == 1);
	do {
		length = sizeof(peer);
		got = rrecvfrom(socket, bytes, sizeof(bytes), 0, (struct sockaddr *)&peer, &length);
		CHECK(got >= 0 && length == sizeof(peer) && peer.sin_family == AF_INET && peer.sin_port);
		CHECK(rsendto(socket, bytes, got, 0, (struct sockaddr *)&peer, length) == got);
	} while (got != 1);
	CHECK(!rclose(socket));
	exit(0);
}

/* Both directions over IPv6. The first rounds go over UDP. */
static void over_ipv6(void)
{
	struct sockaddr_in6 here = { .sin6_family = AF_INET6, .sin6_port = htons(PORT + 2) }, peer;
	int near = rsocket(AF_INET6, SOCK_DGRAM, 0), far = rsocket(AF_INET6, SOCK_DGRAM, 0);
	char sent[LENGTH_MAX], back[LENGTH_MAX];
	socklen_t length;

	CHECK(near >= 0 && far >= 0);
	here.sin6_addr = in6addr_loopback;
	CHECK(!rbind(far, (struct sockaddr *)&here, sizeof(here)));
	for (int round = 0; round < ROUNDS; round++) {
		ssize_t now = 1 + round * 31 % LENGTH_MAX;

		memset(sent, round, now);
		CHECK(rsendto(near, sent, now, 0, (struct sockaddr *)&here, sizeof(here)) == now);
		length = sizeof(peer);
		CHECK(wait_for(far, POLLIN) == POLLIN);
		CHECK(rrecvfrom(far, back, sizeof(back), 0, (struct sockaddr *)&peer, &length) == now);
		CHECK(length == sizeof(peer) && peer.sin6_family == AF_INET6 && peer.sin6_port);
		CHECK(IN6_IS_ADDR_LOOPBACK(&peer.sin6_addr) && !memcmp(sent, back, now));
		memset(sent, ~round, now);
		CHECK(rsendto(far, sent, now, 0, (struct sockaddr *)&peer, length) == now);
		length = sizeof(peer);
		CHECK(wait_for(near, POLLIN) == POLLIN);
		CHECK(rrecvfrom(near, back, sizeof(back), 0, (struct sockaddr *)&peer, &length) == now);
		CHECK(length == sizeof(peer) && !memcmp(&peer.sin6_addr, &here.sin6_addr, 16));
		CHECK(peer.sin6_port == here.sin6_port && !memcmp(sent, back, now));
	}
	CHECK(!rclose(near) && !rclose(far));
}

int main(int argc, char **argv)
{
	static char sent[LENGTH_MAX], back[LENGTH_MAX], bulk[70000];
	struct sockaddr_in name, peer, nobody = { .sin_family = AF_INET };
	struct iovec pieces[2] = { { sent, 100 }, { sent + 100, 400 } };
	socklen_t length = sizeof(name);
	int told[2], socket, status, value = 1, epoll;
	struct epoll_event event = { .events = EPOLLIN };

	if (argc != 2)
		return 2;
	server.sin_family = AF_INET;
	server.sin_port = htons(PORT);
	inet_pton(AF_INET, argv[1], &server.sin_addr);
	CHECK(!pipe(told));
	child = fork();
	if (!child)
		serve(told[1]);
	CHECK(read(told[0], back, 1) == 1);

	socket = rsocket(AF_INET, SOCK_DGRAM, IPPROTO_UDP);
	CHECK(socket >= 0);
	FAILS(rlisten(socket, 1), ENOTSUP);
	FAILS(raccept(socket, NULL, NULL), ENOTSUP);
	FAILS(rsend(socket, "x", 1, 0), ENOTCONN);
	FAILS(rgetpeername(socket, (struct sockaddr *)&peer, &length), ENOTCONN);
	FAILS(rrecv(socket, back, 1, MSG_DONTWAIT), EAGAIN);
	CHECK(!rsetsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &value, sizeof(value)));
	make_room(socket);
	value = 0;
	length = sizeof(value);
	CHECK(!rgetsockopt(socket, SOL_SOCKET, SO_TYPE, &value, &length) && value == SOCK_DGRAM);
	CHECK(!rconnect(socket, (struct sockaddr *)&server, sizeof(server)));
	length = sizeof(peer);
	CHECK(!rgetpeername(socket, (struct sockaddr *)&peer, &length) && peer.sin_port == htons(PORT));
	length = sizeof(name);
	CHECK(!rgetsockname(socket, (struct sockaddr *)&name, &length) && name.sin_port);
	memset(sent, 7, sizeof(sent));
	FAILS(rsend(socket, bulk, sizeof(bulk), 0), EMSGSIZE);
	CHECK(wait_for(socket, POLLOUT) == POLLOUT);

	/* No datagram is lost, because each is echoed before the next one is sent. */
	for (int round = 0; round < ROUNDS; round++) {
		ssize_t now = 2 + round * 31 % (LENGTH_MAX - 2);

		for (ssize_t i = 0; i < now; i++)
			sent[i] = (char)(round + i);
		CHECK(rsend(socket, sent, now, 0) == now);
		if (round % 3 == 0)
			CHECK(wait_for(socket, POLLIN) == POLLIN);
		if (round % 5 == 0)
			CHECK(rrecv(socket, back, 1, MSG_PEEK) == 1 && back[0] == sent[0]);
		length = sizeof(peer);
		memset(back, 0, sizeof(back));
		CHECK(rrecvfrom(socket, back, sizeof(back), 0, (struct sockaddr *)&peer, &length) == now);
		CHECK(!memcmp(sent, back, now));
		CHECK(peer.sin_port == htons(PORT) && peer.sin_addr.s_addr == server.sin_addr.s_addr);
	}
	/* Nor is any of a burst that the buffers have room for, although it is read late. */
	for (int i = 0; i < BURST; i++)
		CHECK(rsend(socket, sent, 20, 0) == 20);
	for (int i = 0; i < BURST; i++) {
		CHECK(wait_for(socket, POLLIN) == POLLIN);
		CHECK(rread(socket, back, 20) == 20);
	}
	/* The pieces of one call form one datagram. Bytes that do not fit into the receiver's buffer are lost. */
	CHECK(rwritev(socket, pieces, 2) == 500);
	CHECK(rread(socket, back, 10) == 10);
	FAILS(rrecv(socket, back, 10, MSG_DONTWAIT), EAGAIN);
	CHECK(rfcntl(socket, F_SETFL, O_NONBLOCK) == 0);
	FAILS(rrecv(socket, back, 10, 0), EAGAIN);
	CHECK(rfcntl(socket, F_SETFL, 0) == 0);
	/* A datagram to a port without a socket is lost. */
	nobody.sin_addr = server.sin_addr;
	nobody.sin_port = htons(PORT + 1);
	CHECK(rsendto(socket, sent, 5, 0, (struct sockaddr *)&nobody, sizeof(nobody)) == 5);

	epoll = repoll_create(1);
	CHECK(!repoll_ctl(epoll, EPOLL_CTL_ADD, socket, &event));
	CHECK(repoll_wait(epoll, &event, 1, 10) == 0);
	CHECK(rwrite(socket, "e", 1) == 1);
	CHECK(repoll_wait(epoll, &event, 1, PATIENCE_MS) == 1 && event.events == EPOLLIN);
	CHECK(rread(socket, back, 10) == 1 && back[0] == 'e');
	CHECK(!rclose(epoll) && !rclose(socket));
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	exceed();
	over_ipv6();
	return 0;
}
