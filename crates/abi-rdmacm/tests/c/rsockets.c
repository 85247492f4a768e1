/*
 * The socket calls with right and wrong arguments, between two threads over a software device. Ends with 0 if all is as
 * rsocket(7) and the pages of the calls say, and otherwise says what is not.
 *
 * Usage: rsockets LOCAL_IPV4
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>
#include <infiniband/sa.h>
#include <rdma/rsocket.h>

#define PORT 7490
#define BULK 3000000
#define PATIENCE_MS 60000

static const char *local;

#define CHECK(condition)                                                        \
	do {                                                                    \
		if (!(condition)) {                                             \
			printf("line %d: %s is not so, errno %s\n", __LINE__,   \
			       #condition, strerrorname_np(errno));             \
			exit(1);                                                \
		}                                                               \
	} while (0)
/* A call fails with this errno. */
#define FAILS(call, number)                                                     \
	do {                                                                    \
		errno = 0;                                                      \
		CHECK((call) == -1);                                            \
		CHECK(errno == (number));                                       \
	} while (0)

static struct sockaddr *at(int port)
{
	static __thread struct sockaddr_in made;

	memset(&made, 0, sizeof(made));
	made.sin_family = AF_INET;
	made.sin_port = htons(port);
	inet_pton(AF_INET, local, &made.sin_addr);
	return (struct sockaddr *)&made;
}

static unsigned char pattern(size_t place)
{
	return (unsigned char)((place * 2654435761u) >> 13);
}

/* Waits for an event of one socket. */
static int wait_for(int socket, short events)
{
	struct pollfd fd = { .fd = socket, .events = events };

	CHECK(rpoll(&fd, 1, PATIENCE_MS) == 1);
	return fd.revents;
}

static void refusals(void)
{
	struct sockaddr_in6 six = { .sin6_family = AF_INET6 };
	struct msghdr message = { 0 };
	struct epoll_event event = { 0 };
	struct sockaddr_storage place;
	socklen_t length = sizeof(place);
	char byte = 0;
	int socket, value = 1;
	struct { int domain, type, protocol; } unknown[] = {
		{ AF_UNIX, SOCK_STREAM, 0 },
		{ AF_INET, SOCK_DGRAM, IPPROTO_TCP },
		{ AF_INET, SOCK_RAW, 0 },
		{ AF_INET, SOCK_STREAM, IPPROTO_UDP },
	};

	for (size_t i = 0; i < sizeof(unknown) / sizeof(*unknown); i++)
		FAILS(rsocket(unknown[i].domain, unknown[i].type, unknown[i].protocol), ENOTSUP);
	/* A descriptor that is no rsocket. */
	FAILS(rbind(0, at(PORT), sizeof(struct sockaddr_in)), EBADF);
	FAILS(rlisten(0, 1), EBADF);
	FAILS(raccept(0, NULL, NULL), EBADF);
	FAILS(rconnect(0, at(PORT), sizeof(struct sockaddr_in)), EBADF);
	FAILS(rshutdown(0, SHUT_RDWR), EBADF);
	FAILS(rclose(0), EBADF);
	FAILS(rrecv(0, &byte, 1, 0), EBADF);
	FAILS(rrecvfrom(0, &byte, 1, 0, NULL, NULL), EBADF);
	FAILS(rrecvmsg(0, &message, 0), EBADF);
	FAILS(rsend(0, &byte, 1, 0), EBADF);
	FAILS(rsendto(0, &byte, 1, 0, NULL, 0), EBADF);
	FAILS(rsendmsg(0, &message, 0), EBADF);
	FAILS(rread(0, &byte, 1), EBADF);
	FAILS(rreadv(0, NULL, 0), EBADF);
	FAILS(rwrite(0, &byte, 1), EBADF);
	FAILS(rwritev(0, NULL, 0), EBADF);
	FAILS(rgetpeername(0, (struct sockaddr *)&place, &length), EBADF);
	FAILS(rgetsockname(0, (struct sockaddr *)&place, &length), EBADF);
	FAILS(rsetsockopt(0, SOL_SOCKET, SO_REUSEADDR, &value, sizeof(value)), EBADF);
	FAILS(rgetsockopt(0, SOL_SOCKET, SO_ERROR, &value, &length), EBADF);
	FAILS(rfcntl(0, F_GETFL), EBADF);
	FAILS(riomap(0, &byte, 1, PROT_WRITE, 0, -1), EBADF);
	FAILS(riounmap(0, &byte, 1), EBADF);
	FAILS((ssize_t)riowrite(0, &byte, 1, 0, 0), EBADF);
	FAILS(repoll_ctl(0, EPOLL_CTL_ADD, 0, &event), EBADF);
	FAILS(repoll_wait(0, &event, 1, 0), EBADF);

	socket = rsocket(AF_INET6, SOCK_STREAM, IPPROTO_TCP);
	CHECK(socket >= 0);
	six.sin6_addr = in6addr_loopback;
	CHECK(!rsetsockopt(socket, IPPROTO_IPV6, IPV6_V6ONLY, &value, sizeof(value)));
	CHECK(!rbind(socket, (struct sockaddr *)&six, sizeof(six)));
	length = sizeof(place);
	CHECK(!rgetsockname(socket, (struct sockaddr *)&place, &length));
	CHECK(length == sizeof(six) && place.ss_family == AF_INET6);
	CHECK(((struct sockaddr_in6 *)&place)->sin6_port != 0);
	CHECK(!rclose(socket));
	FAILS(rclose(socket), EBADF);

	socket = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(socket >= 0);
	FAILS(rbind(socket, NULL, 16), EFAULT);
	FAILS(rbind(socket, at(PORT), 1), EINVAL);
	FAILS(rrecv(socket, &byte, 1, 0), ENOTCONN);
	FAILS(rsend(socket, &byte, 1, 0), ENOTCONN);
	length = sizeof(place);
	FAILS(rgetpeername(socket, (struct sockaddr *)&place, &length), ENOTCONN);
	FAILS(raccept(socket, NULL, NULL), EBADF);
	FAILS(rconnect(socket, at(PORT), sizeof(struct sockaddr_in)), ECONNREFUSED);
	length = sizeof(value);
	CHECK(!rgetsockopt(socket, SOL_SOCKET, SO_ERROR, &value, &length));
	CHECK(value == ECONNREFUSED);
	CHECK(!rgetsockopt(socket, SOL_SOCKET, SO_ERROR, &value, &length) && value == 0);
	CHECK(wait_for(socket, POLLIN) & POLLERR);
	CHECK(!rclose(socket));
}

