# The machine with our software device on its end of the wire. It commands the machine with rdma_rxe
# at the other end. Sourced by each step, after judge.sh and interop_kernel.sh.

# Commands and their output pass the same wire as everything else, losses included.
program_limit_s=600

# remote COMMAND: runs it in a shell of the other machine; its output is $remote_said
remote() {
    printf 'far: %s\n' "$*"
    remote_said=$(
        {
            echo '( set -eu; . /job/judge.sh; . /job/interop_kernel.sh'
            echo "program_limit_s=$program_limit_s"
            # Not with echo, which would interpret backslashes.
            printf '%s\n' "$*"
            echo ') 2>&1; echo "status $?"'
        } | nc -w 10 "$(address kernel 4)" $control_port
    ) || fail 'the other machine cannot be told'
    case $(echo "$remote_said" | tail -n 1) in
        'status 0') ;;
        *)
            echo "$remote_said" | tail -n 20
            fail "far: $*"
            ;;
    esac
}

# Retries, because the other machine may still be booting. The rdma_rxe of Linux 6.1 holds our UDP
# port as soon as it is loaded, even without a link.
meet() {
    rmmod rdma_rxe
    set_up peer
    await 120 is_there
    await 20 ping -q -c 1 -W 1 "$(address kernel 6)"
}

is_there() { [ "$(echo 'echo here' | nc -w 2 "$(address kernel 4)" $control_port 2> /dev/null)" = here ]; }

# network MTU LOSS: configures both ends and waits until frames of that length pass
network() {
    remote "set_network $1 $2"
    set_network "$1" "$2"
    await 30 ping -q -c 1 -W 1 -M do -s $(($1 - 28)) "$(address kernel 4)"
    remote 'await 20 rxe_is_active; ibv_devinfo -d rxe0 | grep active_mtu'
    echo "$remote_said"
}

# far_must_succeed NAME: copies its output to /tmp/NAME on this machine too
far_must_succeed() {
    remote "finish $1"
    echo "$remote_said" > "/tmp/$1"
    echo "--- $1, at the other end; the last of its output:"
    tail -n 6 "/tmp/$1" | cut -c 1-200
    grep -q '^ended with 0$' "/tmp/$1" || fail "$1 failed at the other end"
}

# far_must_be_well NAME: checks one of librdmacm's examples by its exit status and its last line
far_must_be_well() {
    far_must_succeed "$1"
    must_say "$1" '^return status 0'
}

# lossy COMMAND…: runs it and prints how many of all packets were lost meanwhile
lossy() {
    remote dropped
    far_before=$(echo "$remote_said" | head -n 1)
    near_before=$(dropped)
    is_lossy=yes
    "$@"
    remote dropped
    far_lost=$(($(echo "$remote_said" | head -n 1) - far_before))
    near_lost=$(($(dropped) - near_before))
    echo "lost: $near_lost packets of ours, $far_lost of the kernel's"
}

# has_lost: checks that this network lost packets in both directions
has_lost() {
    remote dropped
    far_lost=$(echo "$remote_said" | head -n 1)
    echo "lost: $(dropped) packets of ours, $far_lost of the kernel's"
    [ "$(dropped)" -gt 0 ] && [ "$far_lost" -gt 0 ] || fail 'the network lost nothing'
}

# rping_serves FAMILY SIZE COUNT: rping -s on rxe0 and our ping
rping_serves() {
    remote "begin server rping -s -a $(address kernel "$1") -p 7471 -v -V -C $3 -S $2; await 20 kernel_listens 7471"
    start client portolan ping "$(endpoint kernel "$1" 7471)" --count "$3" --size "$2" --timeout 120
    must_succeed client
    far_must_succeed server
    must_say server '^server ping data: ' "$3"
}

# rping_calls FAMILY SIZE COUNT: our listen and rping -c on rxe0
rping_calls() {
    start listener portolan listen "$(endpoint peer "$1" 7471)" --count 1
    await_said listener listening
    remote "begin caller rping -c -a $(address peer "$1") -p 7471 -v -V -C $3 -S $2"
    far_must_succeed caller
    must_say caller '^ping data: rdma-ping-' "$3"
    if [ "${is_lossy:-no}" = yes ]; then
        # The kernel does not repeat the disconnect of a program that has ended. If that message is
        # lost, the listener finds out by itself. All data have arrived by then.
        end listener || true
        must_say listener "\(disconnected\|lost\) after $3 pings"
    else
        must_succeed listener
    fi
}

