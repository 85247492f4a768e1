# One machine, two hosts: the kernel's rdma_rxe on veth0 in the initial network namespace, and veth1
# in the namespace `peer` for a RoCEv2 device in user space. On Linux 6.1 rdma_rxe owns UDP 4791 of
# the initial namespace only.

ip netns add peer
# Duplicate address detection would keep the IPv6 addresses tentative for seconds.
sysctl -qw net.ipv6.conf.default.accept_dad=0
ip netns exec peer sysctl -qw net.ipv6.conf.default.accept_dad=0
ip link add veth0 type veth peer name veth1 netns peer
ip addr add 10.7.0.1/24 dev veth0
ip addr add fd07::1/64 dev veth0 nodad
ip -n peer addr add 10.7.0.2/24 dev veth1
ip -n peer addr add fd07::2/64 dev veth1 nodad
ip -n peer link set lo up
ip -n peer link set veth1 up
ip link set veth0 up

# A veth pair passes a whole UDP GSO packet; a real network carries its segments.
ethtool -K veth0 tx-udp-segmentation off
ip netns exec peer ethtool -K veth1 tx-udp-segmentation off

. /job/judge.sh
carrier() { [ "$(cat /sys/class/net/veth0/carrier)" = 1 ]; }
await 10 carrier
rdma link add rxe0 type rxe netdev veth0
active() { rdma link show rxe0/1 | grep -q 'state ACTIVE'; }
await 10 active
rdma link show
ping -q -c 1 10.7.0.2
ping -q -c 1 fd07::2