static void set_int(int socket, int level, int name, int value)
{
	CHECK(!rsetsockopt(socket, level, name, &value, sizeof(value)));
}

static int get_int(int socket, int level, int name)
{
	int value = -1;
	socklen_t length = sizeof(value);

	CHECK(!rgetsockopt(socket, level, name, &value, &length));
	CHECK(length == sizeof(value));
	return value;
}

static void options(void)
{
	int socket = rsocket(AF_INET, SOCK_STREAM, 0), value = 0;
	struct linger linger = { .l_onoff = 0 };
	struct tcp_info info;
	socklen_t length = sizeof(linger);

	CHECK(get_int(socket, SOL_SOCKET, SO_RCVBUF) == 1 << 17);
	set_int(socket, SOL_SOCKET, SO_RCVBUF, 10000);
	CHECK(get_int(socket, SOL_SOCKET, SO_RCVBUF) == 20000);
	set_int(socket, SOL_SOCKET, SO_SNDBUF, 30000);
	CHECK(get_int(socket, SOL_SOCKET, SO_SNDBUF) == 60000);
	set_int(socket, SOL_SOCKET, SO_REUSEADDR, 1);
	CHECK(get_int(socket, SOL_SOCKET, SO_REUSEADDR) == 1);
	set_int(socket, SOL_SOCKET, SO_OOBINLINE, 1);
	CHECK(get_int(socket, SOL_SOCKET, SO_OOBINLINE) == 1);
	set_int(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
	CHECK(get_int(socket, SOL_SOCKET, SO_KEEPALIVE) == 1);
	set_int(socket, IPPROTO_TCP, TCP_KEEPIDLE, 7);
	CHECK(get_int(socket, IPPROTO_TCP, TCP_KEEPIDLE) == 7);
	FAILS(rsetsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &value, sizeof(value)), EINVAL);
	set_int(socket, IPPROTO_TCP, TCP_NODELAY, 1);
	CHECK(get_int(socket, IPPROTO_TCP, TCP_NODELAY) == 1);
	set_int(socket, IPPROTO_TCP, TCP_MAXSEG, 512);
	CHECK(get_int(socket, IPPROTO_TCP, TCP_MAXSEG) == 2048);
	set_int(socket, IPPROTO_IP, IP_TOS, 32);
	CHECK(get_int(socket, IPPROTO_IP, IP_TOS) == 32);
	CHECK(!rgetsockopt(socket, SOL_SOCKET, SO_LINGER, &linger, &length) && linger.l_onoff);
	linger.l_onoff = 0;
	CHECK(!rsetsockopt(socket, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)));
	CHECK(!rgetsockopt(socket, SOL_SOCKET, SO_LINGER, &linger, &length) && !linger.l_onoff);
	length = sizeof(info);
	CHECK(!rgetsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length));
	CHECK(info.tcpi_state == TCP_CLOSE);
	CHECK(get_int(socket, SOL_RDMA, RDMA_IOMAPSIZE) == 0);
	set_int(socket, SOL_RDMA, RDMA_SQSIZE, 100);
	set_int(socket, SOL_RDMA, RDMA_RQSIZE, 200);
	set_int(socket, SOL_RDMA, RDMA_INLINE, 32);
	set_int(socket, SOL_RDMA, RDMA_IOMAPSIZE, 300);
	CHECK(get_int(socket, SOL_RDMA, RDMA_SQSIZE) == 100);
	CHECK(get_int(socket, SOL_RDMA, RDMA_RQSIZE) == 200);
	CHECK(get_int(socket, SOL_RDMA, RDMA_INLINE) == 32);
	/* More than 128 are counted in units of 256. */
	CHECK(get_int(socket, SOL_RDMA, RDMA_IOMAPSIZE) == 256);
	FAILS(rsetsockopt(socket, SOL_RDMA, 99, &value, sizeof(value)), ENOTSUP);
	FAILS(rgetsockopt(socket, 12345, 0, &value, &length), ENOTSUP);
	CHECK(rfcntl(socket, F_GETFL) == 0);
	CHECK(rfcntl(socket, F_SETFL, O_NONBLOCK) == 0);
	CHECK(rfcntl(socket, F_GETFL) == O_NONBLOCK);
	CHECK(rfcntl(socket, F_SETFD, FD_CLOEXEC) == 0 && rfcntl(socket, F_GETFD) == FD_CLOEXEC);
	FAILS(rfcntl(socket, 99999), ENOTSUP);
	CHECK(!rclose(socket));
}

