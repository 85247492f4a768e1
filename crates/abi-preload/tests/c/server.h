/* How the test programs listen. After told.h. */
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

/* Port 7100 of 127.0.0.1. */
static inline struct sockaddr_in loopback(void)
{
	return (struct sockaddr_in){
		.sin_family = AF_INET,
		.sin_port = htons(7100),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};
}

/* Listens at that address, and stores it. Returns the listener. */
static inline int listen_here(struct sockaddr_in *here)
{
	int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;

	*here = loopback();
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	need(bind(listener, (struct sockaddr *)here, sizeof(*here)) == 0, "bind");
	need(listen(listener, 16) == 0, "listen");
	return listener;
}

/* Connects to the listener. `ends` are the client's and what the listener accepts. */
static inline void pair(const struct sockaddr_in *here, int listener, int ends[2])
{
	ends[0] = socket(AF_INET, SOCK_STREAM, 0);
	need(connect(ends[0], (const struct sockaddr *)here, sizeof(*here)) == 0, "connect");
	ends[1] = accept(listener, NULL, NULL);
	need(ends[1] >= 0, "accept");
}

static inline void finish(int ends[2])
{
	close(ends[0]);
	close(ends[1]);
}
