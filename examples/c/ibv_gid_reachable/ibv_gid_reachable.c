/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Checks from each device whether a GID can be reached. On Ethernet a GID is an IP address.
 *
 *   ibv_gid_reachable GID [DEVICE]
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <portolan.h>

/* An IPv6 address, or an IPv4 address mapped into one. */
static int parse(const char *text, union ibv_gid *gid)
{
	memset(gid, 0, sizeof(*gid));
	if (inet_pton(AF_INET6, text, gid->raw) == 1)
		return 0;
	gid->raw[10] = gid->raw[11] = 0xff;
	return inet_pton(AF_INET, text, gid->raw + 12) != 1;
}

/* Asks from any port of a device; 0 if the GID can be reached. */
static int ask(struct ibv_device *device, union ibv_gid *gid)
{
	struct ibv_context *context = ibv_open_device(device);
	int failed;

	printf("%s: ", ibv_get_device_name(device));
	if (!context) {
		printf("cannot be opened: %s\n", strerror(errno));
		return 1;
	}
	failed = ibv_gid_reachable(context, 0, gid, 0);
	if (!failed)
		printf("reachable\n");
	else if (errno == ENXIO)
		printf("no path\n");
	else
		printf("not known: %s\n", strerror(errno));
	ibv_close_device(context);
	return failed;
}

int main(int argc, char **argv)
{
	struct ibv_device **devices;
	union ibv_gid gid;
	int count, i, reached = 0;

	if (argc < 2 || argc > 3 || parse(argv[1], &gid)) {
		fprintf(stderr, "usage: %s GID [DEVICE]\n", argv[0]);
		return 2;
	}
	devices = ibv_get_device_list(&count);
	if (!devices) {
		perror("ibv_get_device_list");
		return 1;
	}
	for (i = 0; i < count; i++)
		if (argc < 3 || !strcmp(argv[2], ibv_get_device_name(devices[i])))
			reached += !ask(devices[i], &gid);
	ibv_free_device_list(devices);
	return !reached;
}