/* Accepts two connections in turn, and waits for the end of each. */
static void *accept_both(void *listener_number)
{
	int listener = (int)(intptr_t)listener_number;
	char byte;

	for (int i = 0; i < 2; i++) {
		int socket = raccept(listener, NULL, NULL);

		CHECK(socket >= 0);
		CHECK(rread(socket, &byte, 1) == 0);
		CHECK(!rclose(socket));
	}
	return NULL;
}

/* A connection's route can be read and set on another socket. It works only between the same addresses. */
static void routes(void)
{
	struct ibv_path_data route[2];
	socklen_t length = sizeof(route);
	int listener = rsocket(AF_INET, SOCK_STREAM, 0), socket;
	pthread_t server;

	CHECK(!rbind(listener, at(PORT + 1), sizeof(struct sockaddr_in)) && !rlisten(listener, 8));
	CHECK(!pthread_create(&server, NULL, accept_both, (void *)(intptr_t)listener));
	socket = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(!rconnect(socket, at(PORT + 1), sizeof(struct sockaddr_in)));
	CHECK(!rgetsockopt(socket, SOL_RDMA, RDMA_ROUTE, route, &length));
	CHECK(length == sizeof(*route));
	CHECK(route[0].flags == (IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL));
	CHECK(!memcmp(&route[0].path.sgid, &route[0].path.dgid, 16));
	length = sizeof(*route) - 1;
	FAILS(rgetsockopt(socket, SOL_RDMA, RDMA_ROUTE, route, &length), EINVAL);
	/* A route cannot be set on a connected socket. */
	FAILS(rsetsockopt(socket, SOL_RDMA, RDMA_ROUTE, route, sizeof(*route)), EINVAL);
	CHECK(!rclose(socket));

	socket = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(!rsetsockopt(socket, SOL_RDMA, RDMA_ROUTE, route, sizeof(*route)));
	length = sizeof(route);
	memset(&route[1], 0, sizeof(route[1]));
	CHECK(!rgetsockopt(socket, SOL_RDMA, RDMA_ROUTE, &route[1], &(socklen_t){ sizeof(*route) }));
	CHECK(!memcmp(&route[0], &route[1], sizeof(*route)));
	CHECK(!rconnect(socket, at(PORT + 1), sizeof(struct sockaddr_in)));
	CHECK(!rclose(socket));
	CHECK(!pthread_join(server, NULL));

	route[0].path.dgid.raw[15] ^= 1;
	socket = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(!rsetsockopt(socket, SOL_RDMA, RDMA_ROUTE, route, sizeof(*route)));
	FAILS(rconnect(socket, at(PORT + 1), sizeof(struct sockaddr_in)), EINVAL);
	CHECK(!rclose(socket) && !rclose(listener));
}

static char *bulk;

/* The server's part: echoes what comes by the calls in turn, then half-closes. */
static void *serve(void *listener_number)
{
	int listener = (int)(intptr_t)listener_number, socket;
	struct sockaddr_in peer;
	socklen_t length = sizeof(peer);
	static char bytes[50000], mapped[4096];
	size_t total = 0;
	ssize_t got;

	socket = raccept(listener, (struct sockaddr *)&peer, &length);
	CHECK(socket >= 0 && length == sizeof(peer) && peer.sin_family == AF_INET);
	CHECK(get_int(socket, SOL_RDMA, RDMA_IOMAPSIZE) == 4);
	while (total < BULK) {
		got = rrecv(socket, bytes, sizeof(bytes), 0);
		CHECK(got > 0);
		CHECK(rsend(socket, bytes, got, 0) == got);
		total += got;
	}
	/* Offers memory, says so, and waits until it is written. */
	CHECK(riomap(socket, mapped, sizeof(mapped), PROT_WRITE, 0, 5000) == 5000);
	FAILS(riomap(socket, mapped, 10, PROT_EXEC, 0, 0), EINVAL);
	/* The library's choice, for local use, and for the peer's. */
	CHECK(riomap(socket, bytes, 10, PROT_NONE, 0, -1) == (off_t)(intptr_t)bytes);
	CHECK(riomap(socket, bytes, 20, PROT_WRITE, 0, -1) == (off_t)(intptr_t)bytes);
	CHECK(!riounmap(socket, bytes, 10) && !riounmap(socket, bytes, 20));
	CHECK(rwrite(socket, "m", 1) == 1);
	CHECK(rread(socket, bytes, 1) == 1 && bytes[0] == 'w');
	for (size_t i = 0; i < 3000; i++)
		CHECK((unsigned char)mapped[i + 96] == pattern(i));
	CHECK(!riounmap(socket, mapped, sizeof(mapped)));
	FAILS(riounmap(socket, mapped, sizeof(mapped)), EINVAL);
	/* The client's end of its direction. */
	CHECK(rread(socket, bytes, 1) == 0);
	CHECK(rsend(socket, "bye", 3, 0) == 3);
	CHECK(!rclose(socket));
	return NULL;
}

