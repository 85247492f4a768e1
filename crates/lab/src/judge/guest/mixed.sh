# Pairs of Debian's programs whose ends are on different sides. Sourced after judge.sh.
#   kernel   Debian's libraries, on rxe0
#   library  our librdmacm over Debian's libibverbs, on rxe0
#   peer     both libraries ours, through `portolan exec`, on the software device in the other namespace

# Folder with only our librdmacm.
library=/job/programs
# Port on which libibverbs' ping-pongs and perftest listen, over TCP or rdma_cm.
exchange_port=18515

# ends SERVER CLIENT: sets the sides of this step
ends() {
    server_side=$1
    client_side=$2
    to=$(address_at "$1")
}

address_at() {
    case $1 in
        peer) address peer 4 ;;
        *) address kernel 4 ;;
    esac
}

device_at() {
    case $1 in
        peer) echo sw_veth1 ;;
        *) echo rxe0 ;;
    esac
}

# gid_at SIDE: the index of its address in its device's GID table
gid_at() {
    gids=/sys/class/infiniband/$(device_at "$1")/ports/1/gids
    case $1 in
        peer) set -- "$1" 0a07:0002 ip netns exec peer portolan exec -- ;;
        *) set -- "$1" 0a07:0001 ;;
    esac
    gid=$2
    shift 2
    for index in 0 1 2 3 4 5 6 7; do
        if [ "$("$@" cat "$gids/$index" 2> /dev/null)" = "0000:0000:0000:0000:0000:ffff:$gid" ]; then
            echo $index
            return
        fi
    done
    fail "no GID of $gid"
}

# at SIDE NAME COMMAND…: runs it in the background
at() {
    at_side=$1
    at_name=$2
    shift 2
    case $at_side in
        kernel) start "$at_name" "$@" ;;
        library) start "$at_name" env "LD_LIBRARY_PATH=$library" "$@" ;;
        peer) in_peer "$at_name" portolan exec -- "$@" ;;
    esac
}

# Not quoted: an optional command that runs the programs.
serve() { at "$server_side" server $server_by "$@"; }
call() { at "$client_side" client $client_by "$@"; }
server_by=
client_by=

# client_gives_way: runs both on one processor, the client only when the server is idle (or hardly
# ever otherwise)
client_gives_way() {
    server_by='taskset 1'
    client_by='taskset 1 nice -n 15'
}

# await_service PORT: waits until the server listens through rdma_cm
await_service() {
    await 40 is_served_or_ended is_served "$1"
    alive server || must_succeed server
}

# await_exchange [PORT]: waits until the server listens on TCP
await_exchange() {
    await 40 is_served_or_ended is_listened "${1:-$exchange_port}"
    alive server || must_succeed server
}

is_served_or_ended() { "$@" || ! alive server; }

is_served() {
    case $server_side in
        peer) ip netns exec peer portolan ps 2> /dev/null | grep -q "listens on .*:$1\$" ;;
        *) kernel_listens "$1" ;;
    esac
}

# 0A is the state LISTEN in proc(5)'s table of sockets.
is_listened() {
    listened=$(printf ':%04X [0-9A-F]*:[0-9A-F]* 0A' "$1")
    case $server_side in
        peer) ip netns exec peer cat /proc/net/tcp /proc/net/tcp6 | grep -q "$listened" ;;
        *) cat /proc/net/tcp /proc/net/tcp6 | grep -q "$listened" ;;
    esac
}

both_succeed() {
    must_succeed client
    must_succeed server
}

# rping_pair BYTES COUNT OPTION…
rping_pair() {
    bytes=$1
    count=$2
    shift 2
    serve rping -s -a "$to" -p 7471 -v -C "$count" -S "$bytes" "$@"
    await_service 7471
    call rping -c -a "$to" -p 7471 -v -C "$count" -S "$bytes" "$@"
    both_succeed
    must_say client '^ping data: rdma-ping-' "$count"
    must_say server '^server ping data: rdma-ping-' "$count"
}

