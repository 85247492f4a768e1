# Simultaneous connections, step by step: cmtime on rxe0, our program on rxe0, and our program on
# the software device between two other namespaces. Sourced by each step, after judge.sh.

program_limit_s=300

# rdma_rxe owns UDP 4791 of the initial namespace, so the software device gets two other namespaces.
two_namespaces() {
    number=0
    for host in west east; do
        number=$((number + 1))
        ip netns add $host
        ip -n $host link set lo up
    done
    ip -n west link add eth0 type veth peer name eth0 netns east
    ip -n west addr add 10.9.0.1/24 dev eth0
    ip -n east addr add 10.9.0.2/24 dev eth0
    for host in west east; do
        ip -n $host link set eth0 up
    done
    await 10 ip netns exec west ping -q -c 1 -W 1 10.9.0.2
}

# by_cmtime AT_ONCE TIMES
by_cmtime() {
    start server cmtime -b "$(address kernel 4)"
    await 20 kernel_listens 7471
    for time in $(seq "$2"); do
        start client cmtime -s "$(address kernel 4)" -b "$(address kernel 4)" -c "$1"
        told_by_client
    done
}

# over_the_kernel AT_ONCE TIMES
over_the_kernel() {
    start server env PORTOLAN_PROVIDER=kernel portolan-cmtime --listen "$(endpoint kernel 4 7472)"
    await_said server listening
    for time in $(seq "$2"); do
        start client env PORTOLAN_PROVIDER=kernel portolan-cmtime "$(endpoint kernel 4 7472)" \
            --source "$(address kernel 4)" --count "$1"
        told_by_client
    done
}

# over_software AT_ONCE TIMES
over_software() {
    start server ip netns exec east \
        env PORTOLAN_PROVIDER=software portolan-cmtime --listen 10.9.0.2:7472
    await_said server listening
    for time in $(seq "$2"); do
        start client ip netns exec west \
            env PORTOLAN_PROVIDER=software portolan-cmtime 10.9.0.2:7472 --source 10.9.0.1 --count "$1"
        told_by_client
    done
}

# Checks that no connection failed: cmtime counts failed ones as done.
told_by_client() {
    end client > /dev/null || fail "client ended with status $end_status: $(cat /tmp/client)"
    cat /tmp/client
    ! grep -i -e error -e fail /tmp/client || fail "not all connections were made"
}
