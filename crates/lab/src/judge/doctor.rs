//! `portolan doctor` on a machine whose kernel has RDMA: it must find the obstacles, and its
//! suggested commands must remove them.

use super::step;
use crate::machine::Step;

/// The beginning of every step's script.
const PRELUDE: &str = r#"
# doctor STATUS [ARGUMENT...]: its answer for machines goes to /tmp/told.
doctor() {
    expected=$1
    shift
    status=0
    portolan doctor --json "$@" > /tmp/told || status=$?
    cat /tmp/told
    [ "$status" = "$expected" ] || fail "doctor ended with $status, not $expected"
}
# told TEXT: that it said so, except blanks.
told() { grep -qF -- "$1" /tmp/told || fail "it does not say $1"; }
not_told() { ! grep -qF -- "$1" /tmp/told || fail "it says $1"; }
# The remedy of a finding, up to what is in brackets.
remedy() { sed -n "s/.*\"code\":\"$1\",\"remedy\":\"\([^\"(]*\).*/\1/p" /tmp/told; }
active() { rdma link show rxe0/1 | grep -q 'state ACTIVE'; }
"#;

const KERNEL_HOLDS_THE_PORT: &str = r#"
active || rdma link add rxe0 type rxe netdev veth0
await 10 active
export PORTOLAN_PROVIDER=software
doctor 1
told '"code":"port-held-by-kernel"'
told 'rdma_rxe (rxe0) holds UDP'
told '"owner":"kernel"'
status=0
portolan listen 10.7.0.1:0 2> /tmp/refused || status=$?
cat /tmp/refused
[ $status = 2 ] || fail "the software device starts beside rdma_rxe"
eval "$(remedy port-held-by-kernel)"
doctor 0 10.7.0.2:7471
told '"name":"kernel"'
told '"device":"rxe0"'
told '"rdma_rxe":"loaded"'
told '"path":"/dev/infiniband/rdma_cm"'
told '"state":"ACTIVE"'
told '"kind":"RoCE v2"'
"#;

const BY_ROUTE: &str = r#"
doctor 0 10.7.0.2:7471
told '"name":"route"'
told '"device":"rxe0"'
doctor 1 127.0.0.1:7471
told '"device":"sw_lo"'
told '"code":"port-held-by-kernel"'
"#;

const OTHER_NAMESPACE: &str = r#"
ip netns exec peer portolan doctor 10.7.0.1:7471 | tee /tmp/people
grep -q 'no problems found' /tmp/people || fail "something is"
grep -q 'by sw_veth1 gid' /tmp/people || fail "not by the software device"
"#;

const TROUBLE: &str = r#"
export PORTOLAN_PROVIDER=kernel
ip link set veth0 down
doctor 1
told '"code":"kernel-port-down"'
told 'rxe0 port 1 is DOWN'
ip link set veth0 up
await 10 active
rdma link delete rxe0
doctor 1
told '"code":"kernel-no-device"'
eval "$(remedy kernel-no-device)"
await 10 active
doctor 0
chmod 600 /dev/infiniband/rdma_cm
grep -q ^nobody: /etc/passwd || echo 'nobody:x:65534:65534::/:/bin/sh' >> /etc/passwd
as_nobody="PATH=$PATH LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-} PORTOLAN_PROVIDER=kernel portolan doctor --json"
status=0
su nobody -c "$as_nobody" > /tmp/told || status=$?
cat /tmp/told
[ "$status" = 1 ] || fail "doctor ended with $status for the user nobody, not 1"
told '"code":"node-unusable"'
chmod 666 /dev/infiniband/rdma_cm
"#;

/// The steps. `is_new`: the kernel has the commands of Linux 6.18.
pub(super) fn steps(is_new: bool) -> Vec<Step> {
    let offers = format!(
        "export PORTOLAN_PROVIDER=kernel\ndoctor 0\n\
         told '\"offers\":{{\"ib_service\":{is_new},\"write_event\":{is_new}}}'\n\
         told '\"abi\":4'\n"
    );
    let parts = [
        (
            "doctor: the kernel holds the port, and the remedy helps",
            KERNEL_HOLDS_THE_PORT,
        ),
        ("doctor: the provider of each way's route", BY_ROUTE),
        ("doctor: what the running kernel offers", &offers),
        (
            "doctor: the software device in another namespace",
            OTHER_NAMESPACE,
        ),
        ("doctor: ports down, no device, no permission", TROUBLE),
    ];
    let steps = parts.map(|(name, script)| step(name.to_owned(), &format!("{PRELUDE}{script}")));
    steps.into()
}