static void exchange(void)
{
	static struct sockaddr_in name, peer;
	struct iovec pieces[3];
	struct msghdr message = { 0 };
	socklen_t length = sizeof(name);
	char bytes[64];
	int listener = rsocket(AF_INET, SOCK_STREAM, 0), socket, epoll;
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = 77 };
	struct timeval soon = { .tv_usec = 1000 }, later = { .tv_sec = 60 };
	fd_set reads, writes;
	size_t sent = 0, got = 0;
	pthread_t server;

	set_int(listener, SOL_SOCKET, SO_REUSEADDR, 1);
	CHECK(!rbind(listener, at(PORT), sizeof(struct sockaddr_in)));
	FAILS(rbind(listener, at(PORT), sizeof(struct sockaddr_in)), EINVAL);
	CHECK(!rlisten(listener, 8) && !rlisten(listener, 8));
	set_int(listener, SOL_RDMA, RDMA_IOMAPSIZE, 4);
	/* Nobody has connected. */
	CHECK(rfcntl(listener, F_SETFL, O_NONBLOCK) == 0);
	FAILS(raccept(listener, NULL, NULL), EAGAIN);
	CHECK(rfcntl(listener, F_SETFL, 0) == 0);
	CHECK(!pthread_create(&server, NULL, serve, (void *)(intptr_t)listener));

	socket = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	CHECK(rfcntl(socket, F_GETFL) & O_NONBLOCK);
	set_int(socket, SOL_RDMA, RDMA_IOMAPSIZE, 4);
	/* It may be faster than the call. */
	if (rconnect(socket, at(PORT), sizeof(struct sockaddr_in)))
		CHECK(errno == EINPROGRESS);
	CHECK(wait_for(socket, POLLOUT) == POLLOUT);
	CHECK(get_int(socket, SOL_SOCKET, SO_ERROR) == 0);
	CHECK(!rconnect(socket, at(PORT), sizeof(struct sockaddr_in)));
	CHECK(!rgetsockname(socket, (struct sockaddr *)&name, &length));
	length = sizeof(peer);
	CHECK(!rgetpeername(socket, (struct sockaddr *)&peer, &length));
	CHECK(peer.sin_port == htons(PORT) && peer.sin_addr.s_addr == name.sin_addr.s_addr);
	/* Too late for sizes. */
	FAILS(rsetsockopt(socket, SOL_RDMA, RDMA_SQSIZE, &length, sizeof(int)), EINVAL);
	FAILS(rsendto(socket, "x", 1, 0, at(PORT), sizeof(struct sockaddr_in)), EISCONN);
	FAILS(rrecv(socket, bytes, 1, 0), EAGAIN);

	/* Without waiting: sends what there is room for, and takes what has come. */
	bulk = malloc(BULK);
	for (size_t i = 0; i < BULK; i++)
		bulk[i] = (char)pattern(i);
	while (got < BULK) {
		ssize_t now;
		int ready = wait_for(socket, sent < BULK ? POLLIN | POLLOUT : POLLIN);

		if (ready & POLLOUT) {
			now = rsend(socket, bulk + sent, BULK - sent, MSG_DONTWAIT);
			CHECK(now > 0);
			sent += now;
		}
		if (ready & POLLIN) {
			static char back[70000];
			size_t left = BULK - got;

			/* What follows is for later. */
			now = rrecv(socket, back, left < sizeof(back) ? left : sizeof(back), 0);
			CHECK(now > 0);
			for (ssize_t i = 0; i < now; i++)
				CHECK((unsigned char)back[i] == pattern(got + i));
			got += now;
		}
	}
	CHECK(rfcntl(socket, F_SETFL, 0) == 0);

	/* The server's memory: not known before its message was read. */
	CHECK(rrecv(socket, bytes, 1, MSG_PEEK) == 1 && bytes[0] == 'm');
	CHECK(rread(socket, bytes, 1) == 1 && bytes[0] == 'm');
	FAILS(rrecvfrom(socket, bytes, 1, MSG_DONTWAIT, NULL, NULL), EAGAIN);
	CHECK(riowrite(socket, bulk, 3000, 5096, 0) == 3000);
	CHECK(riowrite(socket, bulk, 10, 1, 0) == 0);

	/* Sets of descriptors. */
	epoll = repoll_create(O_CLOEXEC);
	CHECK(epoll >= 0);
	FAILS(repoll_ctl(epoll, EPOLL_CTL_MOD, socket, &event), ENOENT);
	FAILS(repoll_ctl(epoll, 99, socket, &event), EINVAL);
	CHECK(!repoll_ctl(epoll, EPOLL_CTL_ADD, socket, &event));
	FAILS(repoll_ctl(epoll, EPOLL_CTL_ADD, socket, &event), EEXIST);
	FAILS(repoll_wait(epoll, &event, 0, 0), EINVAL);
	CHECK(repoll_wait(epoll, &event, 1, 10) == 0);
	event.events = EPOLLOUT;
	event.data.u64 = 78;
	CHECK(!repoll_ctl(epoll, EPOLL_CTL_MOD, socket, &event));
	CHECK(repoll_wait(epoll, &event, 1, PATIENCE_MS) == 1);
	CHECK(event.events == EPOLLOUT && event.data.u64 == 78);
	event.events = EPOLLIN;
	CHECK(!repoll_ctl(epoll, EPOLL_CTL_MOD, socket, &event));
	FD_ZERO(&reads);
	FD_ZERO(&writes);
	FD_SET(socket, &reads);
	CHECK(rselect(socket + 1, &reads, NULL, NULL, &soon) == 0 && !FD_ISSET(socket, &reads));
	FD_SET(socket, &writes);
	CHECK(rselect(socket + 1, NULL, &writes, NULL, NULL) == 1 && FD_ISSET(socket, &writes));

	pieces[0] = (struct iovec){ "w", 1 };
	pieces[1] = (struct iovec){ NULL, 0 };
	message.msg_iov = pieces;
	message.msg_iovlen = 2;
	CHECK(rsendmsg(socket, &message, 0) == 1);
	message.msg_control = bytes;
	message.msg_controllen = sizeof(bytes);
	FAILS(rsendmsg(socket, &message, 0), ENOTSUP);
	FAILS(rrecvmsg(socket, &message, 0), ENOTSUP);
	message.msg_control = NULL;
	message.msg_controllen = 0;

	/* Half-closed: the other direction goes on to its end. */
	FAILS(rshutdown(socket, 99), EINVAL);
	CHECK(!rshutdown(socket, SHUT_WR));
	CHECK(repoll_wait(epoll, &event, 1, PATIENCE_MS) == 1 && event.events & EPOLLIN);
	FD_SET(socket, &reads);
	CHECK(rselect(socket + 1, &reads, NULL, NULL, &later) == 1 && FD_ISSET(socket, &reads));
	pieces[0] = (struct iovec){ bytes, 1 };
	pieces[2] = (struct iovec){ bytes + 1, 2 };
	length = sizeof(peer);
	CHECK(rrecvfrom(socket, bytes, 1, MSG_PEEK, (struct sockaddr *)&peer, &length) == 1);
	CHECK(rreadv(socket, pieces, 1) == 1);
	message.msg_iovlen = 3;
	pieces[0].iov_len = 0;
	CHECK(rrecvmsg(socket, &message, MSG_WAITALL) == 2 && !memcmp(bytes, "bye", 3));
	CHECK(rread(socket, bytes, 1) == 0);
	CHECK(wait_for(socket, POLLIN) & POLLHUP);
	pieces[0] = (struct iovec){ "x", 1 };
	FAILS(rwritev(socket, pieces, 1), ECONNRESET);
	FAILS(rsend(socket, "x", 1, 0), ECONNRESET);
	CHECK(!repoll_ctl(epoll, EPOLL_CTL_DEL, socket, NULL));
	CHECK(!rclose(epoll));
	CHECK(!pthread_join(server, NULL));
	CHECK(!rclose(socket) && !rclose(listener));
	free(bulk);
}

