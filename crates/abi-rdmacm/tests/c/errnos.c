/*
 * The errno of each socket call of rsocket(7) with wrong arguments, and in states that do not permit it. Prints one line
 * for each call: the state, the call, its result.
 *
 * Usage: errnos LOCAL_IPV4
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>
#include <rdma/rsocket.h>

#define PORT 7491

static const char *state;
static struct sockaddr_in here;

/* A crash ends the call, not the program: librdmacm crashes where ours must not. */
static sigjmp_buf before;

static void crashed(int signal)
{
	(void)signal;
	siglongjmp(before, 1);
}

static const char *told(long result)
{
	static char text[64];

	if (result < 0)
		snprintf(text, sizeof(text), "-1, %s", errno ? strerrorname_np(errno) : "0");
	else
		snprintf(text, sizeof(text), "%ld", result);
	return text;
}

#define TELL(call)                                                           \
	do {                                                                 \
		errno = 0;                                                   \
		if (sigsetjmp(before, 1) == 0)                               \
			printf("%s: %s = %s\n", state, #call, told((long)(call))); \
		else                                                         \
			printf("%s: %s crashes\n", state, #call);            \
	} while (0)

static struct sockaddr *at(int port)
{
	here.sin_port = htons(port);
	return (struct sockaddr *)&here;
}

/*
 * Calls that change neither the socket nor its connection. librdmacm crashes if a socket without a connection is to move
 * data, and then keeps a lock.
 */
static void look(int s, int moves)
{
	char bytes[64] = "";
	struct iovec piece = { bytes, 1 }, none = { NULL, 0 };
	struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1 };
	struct msghdr empty = { .msg_iov = &none, .msg_iovlen = 0 };
	struct sockaddr_storage place;
	struct linger linger = { 1, 1 };
	struct pollfd fd = { .fd = s, .events = POLLIN | POLLOUT };
	socklen_t length;
	int value = 1;

	if (!moves)
		goto rest;
	TELL(rrecv(s, bytes, 1, MSG_DONTWAIT));
	TELL(rrecv(s, bytes, 0, MSG_DONTWAIT));
	TELL(rrecv(s, bytes, 1, MSG_DONTWAIT | MSG_OOB));
	TELL(rrecv(s, bytes, 1, MSG_DONTWAIT | MSG_PEEK));
	TELL(rrecvfrom(s, bytes, 1, MSG_DONTWAIT, NULL, NULL));
	length = sizeof(place);
	TELL(rrecvfrom(s, bytes, 1, MSG_DONTWAIT, (struct sockaddr *)&place, &length));
	TELL(rrecvmsg(s, &message, MSG_DONTWAIT));
	TELL(rread(s, bytes, 0));
	TELL(rreadv(s, &piece, 1));
	TELL(rsend(s, bytes, 0, MSG_DONTWAIT));
	TELL(rsend(s, bytes, 0, MSG_DONTWAIT | MSG_OOB));
	TELL(rsendmsg(s, &empty, 0));
	TELL(rwritev(s, &none, 1));
	TELL(rwrite(s, bytes, 0));
	TELL(rsendto(s, bytes, 0, MSG_DONTWAIT, NULL, 0));
	TELL(riowrite(s, bytes, 1, 0, MSG_DONTWAIT));
rest:
	length = sizeof(place);
	TELL(rgetpeername(s, (struct sockaddr *)&place, &length));
	length = sizeof(place);
	TELL(rgetsockname(s, (struct sockaddr *)&place, &length));
	length = 0;
	TELL(rgetsockname(s, (struct sockaddr *)&place, &length));
	length = 4;
	TELL(rgetpeername(s, (struct sockaddr *)&place, &length));
	TELL(rsetsockopt(s, SOL_SOCKET, SO_REUSEADDR, &value, sizeof(value)));
	TELL(rsetsockopt(s, SOL_SOCKET, SO_KEEPALIVE, &value, sizeof(value)));
	TELL(rsetsockopt(s, SOL_SOCKET, SO_OOBINLINE, &value, sizeof(value)));
	TELL(rsetsockopt(s, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)));
	TELL(rsetsockopt(s, SOL_SOCKET, SO_BROADCAST, &value, sizeof(value)));
	TELL(rsetsockopt(s, SOL_SOCKET, 9999, &value, sizeof(value)));
	TELL(rsetsockopt(s, IPPROTO_TCP, TCP_NODELAY, &value, sizeof(value)));
	TELL(rsetsockopt(s, IPPROTO_TCP, TCP_MAXSEG, &value, sizeof(value)));
	TELL(rsetsockopt(s, IPPROTO_TCP, TCP_KEEPCNT, &value, sizeof(value)));
	TELL(rsetsockopt(s, IPPROTO_TCP, TCP_CORK, &value, sizeof(value)));
	TELL(rsetsockopt(s, IPPROTO_TCP, 9999, &value, sizeof(value)));
	TELL(rsetsockopt(s, IPPROTO_IPV6, IPV6_V6ONLY, &value, sizeof(value)));
	TELL(rsetsockopt(s, IPPROTO_IPV6, 9999, &value, sizeof(value)));
	TELL(rsetsockopt(s, IPPROTO_IP, IP_TOS, &value, sizeof(value)));
	TELL(rsetsockopt(s, SOL_RDMA, RDMA_SQSIZE, &value, sizeof(value)));
	TELL(rsetsockopt(s, SOL_RDMA, RDMA_RQSIZE, &value, sizeof(value)));
	TELL(rsetsockopt(s, SOL_RDMA, RDMA_INLINE, &value, sizeof(value)));
	TELL(rsetsockopt(s, SOL_RDMA, RDMA_IOMAPSIZE, &value, sizeof(value)));
	TELL(rsetsockopt(s, SOL_RDMA, 9999, &value, sizeof(value)));
	TELL(rsetsockopt(s, 9999, SO_REUSEADDR, &value, sizeof(value)));
	length = sizeof(value);
	TELL(rgetsockopt(s, SOL_SOCKET, SO_TYPE, &value, &length));
	TELL(rgetsockopt(s, SOL_SOCKET, SO_ERROR, &value, &length));
	TELL(rgetsockopt(s, SOL_SOCKET, SO_BROADCAST, &value, &length));
	TELL(rgetsockopt(s, SOL_SOCKET, SO_DOMAIN, &value, &length));
	TELL(rgetsockopt(s, SOL_SOCKET, SO_PROTOCOL, &value, &length));
	TELL(rgetsockopt(s, SOL_SOCKET, SO_ACCEPTCONN, &value, &length));
	TELL(rgetsockopt(s, SOL_SOCKET, 9999, &value, &length));
	TELL(rgetsockopt(s, IPPROTO_TCP, TCP_NODELAY, &value, &length));
	TELL(rgetsockopt(s, IPPROTO_TCP, 9999, &value, &length));
	TELL(rgetsockopt(s, IPPROTO_IPV6, IPV6_V6ONLY, &value, &length));
	TELL(rgetsockopt(s, IPPROTO_IPV6, 9999, &value, &length));
	TELL(rgetsockopt(s, SOL_RDMA, RDMA_SQSIZE, &value, &length));
	TELL(rgetsockopt(s, SOL_RDMA, 9999, &value, &length));
	TELL(rgetsockopt(s, 9999, SO_REUSEADDR, &value, &length));
	TELL(rfcntl(s, F_GETFL));
	TELL(rfcntl(s, F_GETFD));
	TELL(rfcntl(s, F_GETOWN));
	TELL(rfcntl(s, 9999));
	TELL(rpoll(&fd, 1, 0));
	printf("%s: revents %#x\n", state, fd.revents);
	TELL(raccept(s, NULL, NULL));
}

