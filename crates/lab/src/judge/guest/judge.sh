# Functions of the judge's steps. Sourced by each step. `kernel` is the side of rdma_rxe, `peer`
# that of the device in user space.

# Far longer than any step takes: the machine is emulated, on a host that may be busy.
program_limit_s=150

# address SIDE FAMILY
address() {
    case $1$2 in
        kernel4) echo 10.7.0.1 ;;
        kernel6) echo fd07::1 ;;
        peer4) echo 10.7.0.2 ;;
        peer6) echo fd07::2 ;;
    esac
}

# endpoint SIDE FAMILY PORT: the address in the portolan command's format
endpoint() {
    case $2 in
        4) echo "$(address "$1" 4):$3" ;;
        6) echo "[$(address "$1" 6)]:$3" ;;
    esac
}

fail() {
    echo "FAILED: $*"
    exit 1
}

# await SECONDS COMMAND…: repeats the command until it succeeds
await() {
    await_tries=$(($1 * 10))
    shift
    until "$@"; do
        await_tries=$((await_tries - 1))
        [ $await_tries -gt 0 ] || fail "gave up waiting for: $*"
        sleep 0.1
    done
}

# start NAME COMMAND…: runs it in the background; its output goes to /tmp/NAME
start() {
    start_name=$1
    shift
    echo "$start_name: $*"
    # Emptied here and not by the child, so that output of an earlier program of this name is gone.
    : > "/tmp/$start_name"
    timeout --foreground $program_limit_s "$@" > "/tmp/$start_name" 2>&1 &
    eval "${start_name}_pid=$!"
}

# end NAME: waits for it and returns its status
end() {
    end_status=0
    eval "wait \$${1}_pid" || end_status=$?
    echo "--- $1 ended with status $end_status; the last of its output:"
    tail -n 12 "/tmp/$1" | cut -c 1-200
    return $end_status
}

# must_succeed NAME
must_succeed() {
    end "$1" || is_rpings_haste "$1" || fail "$1 ended with status $end_status"
}

# is_rpings_haste NAME: at its end rping destroys its event channel while its other thread may be
# about to wait on it, and then exits with 255. All data have arrived by then: the callers count
# them.
is_rpings_haste() {
    [ $end_status -eq 255 ] && grep -q 'rdma_get_cm_event: Bad file descriptor' "/tmp/$1"
}

# kill_now NAME: kills the program behind its time limit
kill_now() {
    eval "kill_parent=\$${1}_pid"
    # A program that has ended has no child.
    kill_child=$(cat "/proc/$kill_parent/task/$kill_parent/children" 2> /dev/null) || true
    kill -s KILL $kill_child 2> /dev/null || true
    end "$1" || true
}

# in_three_tries COMMAND…: repeats what rdma_rxe itself sometimes breaks, on Debian's library too. A
# group's member gets packets only some time after its interface shows the group. The
# acknowledgement of a last message is lost if its receiver's queue pair is destroyed at once.
in_three_tries() {
    program_limit_s=40
    for try in 1 2 3; do
        if ("$@"); then
            return
        fi
        echo "try $try failed"
        for program in mckey rdma_server rdma_client; do
            # Not quoted: all process ids, or none.
            kill -s KILL $(pidof $program) 2> /dev/null || true
        done
    done
    fail "failed three times: $*"
}

# must_fail NAME: it must fail by itself, not by its limit or a signal
must_fail() {
    ! end "$1" || fail "$1 succeeded"
    # 124 is the time limit's status, 128 + N that of signal N; rping exits with 255.
    [ $end_status -lt 124 ] || [ $end_status -gt 192 ] || fail "$1 did not end by itself"
    # Our programs: 2 means that it could not run, 101 that it panicked.
    [ $end_status -ne 2 ] && [ $end_status -ne 101 ] || fail "$1 did not run"
}

