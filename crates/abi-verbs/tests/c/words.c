/* Prints all of libibverbs' strings, and its rates. */

#include <infiniband/verbs.h>
#include <stdio.h>

int main(void) {
	for (int at = -2; at < 40; at++)
		printf("%d: %s, %s, %s, %s\n", at, ibv_node_type_str(at), ibv_port_state_str(at),
			ibv_event_type_str(at), ibv_wc_status_str(at));
	for (int at = -1; at < 600; at++)
		printf("%d: %d %d %d\n", at, ibv_rate_to_mult(at), ibv_rate_to_mbps(at), mult_to_ibv_rate(at));
	for (int mbps = 0; mbps < 1300000; mbps++)
		if (mbps_to_ibv_rate(mbps))
			printf("%d: %d\n", mbps, mbps_to_ibv_rate(mbps));
	return 0;
}
