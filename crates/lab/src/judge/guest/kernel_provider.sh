# Functions of the steps over the kernel provider, in addition to judge.sh. Sourced by each step.

# Time limit of a ping for its connection, of which a message may be lost and repeated after
# seconds, and for each answer. Many times what these take, even under emulation.
ping_limit_s=25
# The kernel's own objects on rxe0, for management datagrams.
own_objects='rxe0: pd 1 cq 1 qp 1 cm_id 0 mr 0 ctx 0'

nothing_left() { rdma resource show | grep -q "$own_objects"; }
no_ids() { [ -z "$(rdma resource show cm_id)" ]; }
no_link() { ! rdma link show | grep -q rxe0; }
rxe_is_active() { rdma link show rxe0/1 | grep -q 'state ACTIVE'; }

# leaves_nothing: checks that nothing is left of what the programs made in the kernel
leaves_nothing() {
    await 20 nothing_left || { rdma resource show; rdma resource show cm_id; }
}

add_link() {
    rdma link add rxe0 type rxe netdev veth0
    await 10 rxe_is_active
}

# must_end NAME PATTERN: it must end by itself, with an error that matches
must_end() {
    ! end "$1" || fail "$1 succeeded"
    [ $end_status -lt 101 ] || fail "$1 did not end by itself"
    must_say "$1" "$2"
}

ours() {
    ours_name=$1
    shift
    start "$ours_name" portolan --provider kernel "$@"
}

# ours_serves FAMILY COUNT: our listener over rxe0 and rping -c
ours_serves() {
    ours server listen "$(endpoint kernel "$1" 7471)" --count 1
    await_said server listening
    start client rping -c -a "$(address kernel "$1")" -p 7471 -v -V -C "$2" -S 64
    must_succeed client
    must_succeed server
    must_say client '^ping data: rdma-ping-' "$2"
    must_say server "disconnected after $2 pings"
    leaves_nothing
}

# ours_calls FAMILY COUNT: our ping over rxe0 and rping -s
ours_calls() {
    start server rping -s -a "$(address kernel "$1")" -p 7471 -v -V -C "$2" -S 64
    await 10 kernel_listens 7471
    ours client ping "$(endpoint kernel "$1" 7471)" --count "$2" --size 64
    must_succeed client
    must_succeed server
    must_say server '^server ping data: ' "$2"
    leaves_nothing
}

# ours_alone FAMILY COUNT [--ud]: our programs at both ends; the provider is chosen by route
ours_alone() {
    ours_family=$1
    ours_count=$2
    shift 2
    start server portolan listen "$(endpoint kernel "$ours_family" 7471)" "$@"
    await_said server listening
    start client portolan ping "$(endpoint kernel "$ours_family" 7471)" --count "$ours_count" "$@"
    must_succeed client
    kill_now server
    leaves_nothing
}

# under_way: our ping over rxe0 is in progress with our listener in the peer's namespace, on a
# software device
under_way() {
    in_peer server portolan listen "$(endpoint peer 4 7471)"
    await_said server listening
    ours client ping "$(endpoint peer 4 7471)" --interval 0 --timeout $ping_limit_s
    await 60 said_or_ended client 'seq=20 '
    said client 'seq=20 ' || { tail -n 5 /tmp/client; fail 'no traffic'; }
}

# del_link: on Linux 6.1 the kernel waits until every program has closed the device. A broken
# connection closes it, and a connection that is only resolving an address does not hold it.
del_link() {
    del_started=$(uptime_s)
    rdma link del rxe0
    del_took=$(($(uptime_s) - del_started))
    [ $del_took -lt $ping_limit_s ] || fail "removing rxe0 took $del_took s"
}

uptime_s() { cut -d. -f1 /proc/uptime; }

# link_goes: the link is deleted under one of our connections in mid-traffic; its peer continues
link_goes() {
    under_way
    del_link
    must_end client 'broken: '
    kill_now server
    await 20 no_link
    await 20 no_ids
    add_link
    ours_serves 4 5
}

# link_goes_under_listener: the link is deleted under a listener at its address that serves a
# connection
link_goes_under_listener() {
    ours server listen "$(endpoint kernel 4 7471)"
    await_said server listening
    in_peer client portolan ping "$(endpoint kernel 4 7471)" --interval 0 --timeout 60
    await_said client 'seq=20 '
    del_link
    must_end server 'removed\|no RDMA device'
    kill_now client
    await 20 no_link
    await 20 no_ids
    add_link
    ours_serves 4 5
}

