/*
 * Kills the process at one end of a stream. Exits with 0 if the other end's calls fail within a second.
 *
 * Usage: killed LOCAL_IPV4
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <rdma/rsocket.h>

#define WITHIN_MS 1000
#define PATIENCE_MS 30000

static struct sockaddr_in address;
static pid_t peer;

#define CHECK(condition)                                                        \
	do {                                                                    \
		if (!(condition)) {                                             \
			printf("line %d: %s is not so, errno %s\n", __LINE__,   \
			       #condition, strerrorname_np(errno));             \
			if (peer > 0)                                           \
				kill(peer, SIGKILL);                            \
			exit(1);                                                \
		}                                                               \
	} while (0)

enum end { ACTIVE, PASSIVE };
enum call { RECEIVE, POLL, EPOLL, SEND, CALLS };

static long now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Returns a connected socket. The passive end writes to the pipe once it listens, and the active end waits for that. */
static int open_end(enum end end, int pipe_ends[2])
{
	int one = 1, socket = rsocket(AF_INET, SOCK_STREAM, 0), accepted;
	char byte = 0;

	CHECK(socket >= 0);
	if (end == ACTIVE) {
		CHECK(read(pipe_ends[0], &byte, 1) == 1);
		CHECK(rconnect(socket, (struct sockaddr *)&address, sizeof(address)) == 0);
		return socket;
	}
	CHECK(rsetsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) == 0);
	CHECK(rbind(socket, (struct sockaddr *)&address, sizeof(address)) == 0);
	CHECK(rlisten(socket, 1) == 0);
	CHECK(write(pipe_ends[1], &byte, 1) == 1);
	accepted = raccept(socket, NULL, NULL);
	CHECK(accepted >= 0);
	CHECK(rclose(socket) == 0);
	return accepted;
}

/* Waits in a call until the peer dies, and checks the errors. */
static void wait_in(int socket, enum call call)
{
	static char bulk[1 << 16];
	struct pollfd fd = { .fd = socket, .events = POLLIN };
	struct epoll_event event = { .events = EPOLLIN };
	char byte;
	int epoll;

	switch (call) {
	case RECEIVE:
		break;
	case POLL:
		CHECK(rpoll(&fd, 1, PATIENCE_MS) == 1);
		CHECK(fd.revents & (POLLIN | POLLERR | POLLHUP));
		break;
	case EPOLL:
		epoll = repoll_create(1);
		CHECK(epoll >= 0);
		CHECK(repoll_ctl(epoll, EPOLL_CTL_ADD, socket, &event) == 0);
		CHECK(repoll_wait(epoll, &event, 1, PATIENCE_MS) == 1);
		CHECK(rclose(epoll) == 0);
		break;
	default:
		while (rsend(socket, bulk, sizeof(bulk), 0) > 0)
			;
		CHECK(errno == ECONNRESET);
		return;
	}
	CHECK(rrecv(socket, &byte, 1, 0) == -1);
	CHECK(errno == ECONNRESET);
	CHECK(rsend(socket, &byte, 1, 0) == -1);
	CHECK(errno == ECONNRESET);
}

/* Runs one end in a child process, which another child kills, and the other end in this process. */
static void survive(enum end killed, enum call call)
{
	int pipe_ends[2], socket;
	pid_t killer;
	long times[2], came;
	char byte = 7;
	int times_pipe[2];

	CHECK(pipe(pipe_ends) == 0);
	CHECK(pipe(times_pipe) == 0);
	peer = fork();
	CHECK(peer >= 0);
	if (peer == 0) {
		socket = open_end(killed, pipe_ends);
		CHECK(rsend(socket, &byte, 1, 0) == 1);
		pause();
		exit(1);
	}
	socket = open_end(killed == ACTIVE ? PASSIVE : ACTIVE, pipe_ends);
	CHECK(rrecv(socket, &byte, 1, 0) == 1);
	CHECK(byte == 7);
	killer = fork();
	CHECK(killer >= 0);
	if (killer == 0) {
		/* After this time the other end sleeps in its call. */
		usleep(200000);
		times[0] = now_ms();
		kill(peer, SIGKILL);
		_exit(write(times_pipe[1], &times[0], sizeof(times[0])) != sizeof(times[0]));
	}
	wait_in(socket, call);
	came = now_ms();
	CHECK(read(times_pipe[0], &times[0], sizeof(times[0])) == sizeof(times[0]));
	CHECK(came >= times[0]);
	if (came - times[0] >= WITHIN_MS) {
		printf("the end of end %d came to call %d after %ld ms\n", killed, call, came - times[0]);
		exit(1);
	}
	CHECK(rclose(socket) == 0);
	CHECK(waitpid(killer, NULL, 0) == killer);
	CHECK(waitpid(peer, NULL, 0) == peer);
	for (int i = 0; i < 2; i++) {
		close(pipe_ends[i]);
		close(times_pipe[i]);
	}
}

int main(int argc, char **argv)
{
	if (argc != 2)
		return 2;
	address.sin_family = AF_INET;
	inet_pton(AF_INET, argv[1], &address.sin_addr);
	for (enum call call = 0; call < CALLS; call++) {
		for (enum end end = ACTIVE; end <= PASSIVE; end++) {
			/* Each case has its own process, because a process must not use the library before it forks. */
			pid_t survivor = fork();
			int status;

			address.sin_port = htons(7600 + 2 * call + end);
			if (survivor == 0) {
				survive(end, call);
				exit(0);
			}
			if (waitpid(survivor, &status, 0) != survivor || status != 0)
				return 1;
		}
	}
	return 0;
}
