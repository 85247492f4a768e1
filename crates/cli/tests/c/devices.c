/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Prints the devices of libibverbs and those in /sys/class/infiniband. */
#include <dirent.h>
#include <stdio.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

int main(void)
{
	struct ibv_device **devices;
	struct dirent *entry;
	int count, i;
	DIR *folder;

	devices = ibv_get_device_list(&count);
	if (!devices) {
		perror("ibv_get_device_list");
		return 1;
	}
	for (i = 0; i < count; i++)
		printf("verbs %s\n", ibv_get_device_name(devices[i]));
	ibv_free_device_list(devices);
	folder = opendir("/sys/class/infiniband");
	while (folder && (entry = readdir(folder)))
		if (entry->d_name[0] != '.')
			printf("sysfs %s\n", entry->d_name);
	if (folder)
		closedir(folder);
	/* The connection manager is linked too. */
	printf("event %s\n", rdma_event_str(RDMA_CM_EVENT_ESTABLISHED));
	return 0;
}