# rping_many CLIENTS COUNT: clients of one rping -s -P. It has room for one request and loses one
# that arrives while it handles another, so each client waits until the previous one has been
# answered.
rping_many() {
    program_limit_s=800
    serve rping -s -P -a "$to" -p 7471 -S 64
    await_service 7471
    for number in $(seq "$1"); do
        at "$client_side" "client$number" rping -c -a "$to" -p 7471 -v -V -C "$2" -S 64
        await_said "client$number" '^ping data: rdma-ping-0'
    done
    for number in $(seq "$1"); do
        must_succeed "client$number" > "/tmp/told$number" || { cat "/tmp/told$number"; exit 1; }
        must_say "client$number" '^ping data: rdma-ping-' "$2"
    done
    echo "$1 clients, $2 pings each"
    kill_now server
}

# ucmatose_pair: it prints nothing until it ends
ucmatose_pair() {
    serve ucmatose -b "$to" -c 5 -C 10 -S 500
    await_service 7471
    call ucmatose -s "$to" -c 5 -C 10 -S 500
    must_be_well client
    must_be_well server
}

udaddy_pair() {
    serve udaddy -b "$to" -C 10 -S 1000
    await_service 7174
    call udaddy -s "$to" -C 10 -S 1000
    must_be_well client
    must_be_well server
}

# mckey_pair: the server is the group's member
mckey_pair() {
    serve mckey -m $group -b "$to"
    await 20 is_served_or_ended is_member
    case $client_side in
        peer) call mckey -s -m $group -b "$(address_at peer)" ;;
        *) call $group_sender -m $group -b "$(address_at "$client_side")" ;;
    esac
    must_be_well client
    must_be_well server
}

is_member() {
    case $server_side in
        peer) ip -n peer maddr show dev veth1 | grep -q "inet  *$group\( \|\$\)" ;;
        *) kernel_is_member ;;
    esac
}

# endpoints_pair: rdma_server and rdma_client
endpoints_pair() {
    serve rdma_server -s "$to"
    await_service 7471
    call rdma_client -s "$to"
    both_succeed
    must_say client '^rdma_client: end 0'
    must_say server '^rdma_server: end 0'
}

# cmtime_pair CONNECTIONS
cmtime_pair() {
    serve cmtime -b "$to" -c "$1"
    await_service 7471
    call cmtime -s "$to" -c "$1"
    must_succeed client
    must_say client '^connect  *:'
    ! grep -i -e error -e fail /tmp/client || fail 'not all connections were made'
    # The server never ends by itself.
    kill_now server
}

# port_of DEFAULT OPTION…: the port in the options
port_of() {
    port=$1
    while shift && [ $# -gt 0 ]; do
        [ "$1" != -p ] || port=$2
    done
}

# stream_pair PROGRAM OPTION…: rstream or riostream; each end compares what arrives. With -b, or over
# IPv6, the server binds its address; otherwise it listens on IPv4's wildcard address.
stream_pair() {
    program=$1
    shift
    port_of 7471 "$@"
    bind=
    case " $* " in
        *' -b '*)
            set -- $(echo " $* " | sed 's/ -b / /')
            bind="-b $to"
            ;;
        *' -f ipv6 '*)
            case $server_side in
                peer) to=$(address peer 6) ;;
                *) to=$(address kernel 6) ;;
            esac
            bind="-b $to"
            ;;
    esac
    serve "$program" "$@" $bind
    case " $* " in
        # Plain sockets.
        *' -T s '* | *' -T f '*) await_exchange "$port" ;;
        *) await_service "$port" ;;
    esac
    call "$program" -s "$to" "$@"
    both_succeed
    must_say client '^custom '
    must_say server '^custom '
}

# stream_by_gid: rstream by a GID, which RoCE's addresses are not; see rdma_getaddrinfo's AF_IB
stream_by_gid() {
    serve rstream -S 20000 -C 50 -f gid -b "::ffff:$to"
    must_fail server
    must_say server '^rbind: '
    call rstream -S 20000 -C 50 -f gid -s "::ffff:$to"
    must_fail client
    # Debian's rconnect may return before the refusal, which the next call tells then.
    must_say client '^\(rconnect\|rpoll\): '
}

