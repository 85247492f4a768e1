# What the judge's steps are made of. Sourced by each; `kernel` is the side of rdma_rxe, `peer`
# that of the device in user space.

# Far above what any step takes: the machine is emulated, on a host that may be busy.
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

# endpoint SIDE FAMILY PORT: as the portolan command takes it
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

# await SECONDS COMMAND…: until it succeeds
await() {
    await_tries=$(($1 * 10))
    shift
    until "$@"; do
        await_tries=$((await_tries - 1))
        [ $await_tries -gt 0 ] || fail "gave up waiting for: $*"
        sleep 0.1
    done
}

# start NAME COMMAND…: in the background; its output goes to /tmp/NAME
start() {
    start_name=$1
    shift
    echo "$start_name: $*"
    # Emptied here, not by the child: what an earlier program of this name said must be gone.
    : > "/tmp/$start_name"
    timeout --foreground $program_limit_s "$@" > "/tmp/$start_name" 2>&1 &
    eval "${start_name}_pid=$!"
}

# end NAME: waits for it; its status is this one's
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

# is_rpings_haste NAME: at its very end rping destroys its event channel, though its other thread may be about to
# wait on it, and then ends the process with 255. What was to come has come: the callers count it.
is_rpings_haste() {
    [ $end_status -eq 255 ] && grep -q 'rdma_get_cm_event: Bad file descriptor' "/tmp/$1"
}

# kill_now NAME: the program behind its limit, without a word
kill_now() {
    eval "kill_parent=\$${1}_pid"
    # Those that have ended by themselves have none.
    kill_child=$(cat "/proc/$kill_parent/task/$kill_parent/children" 2> /dev/null) || true
    kill -s KILL $kill_child 2> /dev/null || true
    end "$1" || true
}

# in_three_tries COMMAND…: for what rdma_rxe itself spoils now and then, on Debian's library as well: a group's
# member gets its packets only some time after its interface shows it, and the acknowledgement of a last message is
# lost if its receiver's queue pair goes at once.
in_three_tries() {
    program_limit_s=40
    for try in 1 2 3; do
        if ("$@"); then
            return
        fi
        echo "try $try was in vain"
        for program in mckey rdma_server rdma_client; do
            # Not in quotes: all of them, or none.
            kill -s KILL $(pidof $program) 2> /dev/null || true
        done
    done
    fail "three times: $*"
}

# must_fail NAME: and by itself, not by its limit or a signal
must_fail() {
    ! end "$1" || fail "$1 succeeded"
    # 124 is the limit's, 128 + N that of signal N; rping ends with 255.
    [ $end_status -lt 124 ] || [ $end_status -gt 192 ] || fail "$1 did not end by itself"
    # Ours: 2 is that it could not run, 101 that it panicked.
    [ $end_status -ne 2 ] && [ $end_status -ne 101 ] || fail "$1 did not run"
}

# must_say NAME PATTERN [COUNT]: lines of its output that match
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

# alive NAME: a child that has ended may stay a zombie until it is waited for
alive() {
    eval "alive_pid=\$${1}_pid"
    alive_state=$(sed -n 's/^State:\t\(.\).*/\1/p' "/proc/$alive_pid/status" 2> /dev/null) || true
    [ -n "$alive_state" ] && [ "$alive_state" != Z ]
}

# await_said NAME PATTERN: until it says so, or ends
await_said() {
    await 60 said_or_ended "$1" "$2"
    said "$1" "$2" || must_say "$1" "$2"
}

said_or_ended() { said "$1" "$2" || ! alive "$1"; }
kernel_listens() { rdma resource show cm_id | grep -q "LISTEN.*:$1 "; }
said() { grep -q -i -e "$2" "/tmp/$1"; }

