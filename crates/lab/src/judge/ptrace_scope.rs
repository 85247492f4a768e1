//! Two processes of an ordinary user, whose memory Yama protects from one another (`kernel.yama.ptrace_scope`): their
//! data are right, and `portolan ps` says that they go by packets and why.

use super::step;
use crate::machine::Step;

const SCRIPT: &str = r#"
scope=/proc/sys/kernel/yama/ptrace_scope
grep -q ^nobody: /etc/passwd || echo 'nobody:x:65534:65534::/:/bin/sh' >> /etc/passwd
# by_nobody NAME COMMAND: the user "nobody" runs the command in the background.
by_nobody() {
    name=$1
    shift
    in_peer "$name" su nobody -c "PATH=$PATH LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-} exec portolan exec -- $*"
}
seen() { ip netns exec peer su nobody -c "PATH=$PATH LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-} portolan ps" > /tmp/seen; }
listens() { seen && grep -q 'listens on .*:7471$' /tmp/seen; }
# shows PATTERN: both processes, of their connection
shows() { seen && [ "$(grep -c "established, .*, through memory$1" /tmp/seen)" = 2 ]; }
gone() { ! listens; }
# data_go SCOPE PATTERN: while two processes compare their data, `ps` says this about every connection
data_go() {
    echo "$1" > $scope
    by_nobody server rping -s -a 127.0.0.1 -p 7471 -V -C 1000000 -S 60000
    await 40 listens
    by_nobody client rping -c -a 127.0.0.1 -p 7471 -V -C 1000000 -S 60000
    await 40 shows "$2"
    cat /tmp/seen
    sleep 2
    alive client && alive server || fail 'the data are wrong'
    kill_now client
    kill_now server
    await 40 gone
}
data_go 0 '$'
data_go 1 ", the program's own by packets: .*ptrace_scope"
echo 0 > $scope
"#;

pub(super) fn steps() -> Vec<Step> {
    let name = "Yama keeps processes from each other's memory: packets, and ps says why";
    vec![step(name.to_owned(), SCRIPT)]
}
