#!/bin/sh
# A set of libfabric's tests, both ends on this host: sh fabtests.sh PROVIDER SET ADDRESS
set -e
folder=$(pwd)/target/programs/fabtests
export LD_LIBRARY_PATH="$folder/lib:$LD_LIBRARY_PATH"
configs=$folder/share/fabtests/test_configs
# The tests that each layer lacks, by libfabric's own lists.
case $1 in
verbs) exclude=$configs/verbs/verbs.exclude ;;
*rxm) exclude=$configs/ofi_rxm/ofi_rxm.exclude ;;
*rxd) exclude=$configs/ofi_rxd/ofi_rxd.exclude ;;
esac
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
cd "$work"
# msg_sockets: libfabric's verbs provider calls rdma_resolve_addr twice on one id, in fi_endpoint and in fi_connect.
# At its end the script kills every process whose name begins with fi_, also those of another run.
status=0
unshare --pid --fork --kill-child --mount-proc \
    "$folder/bin/runfabtests.sh" -vv -T 180 -p "$folder/bin" -t "$2" -f "$exclude" -e msg_sockets -g "$3" -s "$3" -c "$3" "$1" \
    >report 2>&1 || status=$?
cat report
awk '
    /^- name:/ { test = $0; sub(/^- name: */, "", test); sub(/ *-p ".*/, "", test) }
    / result: *Pass/ { passed++ }
    / result: *Fail/ { failed = failed "; " test }
    END { print passed + 0 " passed, failed tests" (failed ? ": " substr(failed, 3) : ": none") }' report
exit $status
