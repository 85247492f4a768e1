/* A plug-in that has the libraries: what connects, pings and is done, or leaves all as it is. */
#include "pinger.h"

int use(const char *host, const char *port, int is_left);

int use(const char *host, const char *port, int is_left)
{
	/* Registered memory outlives the plug-in where it is left. */
	struct pinger *pinger = calloc(1, sizeof(*pinger));
	int failed;

	if (!pinger)
		return -1;
	failed = pinger_connect(pinger, host, port) || pinger_ping(pinger);
	if (failed || !is_left) {
		pinger_close(pinger);
		free(pinger);
	}
	return failed;
}
