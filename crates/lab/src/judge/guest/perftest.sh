# Debian's perftest over two rdma_rxe, and through `portolan exec` over the software device between
# two namespaces. Sourced by each step, after judge.sh.

# On a busy host rdma_rxe loses packets of long messages and waits for its timer.
program_limit_s=300
# The port on which a perftest server waits for its client, also in the format of /proc/net/tcp.
control_port=18515
control_port_hex=4853

# two_devices MTU: two rdma_rxe on the ends of a veth pair. On Linux 6.1 they work only in the
# initial namespace, so both ends are there. Each device sends through its own interface, and
# packets from local addresses are accepted.
two_devices() {
    ip link add rxe_west type veth peer name rxe_east
    number=0
    for host in west east; do
        number=$((number + 1))
        sysctl -qw net.ipv6.conf.rxe_$host.disable_ipv6=1
        sysctl -qw net.ipv4.conf.rxe_$host.accept_local=1
        sysctl -qw net.ipv4.conf.rxe_$host.rp_filter=0
        ip link set rxe_$host mtu "$1"
        ip addr add 10.8.0.$number/24 dev rxe_$host
    done
    for host in west east; do
        ip link set rxe_$host up
    done
    await 10 carrier west
    await 10 carrier east
    # Neither end would resolve an address that is local.
    ip neigh replace 10.8.0.2 dev rxe_west lladdr "$(hardware_address east)" nud permanent
    ip neigh replace 10.8.0.1 dev rxe_east lladdr "$(hardware_address west)" nud permanent
    for host in west east; do
        rdma link add rdma_$host type rxe netdev rxe_$host
        await 10 active $host
    done
    rdma link show
}

carrier() { [ "$(cat /sys/class/net/rxe_$1/carrier)" = 1 ]; }
active() { rdma link show "rdma_$1/1" | grep -q 'state ACTIVE'; }
hardware_address() { cat "/sys/class/net/rxe_$1/address"; }

# two_hosts MTU: two namespaces on the ends of a veth pair, with one device each
two_hosts() {
    number=0
    for host in west east; do
        number=$((number + 1))
        ip netns add $host
        ip netns exec $host sysctl -qw net.ipv6.conf.default.disable_ipv6=1
        ip -n $host link set lo up
    done
    ip -n west link add eth0 type veth peer name eth0 netns east
    ip -n west addr add 10.9.0.1/24 dev eth0
    ip -n east addr add 10.9.0.2/24 dev eth0
    for host in west east; do
        ip -n $host link set eth0 mtu "$1"
        ip -n $host link set eth0 up
    done
    await 10 ip netns exec west ping -q -c 1 -W 1 10.9.0.2
}

# over_rxe PROGRAM BYTES TIMES: checks the interfaces' counters to see that all traffic passed the
# veth pair
over_rxe() {
    passed_before=$(cat /sys/class/net/rxe_west/statistics/tx_bytes)
    measured_by two_over_rxe "$@"
    passed=$(($(cat /sys/class/net/rxe_west/statistics/tx_bytes) - passed_before))
    [ $passed -gt $((64 * $3)) ] || fail "only $passed bytes passed the veth pair"
}

# over_software PROGRAM BYTES TIMES
over_software() {
    measured_by two_over_software "$@"
}

two_over_rxe() {
    start server "$1" -d rdma_east -x "$(gid_index rdma_east 0a08:0002)" $(options "$@")
    await 60 has_listener
    start client "$1" -d rdma_west -x "$(gid_index rdma_west 0a08:0001)" $(options "$@") 127.0.0.1
    both_are_well
}

two_over_software() {
    start server ip netns exec east portolan exec -- "$1" -d sw_eth0 -x 0 $(options "$@")
    await 60 ip netns exec east sh -c ". /job/judge.sh; . /job/perftest.sh; has_listener"
    start client ip netns exec west portolan exec -- "$1" -d sw_eth0 -x 0 $(options "$@") 10.9.0.2
    both_are_well
}

# measured_by TWO PROGRAM BYTES TIMES: perftest compares the processor's clock with the time of day.
# If they disagree, as on a busy emulator host, it measures nothing. So latencies are in cycles, and
# a failed measurement is repeated.
measured_by() {
    sed -n 's/^cpu MHz[^:]*/cycles a microsecond/p' /proc/cpuinfo | head -n 1
    for try in $(seq 12); do
        "$@"
        ! has_measured "$3" || break
        [ $try -lt 12 ] || fail "no measurement"
    done
    cat /tmp/client
}

# has_measured BYTES: whether a line's fourth word is a measured value
has_measured() { awk -v bytes="$1" '$1 == bytes && $4 ~ /[1-9]/ { found = 1 } END { exit !found }' /tmp/client; }

# options PROGRAM BYTES TIMES: sets the path MTU, because perftest's default depends on the driver.
# With -F it continues although it does not know the processor's clock.
options() {
    options_more=
    case $1 in
        *_lat) options_more=-C ;;
    esac
    echo "-F -m 4096 -s $2 -n $3 -p $control_port $options_more"
}

has_listener() {
    cat /proc/net/tcp /proc/net/tcp6 2> /dev/null | grep -q ":$control_port_hex 0*:0000 0A"
}

# gid_index DEVICE ADDRESS: index of an IPv4 address that is given in two groups of four digits
gid_index() {
    for gid in "/sys/class/infiniband/$1/ports/1/gids/"*; do
        if grep -q ":ffff:$2\$" "$gid"; then
            echo "${gid##*/}"
            return
        fi
    done
    fail "$1 has no GID of $2"
}

both_are_well() {
    end client > /dev/null || fail "client ended with status $end_status: $(cat /tmp/client)"
    end server > /dev/null || fail "server ended with status $end_status: $(cat /tmp/server)"
}
