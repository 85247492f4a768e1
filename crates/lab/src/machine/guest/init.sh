#!/bin/sh
# The first process of a kernel machine: loads the modules, runs the job's steps one by one, writes
# the results to the results disk as a tar archive, and switches the machine off.
#
# The kernel's messages go to the first serial line, the steps' output to the second.
#
# in:  /job/steps/NNN/{script,limit_s,stop_on_failure}, /job/deadline_s, /job/interactive
# out: /results/steps/NNN/{output,status,seconds}, /results/files/…, /results/boot_seconds

export HOME=/root LC_ALL=C PATH=/job/programs:/usr/sbin:/usr/bin:/busybox RESULTS=/results/files
line=/dev/ttyS1

finish() {
    if ! tar -cf /dev/vda -C /results .; then
        echo "init: the results do not fit on the disk" > /dev/console
        # A truncated archive must not be taken for results.
        dd if=/dev/zero of=/dev/vda bs=512 count=1 2> /dev/null
    fi
    sync
    poweroff -f
}

die() {
    echo "init: $*" > /dev/console
    poweroff -f
}

now() {
    cut -d ' ' -f 1 /proc/uptime
}

# run_step NAME: runs one step in its own session, so that everything it leaves running can be
# killed. Programs are given by their paths: busybox's setsid prefers busybox's own programs, and
# these do too, so a step would get busybox's `ip` instead of the real one.
run_step() {
    script=/job/steps/$1/script
    out=/results/steps/$1
    mkdir -p "$out"
    mkfifo "$out/pipe"
    tee "$out/output" < "$out/pipe" > $line &
    tee=$!
    started=$(now)
    setsid /usr/bin/timeout --foreground -s KILL "$(cat "/job/steps/$1/limit_s")" /usr/bin/sh -eu "$script" \
        < /dev/null > "$out/pipe" 2>&1 &
    leader=$!
    wait $leader
    status=$?
    echo "$started $(now)" > "$out/seconds"
    kill -s KILL -- -$leader 2> /dev/null
    wait $tee
    rm "$out/pipe"
    echo $status > "$out/status"
    return $status
}

/busybox/busybox --install -s /busybox
mount -t devtmpfs devtmpfs /dev
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /tmp
mkdir -p /dev/pts /results/steps $RESULTS
mount -t devpts devpts /dev/pts

# Stops a machine whose host process is gone. The host's own deadline comes first.
deadline_s=$(cat /job/deadline_s)
(sleep $((deadline_s + 60)); poweroff -f) &

while read -r module parameters; do
    # shellcheck disable=SC2086 # parameters are words
    insmod "$module" $parameters || die "cannot load $module"
done < /modules/order

hostname machine
ip link set lo up
stty -F $line raw
now > /results/boot_seconds

for step in /job/steps/*; do
    [ -d "$step" ] || continue
    run_step "${step##*/}" || {
        [ ! -e "$step/stop_on_failure" ] || break
    }
done

if [ -e /job/interactive ]; then
    stty -F $line sane
    setsid -c /usr/bin/sh -i < $line > $line 2>&1
fi
finish