# link_goes_under_everywhere: a listener at the wildcard address outlives the device and its
# connection there, and serves again when the device is back
link_goes_under_everywhere() {
    ours server listen '[::]:7471'
    await_said server listening
    in_peer client portolan ping "$(endpoint kernel 4 7471)" --interval 0 --timeout 60
    await_said client 'seq=20 '
    del_link
    kill_now client
    await 20 no_link
    add_link
    start client rping -c -a "$(address kernel 4)" -p 7471 -v -V -C 5 -S 64
    must_succeed client
    await_said server 'disconnected after 5 pings'
    kill_now server
    leaves_nothing
}

# interface_goes_down: under our connection in mid-traffic, and under rping's. Afterwards rdma_rxe
# must work equally well after both. Its queue pair for management datagrams dies if it could not
# send one, and then nothing connects until the link is created again.
interface_goes_down() {
    under_way
    ip link set veth0 down
    # Because its work failed or, if it was waiting for the peer, because its time limit passed.
    must_end client 'broken: '
    go_up
    kill_now server
    leaves_nothing
    connects_again
    after_ours=$again
    renew_link
    in_peer server portolan listen "$(endpoint peer 4 7471)"
    await_said server listening
    start client rping -c -a "$(address peer 4)" -p 7471 -v -S 64
    await_said client '^ping data: rdma-ping-20'
    ip link set veth0 down
    sleep $ping_limit_s
    # rping waits forever after a failure. The kernel disconnects for it, as for ours, while nothing
    # can be sent.
    kill_now client
    go_up
    kill_now server
    connects_again
    after_rping=$again
    echo "rping with rping once the interface is up again: after ours $after_ours, after rping $after_rping"
    renew_link
    ours_serves 4 5
    [ "$after_ours" = "$after_rping" ] || fail 'only one of the two programs broke rxe0'
}

go_up() {
    ip link set veth0 up
    # Going down removes IPv6 addresses.
    ip addr add fd07::1/64 dev veth0 nodad 2> /dev/null || true
    await 10 carrier
    await 10 rxe_is_active
}

carrier() { [ "$(cat /sys/class/net/veth0/carrier)" = 1 ]; }

renew_link() {
    rdma link del rxe0
    await 20 no_link
    add_link
}

# connects_again: whether rping with rping works on rxe0. A failing attempt takes more than a
# minute.
connects_again() {
    program_limit_s=30
    start server rping -s -a "$(address kernel 4)" -p 7471 -C 1 -S 64
    await 10 kernel_listens 7471
    start client rping -c -a "$(address kernel 4)" -p 7471 -C 1 -S 64
    again=works
    end client || again=fails
    kill_now server
    program_limit_s=150
}

# peer_is_killed: first a peer whose kernel disconnects for it, then one on a software device, which
# just goes silent
peer_is_killed() {
    ours server listen "$(endpoint kernel 4 7471)" --count 1
    await_said server listening
    start client rping -c -a "$(address kernel 4)" -p 7471 -v -S 64
    await_said client '^ping data: rdma-ping-3'
    kill_now client
    end server || true
    must_say server 'disconnected\|lost'
    leaves_nothing
    under_way
    kill_now server
    # The kernel has nothing left to send, and RDMA has no keep-alive: the ping ends by its time
    # limit.
    must_end client 'broken'
    leaves_nothing
}

# we_are_killed: in mid-traffic, at either end
we_are_killed() {
    under_way
    kill_now client
    kill_now server
    leaves_nothing
    ours server listen "$(endpoint kernel 4 7471)"
    await_said server listening
    start client rping -c -a "$(address kernel 4)" -p 7471 -v -S 64
    await_said client '^ping data: rdma-ping-3'
    kill_now server
    kill_now client
    leaves_nothing
}

# by_route: rxe0 is on veth0; there is no RDMA device on plain0
by_route() {
    ip link add plain0 type veth peer name plain1 netns peer
    ip addr add 10.8.0.1/24 dev plain0
    ip -n peer addr add 10.8.0.2/24 dev plain1
    ip link set plain0 up
    ip -n peer link set plain1 up
    plain=$(cat /sys/class/net/plain0/ifindex)
    start resolved portolan resolve --explain 10.7.0.2 7471
    must_succeed resolved
    must_say resolved "device: rxe0 .*, provider kernel: the kernel's device rxe0 has 10.7.0.1\$"
    start resolved portolan resolve --explain 10.8.0.2 7471
    must_succeed resolved
    must_say resolved "provider software: no RDMA device of the kernel's has 10.8.0.1 on interface $plain\$"
    start resolved portolan --provider software resolve --explain 10.7.0.2 7471
    must_succeed resolved
    must_say resolved 'device: sw_veth0 .*, provider software: the program pins it$'
    PORTOLAN_TEST_ROUTES=10.7.0.1=kernel,10.8.0.1=software conformance by_route --test-threads 1 \
        > /tmp/by_route 2>&1 || { cat /tmp/by_route; fail 'by route'; }
    must_say by_route '^test result: ok. 4 passed; 0 failed; 0 ignored'
    leaves_nothing
}
