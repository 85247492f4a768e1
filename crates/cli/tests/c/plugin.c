/* A plug-in that uses the libraries: it connects, pings and cleans up, or leaves everything as it is. */
#include "pinger.h"

int use(const char *host, const char *port, int is_left);

int use(const char *host, const char *port, int is_left)
{
	/* Registered memory that is left must outlive the plug-in. */
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
