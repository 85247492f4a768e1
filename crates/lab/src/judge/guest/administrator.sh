# Two rxe ports in one network namespace, connected by a veth pair. The kernel's management
# datagrams travel between their link-local GIDs, and routing rules keep them on the veth pair
# although both ends are local.

gsi_is_active() { rdma link show "$1/1" | grep -q 'state ACTIVE'; }
# The GID table has the entry only once the link is up.
has_link_local() { grep -q '^fe80:' "/sys/class/infiniband/$1/ports/1/gids/"* 2> /dev/null; }

joined_ports() {
    ip link add gsi0 type veth peer name gsi1
    for end in 0 1; do
        ip link set gsi$end up
        rdma link add rxegsi$end type rxe netdev gsi$end
    done
    trap 'for end in 0 1; do rdma link del rxegsi$end; done; ip link del gsi0' EXIT
    for end in 0 1; do
        await 20 gsi_is_active rxegsi$end
        await 20 has_link_local rxegsi$end
    done
}

# tables SEGMENTS…: the client queries the administrator at the other port
tables() {
    joined_ports
    umad_administrator rxegsi0 rxegsi1 "$@"
}

# tables_through_loss SEGMENTS…: the same while both directions lose, copy and reorder packets
tables_through_loss() {
    joined_ports
    for end in 0 1; do
        tc qdisc add dev gsi$end root netem delay 1ms reorder 10% loss 3% duplicate 1%
    done
    umad_administrator rxegsi0 rxegsi1 "$@" > /tmp/tables || { cat /tmp/tables; fail 'no tables'; }
    cat /tmp/tables
    grep -q 'records in' /tmp/tables || fail 'no table'
    # Otherwise the test would show nothing about losses.
    total=0
    for end in 0 1; do
        tc -s qdisc show dev gsi$end root > /tmp/losses || fail "no qdisc at gsi$end"
        cat /tmp/losses
        dropped=$(sed -n 's/.*(dropped \([0-9]*\),.*/\1/p' /tmp/losses | head -n 1)
        total=$((total + ${dropped:-0}))
    done
    [ "$total" -gt 0 ] || fail 'no packet was lost'
}
