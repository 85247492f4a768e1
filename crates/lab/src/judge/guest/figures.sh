# Connections at once, step by step: cmtime on rxe0, ours on rxe0, and ours on the software device between two
# namespaces beside it. Sourced by each step, after judge.sh.

# Each connection has two completion channels at each end.
ulimit -n 16384
program_limit_s=300

# Rdma_rxe owns UDP 4791 of the initial namespace: the software device gets two others.
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

# by_cmtime CONNECTIONS [COMMAND…]: what goes before cmtime says whose library it has
by_cmtime() {
    connections=$1
    shift
    start server "$@" cmtime -b "$(address kernel 4)" -c "$connections"
    await 20 kernel_listens 7471
    start client "$@" cmtime -s "$(address kernel 4)" -b "$(address kernel 4)" -c "$connections"
    told_by_client
}

# over_the_kernel CONNECTIONS
over_the_kernel() {
    start server portolan bench steps --provider kernel --listen "$(endpoint kernel 4 7472)"
    await_said server listening
    start client portolan bench steps --provider kernel "$(endpoint kernel 4 7472)" \
        --source "$(address kernel 4)" --count "$1"
    told_by_client
}

# over_software CONNECTIONS
over_software() {
    start server ip netns exec east \
        portolan bench steps --provider software --listen 10.9.0.2:7472
    await_said server listening
    start client ip netns exec west \
        portolan bench steps --provider software 10.9.0.2:7472 --source 10.9.0.1 --count "$1"
    told_by_client
}

told_by_client() {
    must_succeed client
    echo "--- all of it:"
    cat /tmp/client
    # Everything that it said went well, too: cmtime counts what failed as done.
    ! grep -i -e error -e fail /tmp/client || fail "not all connections were made"
}