/* A set with a descriptor that is no rsocket, and one with many that are idle. */
static void others(void)
{
	int pipes[2], epoll = repoll_create(0), sockets[50];
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = 5 };
	struct timeval later = { .tv_sec = PATIENCE_MS / 1000 };
	struct pollfd fds[2];
	fd_set reads;

	CHECK(!pipe(pipes));
	for (int i = 0; i < 50; i++) {
		sockets[i] = rsocket(AF_INET, SOCK_STREAM, 0);
		CHECK(sockets[i] >= 0);
		CHECK(!repoll_ctl(epoll, EPOLL_CTL_ADD, sockets[i], &event));
	}
	event.data.u64 = 6;
	CHECK(!repoll_ctl(epoll, EPOLL_CTL_ADD, pipes[0], &event));
	CHECK(repoll_wait(epoll, &event, 1, 10) == 0);
	CHECK(write(pipes[1], "x", 1) == 1);
	CHECK(repoll_wait(epoll, &event, 1, PATIENCE_MS) == 1 && event.data.u64 == 6);
	fds[0] = (struct pollfd){ .fd = pipes[0], .events = POLLIN };
	fds[1] = (struct pollfd){ .fd = sockets[0], .events = POLLIN };
	CHECK(rpoll(fds, 2, PATIENCE_MS) == 1 && fds[0].revents == POLLIN);
	FD_ZERO(&reads);
	FD_SET(pipes[0], &reads);
	FD_SET(sockets[0], &reads);
	CHECK(rselect((pipes[0] > sockets[0] ? pipes[0] : sockets[0]) + 1, &reads, NULL, NULL, &later) == 1);
	CHECK(FD_ISSET(pipes[0], &reads) && !FD_ISSET(sockets[0], &reads));
	for (int i = 0; i < 50; i++)
		CHECK(!rclose(sockets[i]));
	CHECK(!rclose(epoll));
}

