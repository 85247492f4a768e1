#!/bin/sh
# Both ends of fio's engine of RDMA: sh fio.sh VERB ADDRESS
# What is sent is verified where it arrives. What is read and written is not known to fio's other end.
set -e
verb=$1
address=$2
if [ "$verb" = send ]; then
    verify="--verify=crc32c --do_verify=0 --verify_state_save=0"
    verify_server="--verify=crc32c --verify_state_save=0"
fi
# Both are bounded: each waits for ever after some errors.
# Its end that calls "writes" whatever the verb is, and the other "reads".
folder=$(mktemp -d)
both="--ioengine=rdma --port=4420 --bs=64k --iodepth=8 --size=16m"
# shellcheck disable=SC2086 # options are words
timeout 60 fio --name=server $both --rw=read $verify_server > "$folder/server" 2>&1 &
server=$!
trap 'kill $server 2> /dev/null || true; cat "$folder/server"; rm -r "$folder"' EXIT
tries=0
until grep -q "waiting for connection" "$folder/server"; do
    tries=$((tries + 1))
    [ $tries -lt 300 ] || exit 1
    sleep 0.1
done
# It says so a moment before it listens.
sleep 0.5
# shellcheck disable=SC2086
timeout 60 fio --name=client $both --rw=write --verb="$verb" --hostname="$address" $verify > "$folder/client" 2>&1 || true
cat "$folder/client"
grep -q "err= 0" "$folder/client"
wait $server
grep -q "err= 0" "$folder/server"
echo "fio $verb: both ends ended well"
