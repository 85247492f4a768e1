#!/bin/sh
# iSER: tgt's target with a temporary disk (sh tgt.sh serve ADDRESS), and libiscsi's programs as its initiator
# (sh tgt.sh call ADDRESS).
set -e
# Not every user has tgtd's folder in the path.
PATH=$PATH:/usr/sbin
end=$1
address=$2
name=iqn.2001-04.com.example:disk
initiator=iqn.2001-04.com.example:initiator

# The target replaces this process, so killing the process ends it. It registers 64 MiB instead of its default of 1 GiB,
# which rdma_rxe would pin.
serve() {
    folder=$(mktemp -d)
    # The number of the control socket must be unique on this machine.
    control=$$
    export TGT_IPC_SOCKET="$folder/control"
    truncate -s 16M "$folder/disk"
    configure &
    exec tgtd --foreground --control-port "$control" --iscsi portal="$address:3260" --iser port=3261,pool_sz_mb=64
}

admin() {
    tgtadm --control-port "$control" --lld iser "$@"
}

configure() {
    tries=0
    until admin --op new --mode target --tid 1 --targetname "$name" 2> "$folder/said"; do
        tries=$((tries + 1))
        [ $tries -lt 100 ] || { cat "$folder/said"; exit 1; }
        sleep 0.1
    done
    admin --op new --mode logicalunit --tid 1 --lun 1 --backing-store "$folder/disk"
    # tgt's iSER checks both the address and the name.
    admin --op bind --mode target --tid 1 --initiator-address ALL
    admin --op bind --mode target --tid 1 --initiator-name "$initiator"
}

call() {
    url=iser://$address:3261/$name/1
    # The target listens before it has a disk.
    tries=0
    until iscsi-inq -i "$initiator" "$url"; do
        tries=$((tries + 1))
        [ $tries -lt 20 ]
        sleep 0.2
    done
    iscsi-readcapacity16 -i "$initiator" "$url"
    for test in Read10.Simple Write10.Simple Read16.Simple Write16.Simple; do
        iscsi-test-cu -i "$initiator" --dataloss --test="SCSI.$test" "$url"
    done
    echo "iSER: right"
}

"$end"