static void *accept_one(void *listener_number)
{
	return (void *)(intptr_t)raccept((int)(intptr_t)listener_number, NULL, NULL);
}

/* What an instance must hear of although another call has taken it from the socket. */
static void taken_elsewhere(void)
{
	static char bytes[1 << 16];
	struct epoll_event event = { .events = EPOLLIN | EPOLLOUT };
	int listener = rsocket(AF_INET, SOCK_STREAM, 0), epoll = repoll_create(0), ends[2];
	size_t sent = 0;
	pthread_t server;
	void *accepted;
	ssize_t now;

	CHECK(!rbind(listener, at(PORT + 5), sizeof(struct sockaddr_in)) && !rlisten(listener, 1));
	ends[0] = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	FAILS(rconnect(ends[0], at(PORT + 5), sizeof(struct sockaddr_in)), EINPROGRESS);
	CHECK(!repoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &event));
	CHECK(repoll_wait(epoll, &event, 1, 0) == 0);
	/* Another call finishes the connect. */
	CHECK(!pthread_create(&server, NULL, accept_one, (void *)(intptr_t)listener));
	while (rconnect(ends[0], at(PORT + 5), sizeof(struct sockaddr_in)))
		CHECK(errno == EINPROGRESS || errno == EALREADY);
	CHECK(repoll_wait(epoll, &event, 1, PATIENCE_MS) == 1 && event.events == EPOLLOUT);
	CHECK(!pthread_join(server, &accepted));
	ends[1] = (int)(intptr_t)accepted;
	CHECK(ends[1] >= 0);

	/* rpoll for one direction takes what arrives in the other. */
	event.events = EPOLLIN;
	CHECK(!repoll_ctl(epoll, EPOLL_CTL_MOD, ends[0], &event));
	CHECK(repoll_wait(epoll, &event, 1, 0) == 0);
	while ((now = rsend(ends[0], bytes, sizeof(bytes), 0)) > 0)
		sent += now;
	CHECK(errno == EAGAIN);
	CHECK(rsend(ends[1], "x", 1, 0) == 1);
	while (sent > 0) {
		now = rrecv(ends[1], bytes, sizeof(bytes), 0);
		CHECK(now > 0);
		sent -= now;
	}
	CHECK(wait_for(ends[0], POLLOUT) == POLLOUT);
	CHECK(repoll_wait(epoll, &event, 1, PATIENCE_MS) == 1 && event.events == EPOLLIN);
	CHECK(!rclose(ends[0]) && !rclose(ends[1]) && !rclose(listener) && !rclose(epoll));
}

/* Makes a connection of two sockets, of which the first does not block. */
static void connect_pair(int port, int *ends)
{
	int listener = rsocket(AF_INET, SOCK_STREAM, 0);

	CHECK(!rbind(listener, at(port), sizeof(struct sockaddr_in)) && !rlisten(listener, 1));
	ends[0] = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	if (rconnect(ends[0], at(port), sizeof(struct sockaddr_in)))
		CHECK(errno == EINPROGRESS);
	ends[1] = raccept(listener, NULL, NULL);
	CHECK(ends[1] >= 0 && wait_for(ends[0], POLLOUT) == POLLOUT);
	CHECK(!rclose(listener));
}

/* Sends until there is no room. Returns the number of bytes. */
static size_t fill(int socket)
{
	static char bytes[1 << 16];
	size_t sent = 0;
	ssize_t now;

	while ((now = rsend(socket, bytes, sizeof(bytes), 0)) > 0)
		sent += now;
	CHECK(now == -1 && errno == EAGAIN);
	return sent;
}

static void drain(int socket, size_t length)
{
	static char bytes[1 << 16];

	while (length > 0) {
		ssize_t now = rrecv(socket, bytes, length < sizeof(bytes) ? length : sizeof(bytes), 0);

		CHECK(now > 0);
		length -= now;
	}
}