# copy_pair OPTION…: rcopy; its server never ends
copy_pair() {
    port_of 7427 "$@"
    head -c 3000000 /dev/urandom > /tmp/original
    rm -f /tmp/copy
    serve rcopy "$@"
    await_service "$port"
    call rcopy /tmp/original "$to:/tmp/copy" "$@"
    must_succeed client
    cmp /tmp/original /tmp/copy || fail 'the copy differs'
    kill_now server
}

# datagram_pair ARRIVE OPTION…: udpong, whose server never ends. Without -b it binds IPv6's loopback.
# Its client tells how many datagrams have arrived.
datagram_pair() {
    arrive=$1
    shift
    port_of 7174 "$@"
    serve udpong "$@" -b "$to"
    await_bound "$port"
    call udpong -s "$to" "$@"
    must_succeed client
    must_say client "^custom  *[0-9][0-9]*  *$arrive "
    kill_now server
}

# datagrams_refused: Debian's client, whose rconnect fails over rdma_rxe
datagrams_refused() {
    serve udpong -b "$to" -C 1
    await_bound 7174
    call udpong -s "$to" -C 1
    must_fail client
    must_say client '^rconnect: No such file or directory'
    kill_now server
}

# await_bound PORT: waits until the server has a UDP socket with this port
await_bound() {
    await 40 is_served_or_ended is_bound "$1"
    alive server || must_succeed server
}

# is_bound PORT: whether a UDP socket of the server's side has it
is_bound() {
    bound=$(printf ':%04X [0-9A-F]*:[0-9A-F]* 07' "$1")
    case $server_side in
        peer) ip netns exec peer cat /proc/net/udp | grep -q "$bound" ;;
        *) grep -q "$bound" /proc/net/udp ;;
    esac
}

# by_gid SIDE OPTION: options that name the side's device and, with OPTION, its GID index
by_gid() { echo "-d $(device_at "$1") $2 $(gid_at "$1")"; }

# pingpong KIND COUNT OPTION…
pingpong() {
    program=ibv_$1_pingpong
    count=$2
    shift 2
    serve "$program" $(by_gid "$server_side" -g) -n "$count" "$@"
    await_exchange
    call "$program" $(by_gid "$client_side" -g) -n "$count" "$@" "$to"
    both_succeed
    must_say client "^$count iters in "
    must_say server "^$count iters in "
}

# pingpong_by_lid KIND: RoCE has no LIDs, and the server must report that. The client then waits,
# with the shared receive queue forever.
pingpong_by_lid() {
    program=ibv_$1_pingpong
    serve "$program" -d "$(device_at "$server_side")"
    await_exchange
    call "$program" -d "$(device_at "$client_side")" "$to"
    must_fail server
    must_say server '^Failed to \(modify QP.* to RTR\|create AH\)$'
    kill_now client
}

# The interfaces' MTU for perftest, in bytes
mtu=9000

is_wide() { ibv_devinfo -d rxe0 | grep -q 'active_mtu:.*4096'; }

# perftest PROGRAM LAST OPTION…: LAST is the message size in the last line of its table. With
# packets of 4096 bytes, 8 MiB are a lot under emulation.
perftest() {
    ip link set veth0 mtu $mtu
    ip -n peer link set veth1 mtu $mtu
    await 20 is_wide
    program_limit_s=420
    for try in 1 2 3 4 5; do
        perftest_once "$@" && return
        # With -R the client connects a second time at once, even if the server does not listen
        # again yet. That happens with Debian's librdmacm on rdma_rxe too.
        grep -q 'RDMA_CM_EVENT_REJECTED; error: 8' /tmp/client || break
        echo "try $try: the client connected before its server listened"
        client_gives_way
    done
    fail "$*"
}

# A function called in a condition does not stop at a failed command.
perftest_once() {
    program=$1
    last=$2
    shift 2
    serve "$program" $(by_gid "$server_side" -x) -F "$@"
    case " $* " in
        *' -R '*) await_service $exchange_port ;;
        *) await_exchange ;;
    esac
    call "$program" $(by_gid "$client_side" -x) -F "$@" "$to"
    if ! end client; then
        kill_now server
        return 1
    fi
    must_succeed server
    must_say client "^ *$last  *[0-9]"
}