# udaddy_serves FAMILY SIZE COUNT: udaddy on rxe0 and our ping --ud
udaddy_serves() {
    remote "begin server udaddy -b $(address kernel "$1") -S $2 -C $3; await 20 kernel_listens 7174"
    start client portolan ping --ud "$(endpoint kernel "$1" 7174)" --size "$2" --count "$3"
    must_succeed client
    far_must_be_well server
    must_say client "$3 datagrams sent, $3 answered, 0 lost"
}

# udaddy_calls FAMILY SIZE COUNT: our listen --ud and udaddy -s on rxe0
udaddy_calls() {
    start listener portolan listen --ud "$(endpoint peer "$1" 7174)" --count "$3"
    await_said listener listening
    remote "begin caller udaddy -s $(address peer "$1") -S $2 -C $3"
    far_must_be_well caller
    must_succeed listener
}

# mckey_sends SIZE COUNT: our mcast join and mckey -s on rxe0
mckey_sends() {
    start member portolan mcast join $group --bind "$(address peer 4)" --count "$2" --timeout 60
    await_said member joined
    remote "begin sender $group_sender -m $group -b $(address kernel 4) -S $1 -C $2"
    far_must_be_well sender
    must_succeed member
}

# mckey_joins SIZE COUNT: mckey on rxe0 and our mcast send. The interface shows the group some time
# before packets reach the member, with Debian's programs too, so this tries three times.
mckey_joins() {
    mckey_tries=3
    program_limit_s=40
    until member_gets_all "$@"; do
        mckey_tries=$((mckey_tries - 1))
        [ $mckey_tries -gt 0 ] || fail 'three times'
        remote 'kill $(pidof mckey) || true; await 60 has_ended member'
    done
}

member_gets_all() {
    remote "begin member mckey -m $group -b $(address kernel 4) -S $1 -C $2; await 20 kernel_is_member; sleep 1"
    start sender portolan mcast send $group --bind "$(address peer 4)" --count "$2" --size "$1"
    must_succeed sender
    (far_must_be_well member)
}

# verify FAMILY NAME OPTION…: every operation by either end; both ends check the data
verify() {
    verify_family=$1
    verify_name=$2
    shift 2
    remote "begin server verify-peer serve $(address kernel "$verify_family") 7475; await 20 kernel_listens 7475"
    mkdir -p "$RESULTS/verify"
    verify_status=0
    timeout --foreground $program_limit_s portolan-verify ask \
        "$(endpoint kernel "$verify_family" 7475)" "$@" >> "$RESULTS/verify/$verify_name" 2> /tmp/asker \
        || verify_status=$?
    cat /tmp/asker
    tail -n 1 "$RESULTS/verify/$verify_name"
    grep '"right":false' "$RESULTS/verify/$verify_name" | head -n 20 || true
    [ $verify_status = 0 ] || { remote 'kill $(pidof verify-peer) || true'; }
    remote 'finish server'
    echo "$remote_said" | tail -n 5
    [ $verify_status = 0 ] || fail "portolan-verify ended with $verify_status"
    # It must have seen the disconnect, which may be lost if it is not repeated.
    echo "$remote_said" | grep -q 'requests served$' || fail 'the other end did not serve to the end'
}

# reads_of_the_kernels FAMILY SIZE COUNT: for comparison, between two kernel devices: rxe0 at this
# end too
reads_of_the_kernels() {
    insmod /modules/rdma_rxe.ko
    add_link
    remote "begin server verify-peer serve $(address kernel "$1") 7476; await 20 kernel_listens 7476"
    start reader verify-peer read "$(address kernel "$1")" 7476 "$2" "$3"
    must_succeed reader
    cat /tmp/reader
    remote 'kill $(pidof verify-peer) || true; finish server'
    rdma link del rxe0
    rmmod rdma_rxe
}

# the_other_ends: checks the other machine's kernel log for bugs and warnings, and switches the
# machine off
the_other_ends() {
    remote "set_network 1500 0; dmesg | grep -e 'BUG:' -e 'WARNING:' -e 'Oops' -e 'refcount_t' -e 'blocked for more' || true"
    set_network 1500 0
    complaints=$(echo "$remote_said" | sed '$d')
    # Not with `remote`: that machine may be gone before its answer has arrived, and then nobody repeats the answer.
    echo 'touch /tmp/end' | timeout 30 nc -w 10 "$(address kernel 4)" $control_port || true
    [ -z "$complaints" ] || { echo "$complaints"; fail 'the kernel met a fault'; }
}
