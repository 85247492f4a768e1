/*
 * Prints the result of stdio's calls on sockets, and of calls that take much at once. The output must be the same on TCP and on
 * rsockets.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include "told.h"
#include "server.h"

#define LARGE (16 << 20)

static struct sockaddr_in here;
static char text[100];
static char large[LARGE];

static void read_lines(int listener)
{
	int ends[2];
	FILE *file;

	pair(&here, listener, ends);
	file = fdopen(ends[1], "r");
	need(write(ends[0], "one\ntwo\nthree\n", 14) == 14, "write");
	printf("first: %s", fgets(text, sizeof(text), file));
	TELL("fflush", fflush(file));
	TELL("fseek", fseek(file, 0, SEEK_SET));
	TELL("ftell", ftell(file));
	printf("second: %s", fgets(text, sizeof(text), file));
	printf("third: %s", fgets(text, sizeof(text), file));
	fclose(file);
	close(ends[0]);
}

/* fflush of all files. */
static void flush_all(int listener)
{
	int ends[2];
	FILE *file;

	pair(&here, listener, ends);
	file = fdopen(ends[0], "w");
	fputs("more", file);
	TELL("fflush of all", fflush(NULL));
	TELL("from the file", recv(ends[1], text, 4, MSG_WAITALL));
	TELL("fclose", fclose(file));
	close(ends[1]);
}

static void *drain(void *fd)
{
	static char there[10000];

	while (read((int)(long)fd, there, sizeof(there)) > 0)
		;
	return NULL;
}

/* Where the first message does not fit whole, the next one is not sent: its bytes would come before the rest. */
static void many_messages(int listener)
{
	struct iovec pieces[2] = { { large, LARGE }, { large, 1 } };
	struct mmsghdr messages[2] = {
		{ .msg_hdr = { .msg_iov = &pieces[0], .msg_iovlen = 1 } },
		{ .msg_hdr = { .msg_iov = &pieces[1], .msg_iovlen = 1 } },
	};
	int ends[2], parts = 0, holes = 0;
	pthread_t reader;

	pair(&here, listener, ends);
	fcntl(ends[0], F_SETFL, O_NONBLOCK);
	pthread_create(&reader, NULL, drain, (void *)(long)ends[1]);
	while (parts < 200) {
		int sent = sendmmsg(ends[0], messages, 2, 0);
		int is_part = sent > 0 && messages[0].msg_len < LARGE;

		parts += is_part;
		holes += is_part && sent > 1;
	}
	printf("holes: %d\n", holes);
	close(ends[0]);
	pthread_join(reader, NULL);
	close(ends[1]);
}

/* A set of select(2) has as many bits as the process may have descriptors by default, but the call says more. */
static void more_bits(int listener)
{
	struct timeval now = { 0 };
	long page = sysconf(_SC_PAGESIZE);
	char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	fd_set *set = (fd_set *)(pages + page) - 1;
	int ends[2];

	need(mprotect(pages + page, page, PROT_NONE) == 0, "mprotect");
	pair(&here, listener, ends);
	need(write(ends[0], "x", 1) == 1, "write");
	need(recv(ends[1], text, 1, MSG_PEEK) == 1, "peek");
	FD_ZERO(set);
	TELL("select of nothing", select(1 << 20, set, NULL, NULL, &now));
	FD_SET(ends[1], set);
	TELL("select", select(1 << 20, set, NULL, NULL, &now));
	printf("it is readable: %d\n", FD_ISSET(ends[1], set) != 0);
	finish(ends);
}

/* SO_RCVTIMEO holds for splice, too. */
static void limited_splice(int listener)
{
	struct timeval limit = { .tv_usec = 100000 };
	int ends[2], through[2];

	pair(&here, listener, ends);
	need(pipe(through) == 0, "pipe");
	setsockopt(ends[1], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	TELL("splice of nothing", splice(ends[1], NULL, through[1], NULL, 100, 0));
	need(write(ends[0], "some", 4) == 4, "write");
	TELL("splice", splice(ends[1], NULL, through[1], NULL, 100, 0));
	TELL("splice to no pipe", splice(ends[1], NULL, ends[0], NULL, 100, SPLICE_F_NONBLOCK));
	TELL("read", read(through[0], text, sizeof(text)));
	finish(ends);
}

/* A child reopens a file of its parent's. It gets one of /dev/null or an error. */
static void reopen(int listener)
{
	int ends[2], ended;
	FILE *file;

	pair(&here, listener, ends);
	file = fdopen(ends[1], "r");
	if (fork() == 0) {
		FILE *other = freopen("/dev/null", "r", file);

		_exit(other ? fgetc(other) != EOF : errno != EOPNOTSUPP);
	}
	wait(&ended);
	printf("the child that reopens a file ends: %d\n", ended);
	fclose(file);
	close(ends[0]);
}

/* What the client of a Unix socket calls itself is its name, whatever that is. */
static void names_of_others(void)
{
	struct sockaddr_un server = { .sun_family = AF_UNIX }, client = server, peer;
	const char *name = "portolan-stream/10.9.9.9:77/peer/1/1";
	int listener = socket(AF_UNIX, SOCK_STREAM, 0), calling = socket(AF_UNIX, SOCK_STREAM, 0), taken;
	socklen_t length = sizeof(sa_family_t), room = sizeof(peer);

	memcpy(client.sun_path + 1, name, strlen(name));
	/* A name by the kernel. */
	need(bind(listener, (struct sockaddr *)&server, length) == 0 && listen(listener, 1) == 0, "listen");
	length = sizeof(server);
	need(getsockname(listener, (struct sockaddr *)&server, &length) == 0, "getsockname");
	need(bind(calling, (struct sockaddr *)&client, sizeof(sa_family_t) + 1 + strlen(name)) == 0, "bind");
	need(connect(calling, (struct sockaddr *)&server, length) == 0, "connect");
	taken = accept(listener, NULL, NULL);
	TELL("getpeername", getpeername(taken, (struct sockaddr *)&peer, &room));
	printf("a Unix socket's: %d\n", peer.sun_family == AF_UNIX);
	close(taken);
	close(calling);
	close(listener);
}

int main(void)
{
	int listener;

	setvbuf(stdout, NULL, _IOLBF, 0);
	alarm(60);
	listener = listen_here(&here);
	read_lines(listener);
	flush_all(listener);
	many_messages(listener);
	more_bits(listener);
	limited_splice(listener);
	reopen(listener);
	names_of_others();
	printf("done\n");
	return 0;
}
