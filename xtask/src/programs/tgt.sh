#!/bin/sh
# tgt's target of iSER with a disk of its own, and libiscsi's programs as its initiator: sh tgt.sh ADDRESS
set -e
address=$1
name=iqn.2001-04.com.example:disk
initiator=iqn.2001-04.com.example:initiator
folder=$(mktemp -d)
# The control socket is named by a number, which no other target on this machine may have.
control=$$
export TGT_IPC_SOCKET="$folder/control"
tgtd --foreground --control-port "$control" --iscsi portal="$address:3260" --iser port=3261 > "$folder/log" 2>&1 &
target=$!
# It ends of no other signal while it has a target.
trap 'kill -KILL $target; cat "$folder/log"; rm -r "$folder"' EXIT
tries=0
until tgtadm --control-port "$control" --lld iser --op new --mode target --tid 1 --targetname "$name" 2> "$folder/said"; do
    tries=$((tries + 1))
    [ $tries -lt 50 ] || { cat "$folder/said"; exit 1; }
    sleep 0.1
done
truncate -s 16M "$folder/disk"
tgtadm --control-port "$control" --lld iser --op new --mode logicalunit --tid 1 --lun 1 --backing-store "$folder/disk"
# Its iSER asks for the address and for the name.
tgtadm --control-port "$control" --lld iser --op bind --mode target --tid 1 --initiator-address ALL
tgtadm --control-port "$control" --lld iser --op bind --mode target --tid 1 --initiator-name "$initiator"
url=iser://$address:3261/$name/1
iscsi-inq -i "$initiator" "$url"
iscsi-readcapacity16 -i "$initiator" "$url"
for test in Read10.Simple Write10.Simple Read16.Simple Write16.Simple; do
    iscsi-test-cu -i "$initiator" --dataloss --test="SCSI.$test" "$url"
done
echo "iSER: right"