/* Events are level-triggered: other calls on the socket take a part of what it is ready for, and the rest is reported. */
static void taken_in_part(void)
{
	enum { BY_RRECV, BY_RPOLL, BY_RPOLL_BEFORE, BY_RSEND, VARIANTS };
	char bytes[10] = "";

	for (int variant = 0; variant < VARIANTS; variant++) {
		uint32_t awaited = variant == BY_RSEND ? EPOLLOUT : EPOLLIN;
		struct epoll_event event = { .events = awaited };
		struct pollfd fd = { .events = variant == BY_RPOLL ? POLLIN : POLLOUT };
		int epoll = repoll_create(0), ends[2];
		size_t sent = 0;

		connect_pair(PORT + 6 + variant, ends);
		fd.fd = ends[0];
		if (variant == BY_RSEND)
			sent = fill(ends[0]);
		CHECK(!repoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &event));
		CHECK(repoll_wait(epoll, &event, 1, 0) == 0);
		if (variant == BY_RSEND) {
			drain(ends[1], sent);
			usleep(100000);
			CHECK(rsend(ends[0], bytes, 1, 0) == 1);
			FAILS(rrecv(ends[0], bytes, 1, 0), EAGAIN);
			usleep(200000);
			FAILS(rrecv(ends[0], bytes, 1, 0), EAGAIN);
		} else {
			if (variant == BY_RPOLL_BEFORE)
				CHECK(rpoll(&fd, 1, 0) == 1);
			CHECK(rsend(ends[1], bytes, sizeof(bytes), 0) == sizeof(bytes));
			usleep(100000);
			if (variant == BY_RPOLL)
				CHECK(rpoll(&fd, 1, 0) == 1 && fd.revents == POLLIN);
			if (variant == BY_RRECV)
				CHECK(rrecv(ends[0], bytes, 1, 0) == 1);
			fill(ends[0]);
			usleep(200000);
			fill(ends[0]);
		}
		CHECK(repoll_wait(epoll, &event, 1, 3000) == 1 && event.events == awaited);
		CHECK(!rclose(ends[0]) && !rclose(ends[1]) && !rclose(epoll));
	}
}

/* Descriptors that are no rsockets, beside one that is always ready: none is forgotten. */
static void plain_descriptors(void)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLET };
	int epoll = repoll_create(0), pipes[2][2], seen = 0;

	for (int i = 0; i < 2; i++) {
		CHECK(!pipe(pipes[i]));
		event.data.u64 = i;
		CHECK(!repoll_ctl(epoll, EPOLL_CTL_ADD, pipes[i][0], &event));
		CHECK(write(pipes[i][1], "x", 1) == 1);
	}
	/* Each is reported once. */
	for (int i = 0; i < 2; i++) {
		CHECK(repoll_wait(epoll, &event, 1, PATIENCE_MS) == 1);
		seen |= 1 << event.data.u64;
	}
	CHECK(seen == 3 && repoll_wait(epoll, &event, 1, 10) == 0);
	/* Another file gets the number of a closed one. */
	FAILS(repoll_ctl(epoll, EPOLL_CTL_ADD, pipes[0][0], &event), EEXIST);
	close(pipes[0][0]);
	CHECK(dup2(pipes[1][0], pipes[0][0]) == pipes[0][0]);
	event = (struct epoll_event){ .events = EPOLLIN, .data.u64 = 7 };
	CHECK(!repoll_ctl(epoll, EPOLL_CTL_ADD, pipes[0][0], &event));
	CHECK(repoll_wait(epoll, &event, 1, PATIENCE_MS) == 1 && event.data.u64 == 7);
	for (int i = 0; i < 2; i++) {
		close(pipes[i][0]);
		close(pipes[i][1]);
	}
	CHECK(!rclose(epoll));
}

/* A connection over IPv6, and listeners of both versions at one port. */
static void over_ipv6(void)
{
	struct sockaddr_in6 six = { .sin6_family = AF_INET6, .sin6_port = htons(PORT + 3) }, name;
	int one = 1, listeners[2], others[2], ends[2];
	socklen_t length = sizeof(name);
	struct sockaddr_in four;
	char bytes[4];

	memcpy(&four, at(PORT + 3), sizeof(four));
	four.sin_addr.s_addr = htonl(INADDR_ANY);
	for (int i = 0; i < 2; i++) {
		listeners[i] = rsocket(i ? AF_INET6 : AF_INET, SOCK_STREAM, 0);
		others[i] = rsocket(i ? AF_INET6 : AF_INET, SOCK_STREAM, 0);
	}
	CHECK(!rsetsockopt(listeners[1], IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one)));
	CHECK(!rbind(listeners[1], (struct sockaddr *)&six, sizeof(six)) && !rlisten(listeners[1], 1));
	CHECK(!rbind(listeners[0], (struct sockaddr *)&four, sizeof(four)) && !rlisten(listeners[0], 1));
	/* Without the option, the one for IPv6 has both versions. */
	six.sin6_port = four.sin_port = htons(PORT + 4);
	CHECK(!rbind(others[1], (struct sockaddr *)&six, sizeof(six)) && !rlisten(others[1], 1));
	CHECK(rbind(others[0], (struct sockaddr *)&four, sizeof(four)) || rlisten(others[0], 1));
	CHECK(errno == EADDRINUSE);

	six.sin6_port = htons(PORT + 3);
	six.sin6_addr = in6addr_loopback;
	ends[0] = rsocket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK, 0);
	if (rconnect(ends[0], (struct sockaddr *)&six, sizeof(six)))
		CHECK(errno == EINPROGRESS);
	ends[1] = raccept(listeners[1], (struct sockaddr *)&name, &length);
	CHECK(ends[1] >= 0 && length == sizeof(name) && name.sin6_family == AF_INET6);
	CHECK(IN6_IS_ADDR_LOOPBACK(&name.sin6_addr) && name.sin6_port);
	CHECK(wait_for(ends[0], POLLOUT) == POLLOUT);
	for (int i = 0; i < 2; i++) {
		CHECK(rsend(ends[i], i ? "back" : "over", 4, 0) == 4);
		CHECK(wait_for(ends[1 - i], POLLIN) & POLLIN);
		CHECK(rrecv(ends[1 - i], bytes, 4, MSG_WAITALL) == 4 && !memcmp(bytes, i ? "back" : "over", 4));
	}
	length = sizeof(name);
	CHECK(!rgetpeername(ends[0], (struct sockaddr *)&name, &length) && length == sizeof(name));
	CHECK(IN6_IS_ADDR_LOOPBACK(&name.sin6_addr) && name.sin6_port == htons(PORT + 3));
	for (int i = 0; i < 2; i++)
		CHECK(!rclose(ends[i]) && !rclose(listeners[i]) && !rclose(others[i]));
}

