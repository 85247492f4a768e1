# Builds libfabric with its verbs provider, and fabtests: sh -e fabtests-build.sh SOURCE FOLDER
source=$1
folder=$2
work=$folder/build
rm -rf "$work"
cp -r "$source" "$work"
log=$folder/build.log
trap 'tail -n 20 "$log" >&2' EXIT
cd "$work"
without=
for provider in tcp udp shm sm2 sockets psm2 psm3 opx efa usnic ucx mrail lpp \
    hook_debug hook_hmem dmabuf_peer_mem perf trace profile monitor; do
    without="$without --disable-$provider"
done
{
    ./autogen.sh
    # shellcheck disable=SC2086 # words
    ./configure --prefix="$folder" --enable-verbs --enable-rxd --enable-rxm $without
    make -j2 install
    cd fabtests
    ./autogen.sh
    ./configure --prefix="$folder" --with-libfabric="$folder"
    make -j2 install
} > "$log" 2>&1
trap - EXIT
rm -r "$work"