# capture NAME: what passes veth0, until end_capture
capture() {
    mkdir -p "$RESULTS/captures"
    capture_file=$RESULTS/captures/$1.pcap
    # The ring's slots are as large as the snapshot: small ones make many.
    start tcpdump tcpdump -i veth0 -U -B 8192 -s 2048 --immediate-mode -Z root \
        -w "$capture_file" udp port 4791
    await_said tcpdump 'listening on veth0'
    # What came between the opening of the socket and the setting of its filter is counted as received
    # by the filter and never written. Nothing of ours is on the wire yet, so all there is now is that.
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

# The capture's ring may lag behind: quiet is a file that did not grow for half a second.
capture_is_quiet() {
    quiet_bytes=$capture_bytes
    sleep 0.5
    capture_bytes=$(stat -c %s "$capture_file")
    [ "$capture_bytes" = "$quiet_bytes" ]
}

# Two answers alike: nothing is between the ring and the file.
counts_are_still() {
    counted_before=$counted
    ask_counts
    counted="$(packets captured) $(packets 'received by filter')"
    [ "$counted" = "$counted_before" ]
}

# Asked while it runs, since a packet that comes as it ends is counted but no longer written: all that
# the filter let through is in the file.
capture_is_whole() {
    ask_counts
    [ "$(($(packets captured) + unfiltered))" = "$(packets 'received by filter')" ]
}

# ask_counts: has tcpdump say its numbers of packets once more
ask_counts() {
    asked_lines=$(wc -l < /tmp/tcpdump)
    # Not $tcpdump_pid: that is `timeout`, which passes on no such signal.
    tcpdump_own_pid=$(pidof tcpdump) || fail "tcpdump ended before its capture did"
    kill -s USR1 "$tcpdump_own_pid"
    await 5 tcpdump_answered
}

tcpdump_answered() { [ "$(wc -l < /tmp/tcpdump)" -gt "$asked_lines" ]; }

# packets WHICH: a number of tcpdump's last count of them
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

# kernel_serves FAMILY SIZE COUNT: rping -s on rxe0, our ping opposite
kernel_serves() {
    serve_size=$(($2 < 64 ? 64 : $2))
    start server rping -s -a "$(address kernel "$1")" -p 7471 -v -V -C "$3" -S $serve_size
    await 10 kernel_listens 7471
    in_peer client portolan ping "$(endpoint kernel "$1" 7471)" --count "$3" --size "$2"
    must_succeed client
    must_succeed server
    must_say server '^server ping data: ' "$3"
}

# kernel_calls FAMILY SIZE COUNT: our listener, rping -c on rxe0
kernel_calls() {
    in_peer server portolan listen "$(endpoint peer "$1" 7471)" --count 1
    await_said server listening
    start client rping -c -a "$(address peer "$1")" -p 7471 -v -V -C "$3" -S "$2"
    must_succeed client
    if [ "${is_lossy:-no}" = yes ]; then
        # The kernel repeats no disconnect once its program is gone: if that one is lost, the listener
        # finds out by itself. All that was to come has come by then.
        end server || true
        must_say server "\(disconnected\|lost\) after $3 pings"
    else
        must_succeed server
    fi
    must_say client '^ping data: rdma-ping-' "$3"
}

# kernel_is_rejected FAMILY: rping -c to a port without listener beside one with; that one still serves
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

# kernel_rejects FAMILY: our ping to a port of the kernel's without listener
kernel_rejects() {
    in_peer client portolan ping "$(endpoint kernel "$1" 9999)" --count 1
    must_fail client
    must_say client 'invalid service id'
}

# kernel_dies FAMILY: our ping loses its rping -s, and says so in time
kernel_dies() {
    start server rping -s -a "$(address kernel "$1")" -p 7471 -S 64
    await 10 kernel_listens 7471
    in_peer client portolan ping "$(endpoint kernel "$1" 7471)" --interval 0.1 --timeout 100
    await_said client 'seq=3 '
    kill -s KILL "$(pidof rping)"
    # The kernel disconnects for the dead; the ping's own limit is far away.
    await 30 said client '^broken: '
    must_fail client
}

# peer_dies FAMILY: our listener dies without a word to the kernel's side; a new one serves
peer_dies() {
    in_peer server portolan listen "$(endpoint peer "$1" 7471)"
    await_said server listening
    start client rping -c -a "$(address peer "$1")" -p 7471 -v -S 64
    await_said client '^ping data: rdma-ping-3'
    kill -s KILL "$(pidof portolan)"
    end server || true
    # Waits without end if it has nothing left to send: RDMA knows no keep-alive.
    kill -s KILL "$(pidof rping)"
    end client || true
    kernel_calls "$1" 64 5
}

# lossy COMMAND…: while both directions lose and duplicate packets
lossy() {
    is_lossy=yes
    tc qdisc add dev veth0 root netem loss 2% duplicate 1%
    ip netns exec peer tc qdisc add dev veth1 root netem loss 2% duplicate 1%
    # Undone whatever comes of it: the next step wants a good wire.
    trap 'tc qdisc del dev veth0 root; ip netns exec peer tc qdisc del dev veth1 root' EXIT
    "$@"
}

# kernel_serves_many FAMILY PROCESSES COUNT: our processes share their port while one rping serves
kernel_serves_many() {
    start server rping -s -P -a "$(address kernel "$1")" -p 7471 -S 64
    await 10 kernel_listens 7471
    for number in $(seq "$2"); do
        in_peer "client$number" portolan ping "$(endpoint kernel "$1" 7471)" --count "$3" --size 64 \
            --interval 1
        # A request that comes while rping looks at the one before is lost to it: it has room for one.
        await_said "client$number" 'seq=1 '
    done
    for number in $(seq "$2"); do
        must_succeed "client$number"
    done
    kill "$server_pid"
    end server || true
}

# The example programs of librdmacm hold back what they print until they end: they are watched by what
# the kernel shows of them. udaddy's port is always 7174.
group=239.7.7.7

# datagrams_alone FAMILY: udaddy with udaddy, both on rxe0
datagrams_alone() {
    start server udaddy -b "$(address kernel "$1")"
    await 10 kernel_listens 7174
    start client udaddy -s "$(address kernel "$1")"
    must_be_well client
    must_be_well server
}

# How mckey sends on rxe0. It destroys its address handle as soon as it has posted, without a look at its completion
# queue; the rdma_rxe of Linux 7 sends later, from a worker, and what it no longer finds a handle for it drops (its
# dynamic debug says so: "Unable to find AH"). So each ioctl of mckey's, that one among them, begins 20 ms late.
group_sender='strace -f -o /dev/null -e trace=ioctl -e inject=ioctl:delay_enter=20000 mckey -s'

# groups_alone: mckey sends to mckey, both on rxe0
groups_alone() {
    start member mckey -m $group -b "$(address kernel 4)"
    await 10 kernel_is_member
    start sender $group_sender -m $group -b "$(address kernel 4)"
    must_be_well sender
    must_be_well member
}

# kernel_serves_datagrams FAMILY SIZE COUNT: udaddy on rxe0, our ping --ud opposite
kernel_serves_datagrams() {
    start server udaddy -b "$(address kernel "$1")" -S "$2" -C "$3"
    await 10 kernel_listens 7174
    in_peer client portolan ping --ud "$(endpoint kernel "$1" 7174)" --size "$2" --count "$3"
    must_succeed client
    must_be_well server
    must_say client "$3 datagrams sent, $3 answered, 0 lost"
}

# kernel_asks_for_datagrams FAMILY SIZE COUNT: our listen --ud, udaddy -s on rxe0
kernel_asks_for_datagrams() {
    in_peer server portolan listen --ud "$(endpoint peer "$1" 7174)" --count "$3"
    await_said server listening
    start client udaddy -s "$(address peer "$1")" -S "$2" -C "$3"
    must_be_well client
    must_succeed server
}

# kernel_asks_in_vain FAMILY: udaddy asks for a service that nobody offers, and is told so
kernel_asks_in_vain() {
    in_peer server portolan listen --ud "$(endpoint peer "$1" 7175)"
    await_said server listening
    start client udaddy -s "$(address peer "$1")"
    must_fail client
    must_say client 'event: RDMA_CM_EVENT_UNREACHABLE, error: 1$'
    kill "$server_pid"
    end server || true
}

# kernel_offers_nothing FAMILY: our ping --ud asks the kernel for a service that nobody offers
kernel_offers_nothing() {
    in_peer client portolan ping --ud "$(endpoint kernel "$1" 7174)" --count 1
    must_fail client
    must_say client 'service'
}

# kernel_sends_to_group COUNT: our mcast join, mckey -s on rxe0
kernel_sends_to_group() {
    in_peer member portolan mcast join $group --bind "$(address peer 4)" --count "$1" --timeout 30
    await_said member joined
    start sender $group_sender -m $group -b "$(address kernel 4)" -C "$1"
    must_be_well sender
    must_succeed member
}

# kernel_receives_from_group COUNT [OPTION]: mckey on rxe0, our mcast send opposite
kernel_receives_from_group() {
    start member mckey -m $group -b "$(address kernel 4)" -C "$1"
    await 10 kernel_is_member
    in_peer sender portolan mcast send $group --bind "$(address peer 4)" --count "$1" --size 100 ${2:-}
    must_succeed sender
    must_be_well member
}

# must_be_well NAME: one of librdmacm's examples, by its exit status and its last word
must_be_well() {
    must_succeed "$1"
    must_say "$1" '^return status 0'
}

kernel_is_member() { ip maddr show dev veth0 | grep -q "inet  *$group\$"; }

# no_fault_of_the_kernels: nothing that it calls a bug or warns of, over all steps
no_fault_of_the_kernels() {
    dmesg > "$RESULTS/dmesg"
    ! grep -e 'BUG:' -e 'WARNING:' -e 'Oops' -e 'refcount_t' -e 'blocked for more' "$RESULTS/dmesg" \
        || fail 'the kernel met a fault'
}
