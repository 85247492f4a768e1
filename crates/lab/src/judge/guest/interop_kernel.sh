# The machine with rdma_rxe on its end of the wire. It executes commands that the other machine
# sends over TCP to a shell. Sourced after judge.sh, by its own step and by each of those shells.

control_port=99

# set_up SIDE: configures the addresses of this end
set_up() {
    # Duplicate address detection would keep the IPv6 addresses tentative for seconds.
    sysctl -qw net.ipv6.conf.default.accept_dad=0 net.ipv6.conf.eth0.accept_dad=0
    ip addr add "$(address "$1" 4)/24" dev eth0
    ip addr add "$(address "$1" 6)/64" dev eth0 nodad
    ip link set eth0 up
    await 20 carrier
}

carrier() { [ "$(cat /sys/class/net/eth0/carrier)" = 1 ]; }

# set_network MTU LOSS: configures this end; LOSS percent of outgoing packets are lost
set_network() {
    tc qdisc del dev eth0 root 2> /dev/null || true
    ip link set eth0 mtu "$1"
    [ "$2" = 0 ] || tc qdisc add dev eth0 root netem limit 20000 loss "$2%"
}

# dropped: the number of outgoing packets that netem lost
dropped() {
    tc -s qdisc show dev eth0 | sed -n 's/.*(dropped \([0-9]*\),.*/\1/p' | head -n 1
}

# obey: executes commands until it is told to end
obey() {
    nc -ll -p $control_port -e /usr/bin/sh &
    until [ -e /tmp/end ]; do
        sleep 0.2
    done
    dmesg > "$RESULTS/dmesg"
}

add_link() {
    rdma link add rxe0 type rxe netdev eth0
    await 20 rxe_is_active
    rdma link show
}

rxe_is_active() { rdma link show rxe0/1 | grep -q 'state ACTIVE'; }

# begin NAME COMMAND…: starts it in the background; it outlives the commanding shell
begin() {
    begin_name=$1
    shift
    rm -f "/tmp/$begin_name.status"
    : > "/tmp/$begin_name"
    (
        begin_status=0
        timeout --foreground $program_limit_s "$@" > "/tmp/$begin_name" 2>&1 < /dev/null || begin_status=$?
        echo $begin_status > "/tmp/$begin_name.status"
    ) > /dev/null 2>&1 < /dev/null &
}

has_ended() { [ -e "/tmp/$1.status" ]; }

# finish NAME: waits for its end, and prints its output and status
finish() {
    await $((program_limit_s + 20)) has_ended "$1"
    cat "/tmp/$1"
    echo "ended with $(cat "/tmp/$1.status")"
}

kernel_is_member() { ip maddr show dev eth0 | grep -q "inet  *$group\$"; }
