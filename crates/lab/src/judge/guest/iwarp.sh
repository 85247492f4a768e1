# iWARP over the kernel's siw on a separate interface, with both ends on this host at one address.
# Sourced after judge.sh and, where a step needs it, c_library.sh or kernel_provider.sh, whose
# functions then use siw.

# address SIDE FAMILY: replaces judge.sh's; siw0's address for either side
address() {
    case $2 in
        4) echo 10.9.0.1 ;;
        6) echo fd09::1 ;;
    esac
}

# What leaves_nothing waits for: siw has no objects of its own.
own_objects='siw0: pd 0 cq 0 qp 0 cm_id 0 mr 0 ctx 0'

siw_is_active() { rdma link show siw0/1 | grep -q 'state ACTIVE'; }

# add_siw: adds a delay between the ends, as between two hosts. The siw of Linux 7 misses a first
# message that arrives while its side is still accepting, and then waits for another; the same
# happens between two rpings.
add_siw() {
    tc qdisc add dev lo root netem delay 10ms
    ip link add siwa type veth peer name siwb
    ip addr add 10.9.0.1/24 dev siwa
    ip addr add fd09::1/64 dev siwa nodad
    ip link set siwa up
    ip link set siwb up
    rdma link add siw0 type siw netdev siwa
    await 10 siw_is_active
    ibv_devinfo -d siw0 | grep -q 'transport:.*iWARP' || fail 'siw0 is not an iWARP device'
}

# remove_siw: checks that nothing is left, and removes the link
remove_siw() {
    leaves_nothing
    rdma link del siw0
    ip link del siwa
    tc qdisc del dev lo root
}

# as_debians NAME COMMAND…: checks that its output and status are the same as on Debian's library
as_debians() {
    as_name=$1
    shift
    start theirs $debians "$@"
    end theirs || true
    theirs_status=$end_status
    start ours "$@"
    end ours || true
    [ $end_status = $theirs_status ] || fail "$as_name ends with $end_status, on Debian's with $theirs_status"
    # iWARP does not define which end learns first of the end of the stream.
    for who in theirs ours; do
        sed -i 's/\(RDMA_CM_EVENT_DISCONNECTED.* context \).*/\1of either/' /tmp/$who
    done
    diff -U 3 /tmp/theirs /tmp/ours || fail "lines of - are Debian's, those of + ours"
}

# refusals_are_alike: a port without listener, datagrams, groups
refusals_are_alike() {
    as_debians rdma_client rdma_client -s 10.9.0.1 -p 9999
    must_say ours 'Connection refused'
    as_debians udaddy udaddy -s 10.9.0.1
    must_say ours 'unable to create QP: Operation not supported'
    as_debians mckey mckey -m $group -b 10.9.0.1
    must_say ours 'unable to create'
}

# calls_over_iwarp: up to where the program waits for a rejection event, which the call itself
# reports over iWARP
calls_over_iwarp() {
    as_debians calls calls 10.9.0.1 5000
    must_say ours '^rdma_connect(client, NULL) = -1, ECONNREFUSED'
}

# by_route_to_siw: checks the command's output for siw0's address
by_route_to_siw() {
    start resolved portolan resolve --explain 10.9.0.1 7471
    must_succeed resolved
    must_say resolved "provider kernel: the kernel's device siw0 has 10.9.0.1\$"
    start doctor portolan --provider kernel doctor
    end doctor || true
    must_say doctor 'gid  0  .* iWARP'
}

# nobody_listens: the command connects to a port without listener
nobody_listens() {
    start client portolan ping 10.9.0.1:9999 --count 1
    must_fail client
    must_say client 'invalid service id'
}

# conformance_of TEST…: runs these tests of the suite
conformance_of() {
    export PORTOLAN_PROVIDER=kernel PORTOLAN_TEST_ADDRESS=10.9.0.1
    start suite conformance --test-threads 1 --exact "$@"
    must_succeed suite || { cat /tmp/suite; exit 1; }
    must_say suite "^test result: ok. $# passed; 0 failed; 0 ignored"
}

# play_both SCENARIO: on Debian's library and on ours; events.sh is sourced too
play_both() {
    play librdmacm "$1" 20
    play kernel "$1" 20
}
