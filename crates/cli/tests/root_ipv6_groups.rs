//! IPv6 multicast groups between software devices: between two hosts (network namespaces connected by a veth
//! pair) and within one host. The members are the command and Debian's mckey under `portolan exec`.

#[path = "common/mod.rs"]
mod common;
#[path = "common/installed.rs"]
mod installed;

use std::process::{Command, Stdio};

use common::{output_of, stderr, stdout};
use installed::Installed;

/// Two hosts: fd77::1 (this one) and fd77::2. A member, `$1`, runs in one of them. When the kernel shows the
/// membership, a sender, `$2`, runs in the other (`two`) or in the same (`one`).
const SCRIPT: &str = r#"
cd "$0"
export TMPDIR="$0/work"
unset XDG_RUNTIME_DIR
portolan="$0/portolan"
sysctl -qw net.ipv6.conf.default.accept_dad=0
ip link set lo up
unshare --net sleep 120 &
other=$!
trap 'kill $other' EXIT
into="nsenter --target $other --net"
there() { $into "$@"; }
await() {
    tries=0
    until "$@"; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || { echo "in vain: $*"; exit 77; }
        sleep 0.05
    done
}
apart() { [ "$(readlink /proc/$other/ns/net)" != "$(readlink /proc/self/ns/net)" ]; }
await apart
ip link add here type veth peer name there netns $other
ip addr add fd77::1/64 dev here nodad
ip link set here up
there sysctl -qw net.ipv6.conf.all.accept_dad=0
there ip link set lo up
there ip addr add fd77::2/64 dev there nodad
there ip link set there up
routes() { ip -6 route show table local | grep -q 'ff00::/8 dev here' && there ip -6 route show table local | grep -q 'ff00::/8 dev there'; }
await routes
case $3 in
    two) sender=$into; from=fd77::2 ;;
    one) sender=; from=fd77::1 ;;
esac
set -- "$(echo "$1" | sed "s,PORTOLAN,$portolan,g; s,LOCAL,fd77::1,g")" "$(echo "$2" | sed "s,PORTOLAN,$portolan,g; s,LOCAL,$from,g")" "$4"
$1 > member 2>&1 &
member=$!
joined() { grep -q "here *$3" /proc/net/igmp6; }
await joined "$@"
status=0
timeout 60 $sender $2 > sender 2>&1 || status=$?
if [ $status = 0 ]; then
    wait $member || status=$?
else
    kill $member
fi
echo "--- sender:"; cat sender
echo "--- member:"; cat member
exit $status
"#;

const OUR_MEMBER: &str = "PORTOLAN mcast join GROUP --bind LOCAL --count 10 --timeout 60";
const OUR_SENDER: &str = "PORTOLAN mcast send GROUP --bind LOCAL --count 10";
const MCKEY_MEMBER: &str = "PORTOLAN exec -- mckey -m GROUP -b LOCAL";
const MCKEY_SENDER: &str = "PORTOLAN exec -- mckey -s -m GROUP -b LOCAL";
const GID_MEMBER: &str = "PORTOLAN exec -- mckey -M GROUP -b LOCAL";
const GID_SENDER: &str = "PORTOLAN exec -- mckey -s -M GROUP -b LOCAL";

/// Runs member and sender in the group ff15::NUMBER. Returns the output of both.
fn play(hosts: &str, number: u16, member: &str, sender: &str) -> String {
    let installed = Installed::new(&format!("ipv6-groups-{number:x}"));
    let group = format!("ff15::{number:x}");
    let [member, sender] = [member, sender].map(|command| command.replace("GROUP", &group));
    let in_table = format!("ff15{:024}{number:04x}", 0);
    let child = Command::new("unshare")
        .args(["--net", "sh", "-uc", SCRIPT])
        .arg(&installed.0)
        .args([&member, &sender, hosts, &in_table])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let output = output_of(child);
    let said = format!("{}{}", stdout(&output), stderr(&output));
    assert!(output.status.success(), "{member}; {sender}: {said}");
    said
}

#[test]
fn an_ipv6_group_carries_our_datagrams_between_two_hosts_and_on_one() {
    for (hosts, number) in [("two", 0x10), ("one", 0x11)] {
        let said = play(hosts, number, OUR_MEMBER, OUR_SENDER);
        assert!(said.contains("10 datagrams received, 0 missing"), "{said}");
    }
}

#[test]
fn debians_mckey_and_our_command_receive_each_other_in_an_ipv6_group_between_two_hosts() {
    let said = play("two", 0x20, OUR_MEMBER, MCKEY_SENDER);
    assert!(said.contains("10 datagrams received, 0 missing"), "{said}");
    let said = play("two", 0x21, MCKEY_MEMBER, OUR_SENDER);
    assert!(said.contains("return status 0"), "{said}");
}

#[test]
fn debians_mckey_receives_itself_in_an_ipv6_group_by_address_and_by_gid() {
    for (hosts, number, member, sender) in [
        ("two", 0x30, MCKEY_MEMBER, MCKEY_SENDER),
        ("one", 0x31, MCKEY_MEMBER, MCKEY_SENDER),
        ("two", 0x32, GID_MEMBER, GID_SENDER),
        ("one", 0x33, GID_MEMBER, GID_SENDER),
    ] {
        let said = play(hosts, number, member, sender);
        assert_eq!(said.matches("return status 0").count(), 2, "{said}");
    }
}
