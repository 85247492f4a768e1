# The same scenarios played by librdmacm and by the library over the kernel's rdma_rxe, and by the
# library over the software device in a namespace with the same interface names and addresses.
# Sourced by the steps; the first step is topology.sh.
#
# in:  /job/scenarios/NAME.txt; out: $RESULTS/events/WHO/NAME.jsonl

# hosts OWN OTHER: creates veth0 with 10.7.0.1 in the namespace OWN and its peer in OTHER, as in
# topology.sh
hosts() {
    ip netns add "$1"
    ip netns add "$2"
    ip -n "$2" link add veth1 type veth peer name veth0 netns "$1"
    ip -n "$1" addr add 10.7.0.1/24 dev veth0
    ip -n "$1" addr add fd07::1/64 dev veth0 nodad
    ip -n "$2" addr add 10.7.0.2/24 dev veth1
    for host in "$1" "$2"; do
        ip -n "$host" link set lo up
    done
    ip -n "$2" link set veth1 up
    ip -n "$1" link set veth0 up
}

# bond OWN OTHER: creates the bond pair0 of two interfaces in the namespace OWN (the module has
# already made a bond0). Its hardware address is that of the active interface.
bond() {
    ip -n "$1" link add pair0 type bond mode active-backup fail_over_mac active miimon 100
    for end in 0 1; do
        ip -n "$1" link add "slave$end" type veth peer name "master$end" netns "$2"
        ip -n "$2" link set "master$end" up
        ip -n "$1" link set "slave$end" master pair0
    done
    ip -n "$1" link set pair0 type bond active_slave slave0
    ip -n "$1" addr add 10.8.0.1/24 dev pair0
    ip -n "$1" link set pair0 up
}

up() { ip -n "$1" -o link show "$2" | grep -q 'state UP'; }

scene() {
    ip netns add other
    # Gives the initial namespace a name for ip.
    touch /run/netns/kernel
    mount --bind /proc/1/ns/net /run/netns/kernel
    hosts software quiet
    for host in peer quiet; do
        ip -n "$host" addr add 10.7.0.3/24 dev veth1
    done
    bond kernel other
    bond software quiet
    for host in kernel software; do
        await 10 up "$host" veth0
        await 10 up "$host" pair0
    done
    rdma link add rxe1 type rxe netdev pair0
    bond_active() { rdma link show rxe1/1 | grep -q 'state ACTIVE'; }
    await 10 bond_active
}

# play WHO SCENARIO PATIENCE_S: PATIENCE_S is the time limit for an event
play() {
    mkdir -p "$RESULTS/events/$1"
    play_result=$RESULTS/events/$1/$2
    case $1 in
        librdmacm) play_by="play-librdmacm" ;;
        kernel) play_by="env PORTOLAN_PROVIDER=kernel play" ;;
        software) play_by="ip netns exec software env PORTOLAN_PROVIDER=software play" ;;
    esac
    play_status=0
    play_started=$(cut -d . -f 1 /proc/uptime)
    # shellcheck disable=SC2086 # words
    WHO=$1 timeout --foreground $program_limit_s $play_by "$3" < "/job/scenarios/$2.txt" \
        > "$play_result.jsonl" 2> "$play_result.err" || play_status=$?
    echo $play_status > "$play_result.status"
    # Removes what the scenario made, after its last user has ended.
    WHO=$1 sh /job/device.sh forget || echo "the device of $1 still exists"
    echo "$1: $2 ended with $play_status after $(($(cut -d . -f 1 /proc/uptime) - play_started)) s"
    [ $play_status = 0 ] || tail -n 2 "$play_result.err" "$play_result.jsonl"
}

# play_each WHO SCENARIO…
play_each() {
    play_who=$1
    shift
    for scenario in "$@"; do
        play "$play_who" "$scenario" 20
    done
}

# play_all LONG SCENARIO…: by all three players, with LONG in parallel to the others
play_all() {
    long=$1
    shift
    for who in librdmacm kernel software; do
        # A request is given up after at most 16 times 6.1 s.
        play "$who" "$long" 140 &
    done
    play_each software "$@" &
    # One after the other: both use the same ports in the initial namespace.
    play_each librdmacm "$@"
    play_each kernel "$@"
    wait
}
