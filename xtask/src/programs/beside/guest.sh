# Plays rows in a kernel machine: sh -eu guest.sh WORKSPACE XTASK WAY ROWS
# The host's files are mounted read-only. Programs write to memory (tmpfs).
workspace=$1 xtask=$2 way=$3 rows=$4
mkdir -p /host /over /whole
mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=262144 host /host
mount -t tmpfs tmpfs /over
mkdir -p /over/upper /over/work
mount -t overlay -o lowerdir=/host,upperdir=/over/upper,workdir=/over/work overlay /whole
for folder in dev proc sys; do
    mount --rbind /$folder /whole/$folder
done
for folder in tmp run dev/shm; do
    mkdir -p /whole/$folder
    mount -t tmpfs tmpfs /whole/$folder
done
exec env -i HOME=/root LC_ALL=C PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    /busybox/chroot /whole sh -c 'cd "$1" && exec "$2" programs --in-machine "$3" --rows "$4"' \
    sh "$workspace" "$xtask" "$way" "$rows"
