# Two of our hosts on a network that loses and reorders packets. Each host is a network namespace
# with one end of a veth pair. Linux's rdma_rxe is not involved. Sourced by each step, after
# judge.sh.

# Ends a program that hangs. A program takes half a minute on an idle host; the limit is far above
# that because the machine is emulated and the host may be busy.
program_limit_s=600
# IPv4, IPv6, and IPv6 link-local with its zone
kinds='4 6 local'

two_hosts() {
    for host in left right; do
        ip netns add $host
        # Duplicate address detection would keep the IPv6 addresses tentative for seconds.
        ip netns exec $host sysctl -qw net.ipv6.conf.default.accept_dad=0
        ip -n $host link set lo up
    done
    ip -n left link add eth0 type veth peer name eth0 netns right
    number=0
    for host in left right; do
        number=$((number + 1))
        ip -n $host addr add 10.7.0.$number/24 dev eth0
        ip -n $host addr add fd07::$number/64 dev eth0 nodad
        ip -n $host addr add fe80::$number/64 dev eth0 nodad
        # A veth pair passes a whole UDP GSO packet, which netem would lose as a whole.
        ip netns exec $host ethtool -K eth0 tx-udp-segmentation off
        ip -n $host link set eth0 up
    done
    await 60 ip netns exec left ping -q -c 1 -W 1 10.7.0.2
    await 60 ip netns exec left ping -q -c 1 -W 1 fd07::2
    await 60 ip netns exec left ping -q -c 1 -W 1 fe80::2%eth0
    for host in left right; do
        # A quarter of the packets skip the delay and overtake others.
        ip netns exec $host tc qdisc add dev eth0 root \
            netem limit 20000 delay 1ms loss 5% reorder 25% 50%
    done
}

# right_end KIND PORT
right_end() {
    case $1 in
        4) echo "10.7.0.2:$2" ;;
        6) echo "[fd07::2]:$2" ;;
        local) echo "[fe80::2%eth0]:$2" ;;
    esac
}

# dropped HOST: the number of packets that netem lost
dropped() {
    ip netns exec "$1" tc -s qdisc show dev eth0 | sed -n 's/.*(dropped \([0-9]*\),.*/\1/p' | head -n 1
}

# on_a_bad_network COMMAND…: runs it and checks that both directions lost packets
on_a_bad_network() {
    left_before=$(dropped left)
    right_before=$(dropped right)
    "$@"
    left_lost=$(($(dropped left) - left_before))
    right_lost=$(($(dropped right) - right_before))
    echo "the network lost $left_lost packets one way and $right_lost the other"
    [ $left_lost -gt 0 ] && [ $right_lost -gt 0 ] || fail "the network lost nothing"
}

# pings COUNT: none is lost over a connection of any kind. Pings mostly wait for retransmissions, so
# the kinds run in parallel.
pings() {
    for kind in $kinds; do
        start "server_$kind" ip netns exec right portolan listen "$(right_end "$kind" 7471)" --once
        await_said "server_$kind" listening
    done
    for kind in $kinds; do
        start "client_$kind" ip netns exec left portolan ping "$(right_end "$kind" 7471)" \
            --count "$1" --quiet --timeout 60
    done
    for kind in $kinds; do
        must_succeed "client_$kind"
        must_succeed "server_$kind"
        must_say "client_$kind" "$1 pings sent, $1 answered, 0 lost"
    done
}

# datagrams COUNT: some datagrams of each kind are lost, and the client reports how many
datagrams() {
    for kind in $kinds; do
        start "server_$kind" ip netns exec right portolan listen "$(right_end "$kind" 7471)" --ud
        await_said "server_$kind" listening
    done
    for kind in $kinds; do
        start "client_$kind" ip netns exec left portolan ping "$(right_end "$kind" 7471)" \
            --ud --count "$1" --quiet --timeout 60
    done
    for kind in $kinds; do
        must_succeed "client_$kind"
        must_say "client_$kind" "$1 datagrams sent"
        answered=$(sed -n 's/.* sent, \([0-9]*\) answered.*/\1/p' "/tmp/client_$kind")
        # One in twenty is lost each way, so about a hundred in a thousand.
        [ "$answered" -gt $(($1 * 8 / 10)) ] || fail "only $answered of $1 came back"
        [ "$answered" -lt "$1" ] || fail "the number of lost datagrams is wrong"
    done
    # Not quoted: the three process ids.
    kill -s INT $(pidof portolan)
    for kind in $kinds; do
        end "server_$kind" || true
    done
}

# writes KIND MIB: RDMA writes, verified by the receiver
writes() {
    start server ip netns exec right rdma_write at "$(right_end "$1" 7472)"
    await_said server listening
    start client ip netns exec left rdma_write to "$(right_end "$1" 7472)" "$2"
    must_succeed client
    must_succeed server
    must_say client "$2 MiB written .* verified"
}