static void change(int s)
{
	char *memory = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	TELL(riomap(s, memory, 4096, PROT_WRITE, 0, -1) >= 0 ? 0 : -1);
	TELL(riounmap(s, memory, 4096));
	TELL(riounmap(s, memory, 4096));
	TELL(rbind(s, at(PORT + 1), sizeof(here)));
	TELL(rshutdown(s, 99));
}

static int fresh(void)
{
	int s = rsocket(AF_INET, SOCK_STREAM, 0);

	if (s < 0) {
		perror("rsocket");
		exit(1);
	}
	rfcntl(s, F_SETFL, O_NONBLOCK);
	return s;
}

static int listening(int port)
{
	int s = fresh(), on = 1;

	rsetsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (rbind(s, at(port), sizeof(here)) || rlisten(s, 4)) {
		perror("listen");
		exit(1);
	}
	return s;
}

struct ends { int client, server; };

static void *take(void *of)
{
	int *s = of;

	rfcntl(*s, F_SETFL, 0);
	*s = raccept(*s, NULL, NULL);
	return NULL;
}

static struct ends pair(int listener)
{
	struct ends ends = { .server = listener };
	pthread_t other;

	pthread_create(&other, NULL, take, &ends.server);
	ends.client = rsocket(AF_INET, SOCK_STREAM, 0);
	if (rconnect(ends.client, at(PORT), sizeof(here))) {
		perror("rconnect");
		exit(1);
	}
	pthread_join(other, NULL);
	rfcntl(ends.client, F_SETFL, O_NONBLOCK);
	rfcntl(ends.server, F_SETFL, O_NONBLOCK);
	rfcntl(listener, F_SETFL, O_NONBLOCK);
	return ends;
}

