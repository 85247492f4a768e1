# Programs on our librdmacm, which is among the job's programs. Sourced after judge.sh.

ours=/job/programs
export LD_LIBRARY_PATH=$ours

# Prefix of a command that must use Debian's library
debians="env --unset=LD_LIBRARY_PATH"

# Checks that the loader uses our library and not Debian's.
ours_is_loaded() {
    start server rping -s -a "$(address kernel 4)" -p 7471
    await 10 kernel_listens 7471
    maps=$(cat "/proc/$(pidof rping)/maps")
    kill "$(pidof rping)"
    end server || true
    echo "$maps" | grep librdmacm
    echo "$maps" | grep -q " $ours/librdmacm.so.1\$" || fail "our library is not loaded"
    ! echo "$maps" | grep librdmacm | grep -v -q "$ours/" || fail "another librdmacm is loaded as well"
}

# ucmatose prints nothing until it ends
events_alone() {
    start server ucmatose -C 10 -S 500
    await 10 kernel_listens 7471
    start client ucmatose -s "$(address kernel 4)" -C 10 -S 500
    must_be_well client
    must_be_well server
}

# Synchronous endpoints from rdma_getaddrinfo, through the inline functions of rdma_verbs.h
endpoints_alone() {
    start server rdma_server
    await 10 kernel_listens 7471
    start client rdma_client -s "$(address kernel 4)"
    must_succeed client
    must_succeed server
    must_say client '^rdma_client: end 0'
    must_say server '^rdma_server: end 0'
}

# connections_alone COUNT
connections_alone() {
    start server cmtime -b "$(address kernel 4)" -c "$1"
    await 10 kernel_listens 7471
    start client cmtime -s "$(address kernel 4)" -c "$1"
    must_succeed client
    must_say client '^connect  *:'
    # The server never ends by itself.
    kill "$(pidof cmtime)"
    end server || true
}

# ours_calls COUNT
ours_calls() {
    start server $debians rping -s -a "$(address kernel 4)" -p 7471 -v -V -C "$1" -S 1000
    await 10 kernel_listens 7471
    start client rping -c -a "$(address kernel 4)" -p 7471 -v -V -C "$1" -S 1000
    must_succeed client
    must_succeed server
    must_say server '^server ping data: rdma-ping-' "$1"
}

# ours_serves COUNT
ours_serves() {
    start server rping -s -a "$(address kernel 4)" -p 7471 -v -V -C "$1" -S 1000
    await 10 kernel_listens 7471
    start client $debians rping -c -a "$(address kernel 4)" -p 7471 -v -V -C "$1" -S 1000
    must_succeed client
    must_succeed server
    must_say client '^ping data: rdma-ping-' "$1"
}

# streams SERVER CLIENT PROGRAM OPTIONS...; an end is ours or debians. Each end compares what comes.
streams() {
    server_library= client_library=
    [ "$1" = ours ] || server_library=$debians
    [ "$2" = ours ] || client_library=$debians
    shift 2
    program=$1
    shift
    start server $server_library $program "$@"
    await 10 kernel_listens 7471
    start client $client_library $program -s "$(address kernel 4)" "$@"
    must_succeed client
    must_succeed server
    must_say client '^custom '
    must_say server '^custom '
}

ours_is_rejected() {
    start rejected rping -c -a "$(address kernel 4)" -p 9999 -C 1
    must_fail rejected
    must_say rejected 'cma event RDMA_CM_EVENT_REJECTED, error 8$'
}

ours_loses_its_peer() {
    start server rping -s -a "$(address kernel 4)" -p 7471 -S 64
    await 10 kernel_listens 7471
    server_rping=$(pidof rping)
    start client rping -c -a "$(address kernel 4)" -p 7471 -v -S 64
    await_said client '^ping data: rdma-ping-3'
    kill -s KILL "$server_rping"
    end server || true
    # The same as on Debian's library.
    must_succeed client
    must_say client 'DISCONNECT'
}

# Every call with right and wrong arguments must return the same values, errnos and events on
# Debian's library and on ours, whichever headers the program was built with.
calls_are_alike() {
    start theirs $debians calls "$(address kernel 4)"
    must_succeed theirs
    must_say theirs '^== end$' 1
    for program in calls calls_by_our_headers; do
        start ours $program "$(address kernel 4)"
        must_succeed ours
        diff -U 3 /tmp/theirs /tmp/ours || fail "lines of - are Debian's, those of + ours"
    done
}