# must_say NAME PATTERN [COUNT]: checks that lines of its output match
must_say() {
    say_count=$(grep -c -i -e "$2" "/tmp/$1") || true
    if [ $# -lt 3 ]; then
        [ "$say_count" -gt 0 ] || fail "$1 said nothing like '$2'"
    else
        [ "$say_count" = "$3" ] || fail "$1 said '$2' $say_count times, not $3"
    fi
}

in_peer() {
    start_in_peer=$1
    shift
    start "$start_in_peer" ip netns exec peer "$@"
}

# alive NAME: whether it runs. A child that has ended may stay a zombie until it is waited for
alive() {
    eval "alive_pid=\$${1}_pid"
    alive_state=$(sed -n 's/^State:\t\(.\).*/\1/p' "/proc/$alive_pid/status" 2> /dev/null) || true
    [ -n "$alive_state" ] && [ "$alive_state" != Z ]
}

# await_said NAME PATTERN: waits until its output matches or it ends
await_said() {
    await 60 said_or_ended "$1" "$2"
    said "$1" "$2" || must_say "$1" "$2"
}

said_or_ended() { said "$1" "$2" || ! alive "$1"; }
kernel_listens() { rdma resource show cm_id | grep -q "LISTEN.*:$1 "; }
said() { grep -q -i -e "$2" "/tmp/$1"; }

# capture NAME: captures the traffic on veth0 until end_capture
capture() {
    mkdir -p "$RESULTS/captures"
    capture_file=$RESULTS/captures/$1.pcap
    # The ring's slots are as large as the snapshot, so small snapshots give many slots.
    start tcpdump tcpdump -i veth0 -U -B 8192 -s 2048 --immediate-mode -Z root \
        -w "$capture_file" udp port 4791
    await_said tcpdump 'listening on veth0'
    # Packets that arrive between opening the socket and setting its filter are counted as received
    # by the filter but never written. None of our packets is on the wire yet, so the difference now
    # is their number.
    counted=none
    await 20 counts_are_still
    unfiltered=$(($(packets 'received by filter') - $(packets captured)))
}

end_capture() {
    capture_bytes=0
    await 20 capture_is_quiet
    await 20 capture_is_whole
    kill "$tcpdump_pid"
    end tcpdump || true
    must_say tcpdump '^0 packets dropped by kernel'
}

# The ring may lag behind, so wait until the file has not grown for half a second.
capture_is_quiet() {
    quiet_bytes=$capture_bytes
    sleep 0.5
    capture_bytes=$(stat -c %s "$capture_file")
    [ "$capture_bytes" = "$quiet_bytes" ]
}

# Two equal counts mean that nothing is left between the ring and the file.
counts_are_still() {
    counted_before=$counted
    ask_counts
    counted="$(packets captured) $(packets 'received by filter')"
    [ "$counted" = "$counted_before" ]
}

# Counted while tcpdump runs, because packets that arrive as it ends are counted but not written.
# The file must contain every packet that passed the filter.
capture_is_whole() {
    ask_counts
    [ "$(($(packets captured) + unfiltered))" = "$(packets 'received by filter')" ]
}

# ask_counts: makes tcpdump print its packet counts again
ask_counts() {
    asked_lines=$(wc -l < /tmp/tcpdump)
    # Not $tcpdump_pid: that is `timeout`, which does not forward this signal.
    tcpdump_own_pid=$(pidof tcpdump) || fail "tcpdump ended before its capture did"
    kill -s USR1 "$tcpdump_own_pid"
    await 5 tcpdump_answered
}

tcpdump_answered() { [ "$(wc -l < /tmp/tcpdump)" -gt "$asked_lines" ]; }

# packets WHICH: a number of tcpdump's last counts
packets() {
    sed -n "s/^\(.*[ :]\)\{0,1\}\([0-9]\{1,\}\) packets\{0,1\} $1.*/\2/p" /tmp/tcpdump | tail -n 1
}

# kernel_alone FAMILY COUNT: rping against rping, both on rxe0
kernel_alone() {
    start server rping -s -a "$(address kernel "$1")" -p 7471 -v -V -C "$2" -S 64
    await 10 kernel_listens 7471
    start client rping -c -a "$(address kernel "$1")" -p 7471 -v -V -C "$2" -S 64
    must_succeed client
    must_succeed server
    must_say client '^ping data: rdma-ping-' "$2"
    must_say server '^server ping data: rdma-ping-' "$2"
}

# kernel_serves FAMILY SIZE COUNT: rping -s on rxe0 and our ping
kernel_serves() {
    serve_size=$(($2 < 64 ? 64 : $2))
    start server rping -s -a "$(address kernel "$1")" -p 7471 -v -V -C "$3" -S $serve_size
    await 10 kernel_listens 7471
    in_peer client portolan ping "$(endpoint kernel "$1" 7471)" --count "$3" --size "$2"
    must_succeed client
    must_succeed server
    must_say server '^server ping data: ' "$3"
}

# kernel_calls FAMILY SIZE COUNT: our listener and rping -c on rxe0
kernel_calls() {
    in_peer server portolan listen "$(endpoint peer "$1" 7471)" --count 1
    await_said server listening
    start client rping -c -a "$(address peer "$1")" -p 7471 -v -V -C "$3" -S "$2"
    must_succeed client
    if [ "${is_lossy:-no}" = yes ]; then
        # The kernel does not repeat the disconnect of a program that has ended. If that message is
        # lost, the listener finds out by itself. All data have arrived by then.
        end server || true
        must_say server "\(disconnected\|lost\) after $3 pings"
    else
        must_succeed server
    fi
    must_say client '^ping data: rdma-ping-' "$3"
}

# kernel_is_rejected FAMILY: rping -c to a port without listener beside one with a listener, which
# must still serve
kernel_is_rejected() {
    in_peer server portolan listen "$(endpoint peer "$1" 7471)" --count 1
    await_said server listening
    start rejected rping -c -a "$(address peer "$1")" -p 9999 -C 1
    must_fail rejected
    must_say rejected 'cma event RDMA_CM_EVENT_REJECTED, error 8$'
    start client rping -c -a "$(address peer "$1")" -p 7471 -v -V -C 1
    must_succeed client
    must_succeed server
}

# kernel_rejects FAMILY: our ping to one of the kernel's ports without listener
kernel_rejects() {
    in_peer client portolan ping "$(endpoint kernel "$1" 9999)" --count 1
    must_fail client
    must_say client 'invalid service id'
}

# kernel_dies FAMILY: rping -s is killed; our ping must report that in time
kernel_dies() {
    start server rping -s -a "$(address kernel "$1")" -p 7471 -S 64
    await 10 kernel_listens 7471
    in_peer client portolan ping "$(endpoint kernel "$1" 7471)" --interval 0.1 --timeout 100
    await_said client 'seq=3 '
    kill -s KILL "$(pidof rping)"
    # The kernel disconnects for the dead program. The ping's own limit is much longer.
    await 30 said client '^broken: '
    must_fail client
}

# peer_dies FAMILY: our listener is killed and cannot tell the kernel's side; a new one must serve
peer_dies() {
    in_peer server portolan listen "$(endpoint peer "$1" 7471)"
    await_said server listening
    start client rping -c -a "$(address peer "$1")" -p 7471 -v -S 64
    await_said client '^ping data: rdma-ping-3'
    kill -s KILL "$(pidof portolan)"
    end server || true
    # It would wait forever if it has nothing left to send: RDMA has no keep-alive.
    kill -s KILL "$(pidof rping)"
    end client || true
    kernel_calls "$1" 64 5
}

# lossy COMMAND…: runs it while both directions lose and duplicate packets
lossy() {
    is_lossy=yes
    tc qdisc add dev veth0 root netem loss 2% duplicate 1%
    ip netns exec peer tc qdisc add dev veth1 root netem loss 2% duplicate 1%
    # Undone even after a failure: the next step needs a good network.
    trap 'tc qdisc del dev veth0 root; ip netns exec peer tc qdisc del dev veth1 root' EXIT
    "$@"
}

# kernel_serves_many FAMILY PROCESSES COUNT: our processes share their port, and one rping serves
# all
kernel_serves_many() {
    start server rping -s -P -a "$(address kernel "$1")" -p 7471 -S 64
    await 10 kernel_listens 7471
    for number in $(seq "$2"); do
        in_peer "client$number" portolan ping "$(endpoint kernel "$1" 7471)" --count "$3" --size 64 \
            --interval 1
        # rping has room for one request: one that arrives while it handles another is lost.
        await_said "client$number" 'seq=1 '
    done
    for number in $(seq "$2"); do
        must_succeed "client$number"
    done
    kill "$server_pid"
    end server || true
}

# librdmacm's example programs buffer their output until they end, so they are observed through the
# kernel. udaddy's port is always 7174.
group=239.7.7.7

# datagrams_alone FAMILY: udaddy with udaddy, both on rxe0
datagrams_alone() {
    start server udaddy -b "$(address kernel "$1")"
    await 10 kernel_listens 7174
    start client udaddy -s "$(address kernel "$1")"
    must_be_well client
    must_be_well server
}

# How mckey sends on rxe0. It destroys its address handle right after posting, without polling its
# completion queue. The rdma_rxe of Linux 7 sends later, from a worker, and drops packets whose
# handle is gone (dynamic debug prints "Unable to find AH"). So each of mckey's ioctls, including
# that one, is delayed by 20 ms.
group_sender='strace -f -o /dev/null -e trace=ioctl -e inject=ioctl:delay_enter=20000 mckey -s'

# groups_alone: mckey with mckey, both on rxe0
groups_alone() {
    start member mckey -m $group -b "$(address kernel 4)"
    await 10 kernel_is_member
    start sender $group_sender -m $group -b "$(address kernel 4)"
    must_be_well sender
    must_be_well member
}

# kernel_serves_datagrams FAMILY SIZE COUNT: udaddy on rxe0 and our ping --ud
kernel_serves_datagrams() {
    start server udaddy -b "$(address kernel "$1")" -S "$2" -C "$3"
    await 10 kernel_listens 7174
    in_peer client portolan ping --ud "$(endpoint kernel "$1" 7174)" --size "$2" --count "$3"
    must_succeed client
    must_be_well server
    must_say client "$3 datagrams sent, $3 answered, 0 lost"
}

# kernel_asks_for_datagrams FAMILY SIZE COUNT: our listen --ud and udaddy -s on rxe0
kernel_asks_for_datagrams() {
    in_peer server portolan listen --ud "$(endpoint peer "$1" 7174)" --count "$3"
    await_said server listening
    start client udaddy -s "$(address peer "$1")" -S "$2" -C "$3"
    must_be_well client
    must_succeed server
}

# kernel_asks_in_vain FAMILY: udaddy asks for a service that does not exist, and must get that
# answer
kernel_asks_in_vain() {
    in_peer server portolan listen --ud "$(endpoint peer "$1" 7175)"
    await_said server listening
    start client udaddy -s "$(address peer "$1")"
    must_fail client
    must_say client 'event: RDMA_CM_EVENT_UNREACHABLE, error: 1$'
    kill "$server_pid"
    end server || true
}

# kernel_offers_nothing FAMILY: our ping --ud asks the kernel for a service that does not exist
kernel_offers_nothing() {
    in_peer client portolan ping --ud "$(endpoint kernel "$1" 7174)" --count 1
    must_fail client
    must_say client 'service'
}

# kernel_sends_to_group COUNT: our mcast join and mckey -s on rxe0
kernel_sends_to_group() {
    in_peer member portolan mcast join $group --bind "$(address peer 4)" --count "$1" --timeout 30
    await_said member joined
    start sender $group_sender -m $group -b "$(address kernel 4)" -C "$1"
    must_be_well sender
    must_succeed member
}

# kernel_receives_from_group COUNT [OPTION]: mckey on rxe0 and our mcast send
kernel_receives_from_group() {
    start member mckey -m $group -b "$(address kernel 4)" -C "$1"
    await 10 kernel_is_member
    in_peer sender portolan mcast send $group --bind "$(address peer 4)" --count "$1" --size 100 ${2:-}
    must_succeed sender
    must_be_well member
}

# must_be_well NAME: checks one of librdmacm's examples by its exit status and its last line
must_be_well() {
    must_succeed "$1"
    must_say "$1" '^return status 0'
}

kernel_is_member() { ip maddr show dev veth0 | grep -q "inet  *$group\$"; }

# no_fault_of_the_kernels: checks the kernel's log of all steps for bugs and warnings
no_fault_of_the_kernels() {
    dmesg > "$RESULTS/dmesg"
    ! grep -e 'BUG:' -e 'WARNING:' -e 'Oops' -e 'refcount_t' -e 'blocked for more' "$RESULTS/dmesg" \
        || fail 'the kernel met a fault'
}