/* librdmacm's datagram sockets crash in most calls of streams, and then keep a lock. */
static void datagrams(void)
{
	int s = rsocket(AF_INET, SOCK_DGRAM, 0);
	char byte = 'x';

	rfcntl(s, F_SETFL, O_NONBLOCK);
	state = "fresh, of datagrams";
	look(s, 0);
	TELL(rrecv(s, &byte, 1, 0));
	state = "bound, of datagrams";
	TELL(rbind(s, at(PORT + 5), sizeof(here)));
	look(s, 0);
	TELL(rrecv(s, &byte, 1, 0));
	TELL(rrecvfrom(s, &byte, 1, MSG_DONTWAIT, NULL, NULL));
	TELL(rclose(s));
}

int main(int count, char **arguments)
{
	struct sockaddr_in6 six = { .sin6_family = AF_INET6 };
	struct sockaddr_in foreign = { .sin_family = AF_INET, .sin_port = htons(PORT) };
	struct sockaddr none = { .sa_family = AF_UNSPEC };
	struct ends ends;
	int s, l;
	char byte = 'x';

	if (count != 2)
		return 2;
	alarm(100);
	signal(SIGSEGV, crashed);
	setvbuf(stdout, NULL, _IOLBF, 0);
	here.sin_family = AF_INET;
	inet_pton(AF_INET, arguments[1], &here.sin_addr);
	inet_pton(AF_INET, "192.0.2.9", &foreign.sin_addr);

	state = "none";
	TELL(rsocket(AF_UNIX, SOCK_STREAM, 0));
	TELL(rsocket(AF_INET, SOCK_SEQPACKET, 0));
	TELL(rsocket(AF_INET, SOCK_RAW, 0));
	TELL(rsocket(AF_INET, SOCK_STREAM, IPPROTO_UDP));
	TELL(rsocket(AF_INET, SOCK_DGRAM, IPPROTO_TCP));
	TELL(rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0) >= 0 ? 0 : -1);
	TELL(rsocket(-1, SOCK_STREAM, 0));
	TELL(rpoll(NULL, 0, 0));
	TELL(rselect(0, NULL, NULL, NULL, &(struct timeval){ 0, 0 }));
	s = 0;
	state = "a file";
	look(s, 0);
	s = -1;
	state = "-1";
	TELL(rbind(s, at(PORT), sizeof(here)));
	TELL(rlisten(s, 1));
	TELL(rconnect(s, at(PORT), sizeof(here)));
	TELL(rshutdown(s, SHUT_RDWR));
	TELL(rclose(s));
	TELL(raccept(s, NULL, NULL));
	s = 70000;
	state = "70000";
	TELL(rlisten(s, 1));

	state = "fresh";
	s = fresh();
	look(s, 0);
	change(s);
	rclose(s);
	s = fresh();
	TELL(rlisten(s, 1));
	TELL(rlisten(s, 1));
	rclose(s);
	s = fresh();
	TELL(rlisten(s, -1));
	rclose(s);
	s = fresh();
	TELL(rbind(s, &none, sizeof(here)));
	TELL(rbind(s, (struct sockaddr *)&foreign, sizeof(foreign)));
	TELL(rbind(s, (struct sockaddr *)&six, sizeof(six)));
	rclose(s);
	s = fresh();
	TELL(rconnect(s, &none, sizeof(here)));
	rclose(s);
	s = fresh();
	TELL(rshutdown(s, SHUT_RD));
	TELL(rshutdown(s, SHUT_WR));
	TELL(rshutdown(s, SHUT_RDWR));
	TELL(rclose(s));
	state = "closed";
	TELL(rbind(s, at(PORT), sizeof(here)));

	state = "bound";
	s = fresh();
	TELL(rbind(s, at(PORT + 2), sizeof(here)));
	TELL(rbind(s, at(PORT + 3), sizeof(here)));
	look(s, 0);
	int second = fresh();
	TELL(rbind(second, at(PORT + 2), sizeof(here)));
	rclose(second);
	rclose(s);

	state = "listening";
	l = listening(PORT);
	look(l, 0);
	change(l);
	TELL(rlisten(l, 2));
	TELL(rconnect(l, at(PORT), sizeof(here)));
	second = fresh();
	TELL(rbind(second, at(PORT), sizeof(here)) ? -1 : rlisten(second, 1));
	rclose(second);

	state = "connected";
	ends = pair(l);
	look(ends.client, 1);
	TELL(rbind(ends.client, at(PORT + 4), sizeof(here)));
	TELL(rlisten(ends.client, 1));
	TELL(rconnect(ends.client, at(PORT), sizeof(here)));
	TELL(rshutdown(ends.client, SHUT_WR));
	state = "shut for writing";
	TELL(rsend(ends.client, &byte, 1, MSG_DONTWAIT));
	TELL(rshutdown(ends.client, SHUT_WR));
	rpoll(&(struct pollfd){ .fd = ends.server, .events = POLLIN }, 1, 30000);
	state = "whose peer has shut for writing";
	TELL(rrecv(ends.server, &byte, 1, 0));
	TELL(rrecv(ends.server, &byte, 1, 0));
	TELL(rsend(ends.server, &byte, 1, 0));
	rclose(ends.client);
	usleep(300000);
	state = "whose peer has closed";
	TELL(rrecv(ends.server, &byte, 1, 0));
	TELL(rsend(ends.server, &byte, 1, MSG_DONTWAIT));
	TELL(rgetpeername(ends.server, (struct sockaddr *)&foreign, &(socklen_t){ sizeof(foreign) }));
	TELL(rshutdown(ends.server, SHUT_RDWR));
	TELL(rclose(ends.server));
	ends = pair(l);
	TELL(rshutdown(ends.client, SHUT_RDWR));
	state = "shut";
	look(ends.client, 1);
	TELL(rshutdown(ends.client, SHUT_RDWR));
	rclose(ends.client);
	rclose(ends.server);
	rclose(l);
	datagrams();
	printf("== end\n");
	return 0;
}