/* A socket keeps its descriptor until rclose, even if calls fail. */
static void failures(void)
{
	struct sockaddr_in6 six = { .sin6_family = AF_INET6, .sin6_port = htons(9) };
	int one = 1, first, second, other;

	first = rsocket(AF_INET, SOCK_STREAM, 0);
	second = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(!rsetsockopt(first, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)));
	CHECK(!rsetsockopt(second, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)));
	CHECK(!rbind(first, at(PORT + 1), sizeof(struct sockaddr_in)));
	CHECK(!rbind(second, at(PORT + 1), sizeof(struct sockaddr_in)));
	/* The other socket is bound to the same port. */
	FAILS(rlisten(first, 1), EADDRINUSE);
	FAILS(rlisten(second, 1), EADDRINUSE);
	CHECK(fcntl(first, F_GETFD) != -1 && fcntl(second, F_GETFD) != -1);
	CHECK(!rclose(first));
	CHECK(!rlisten(second, 1));
	CHECK(!rclose(second));

	first = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(!rbind(first, at(0), sizeof(struct sockaddr_in)));
	six.sin6_addr = in6addr_loopback;
	CHECK(rconnect(first, (struct sockaddr *)&six, sizeof(six)) == -1);
	CHECK(fcntl(first, F_GETFD) != -1);
	CHECK(wait_for(first, POLLIN) & POLLERR);
	other = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(other >= 0 && other != first);
	CHECK(!rclose(first));
	CHECK(!rbind(other, at(0), sizeof(struct sockaddr_in)));
	CHECK(!rclose(other));
}

static void *polls(void *socket)
{
	struct pollfd fd = { .fd = *(int *)socket, .events = POLLIN };

	CHECK(rpoll(&fd, 1, PATIENCE_MS) == 1 && fd.revents == POLLNVAL);
	return NULL;
}

/* Invalid memory and lengths, and a socket that another thread closes. */
static void hostile(void)
{
	int listener = rsocket(AF_INET, SOCK_STREAM, 0), ends[2], closed;
	char bytes[8] = "";
	struct iovec nothing = { .iov_base = NULL, .iov_len = 5 };
	struct iovec much[2] = { { bytes, SIZE_MAX }, { bytes, 2 } };
	pthread_t thread;

	CHECK(!rbind(listener, at(PORT + 2), sizeof(struct sockaddr_in)) && !rlisten(listener, 1));
	ends[0] = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(!rfcntl(ends[0], F_SETFL, O_NONBLOCK));
	FAILS(rconnect(ends[0], at(PORT + 2), sizeof(struct sockaddr_in)), EINPROGRESS);
	ends[1] = raccept(listener, NULL, NULL);
	CHECK(ends[1] >= 0 && wait_for(ends[0], POLLOUT) == POLLOUT);
	CHECK(!rfcntl(ends[0], F_SETFL, 0));
	FAILS(rsend(ends[0], NULL, 5, 0), EFAULT);
	FAILS(rwritev(ends[0], &nothing, 1), EFAULT);
	FAILS(rrecv(ends[1], NULL, 5, MSG_DONTWAIT), EFAULT);
	for (int i = 0; i < 2; i++) {
		CHECK(rsend(ends[0], "12345", 5, 0) == 5);
		CHECK(wait_for(ends[1], POLLIN) == POLLIN);
		/* Fewer bytes have arrived than the call requests. */
		CHECK((i ? rreadv(ends[1], much, 2) : rrecv(ends[1], bytes, SIZE_MAX, 0)) == 5);
		CHECK(!memcmp(bytes, "12345", 5));
	}
	FAILS(rpoll((struct pollfd *)bytes, SIZE_MAX / 2, 0), EINVAL);
	FAILS((ssize_t)riowrite(ends[0], NULL, 5, 0, 0), EFAULT);
	CHECK(riowrite(ends[0], bytes, SIZE_MAX, 0, 0) == 0);

	closed = ends[0];
	CHECK(!pthread_create(&thread, NULL, polls, &closed));
	usleep(100000);
	CHECK(!rclose(closed));
	CHECK(!pthread_join(thread, NULL));
	CHECK(!rclose(ends[1]) && !rclose(listener));
}

int main(int argc, char **argv)
{
	local = argc > 1 ? argv[1] : "127.0.0.1";
	refusals();
	options();
	routes();
	exchange();
	others();
	taken_elsewhere();
	taken_in_part();
	plain_descriptors();
	over_ipv6();
	failures();
	hostile();
	printf("all calls did what they should\n");
	return 0;
}
