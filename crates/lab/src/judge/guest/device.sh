# device.sh add|remove|forget: a separate device for $WHO on the interface gone0, 10.9.0.1. The
# kernel's device is removed by itself, the software device by removing its interface.
. /job/judge.sh
case $1$WHO in
    add*)
        ip link add gone0 type veth peer name gone1
        ip addr add 10.9.0.1/24 dev gone0
        ip link set gone1 up
        ip link set gone0 up
        carrier() { [ "$(cat /sys/class/net/gone0/carrier 2> /dev/null)" = 1 ] || ip -o link show gone0 | grep -q 'state UP'; }
        await 10 carrier
        [ "$WHO" = software ] || {
            rdma link add rxe2 type rxe netdev gone0
            active() { rdma link show rxe2/1 | grep -q 'state ACTIVE'; }
            await 10 active
        }
        ;;
    removesoftware) ip link del gone0 ;;
    # In the background: it may end only after the last program has closed the device.
    remove*) rdma link del rxe2 > /dev/null 2>&1 < /dev/null & ;;
    forgetsoftware) ;;
    forget*)
        ip link show gone0 > /dev/null 2>&1 || exit 0
        removed() { ! rdma link show | grep -q ' rxe2/'; }
        await 10 removed
        # Not deleted: that would wait for the last reference, possibly forever.
        ip addr flush dev gone0
        ip link set gone0 down
        ip link set gone1 down
        ip link set gone0 name "gone-$WHO"
        ip link set gone1 name "left-$WHO"
        ;;
esac
