//! Settings of the network that concern RoCEv2.

use super::super::facts::{Interface, Network};
use super::Root;
use crate::commands::loopback;

const CONF: &str = "/proc/sys/net";
const CONNTRACK: &str = "/proc/sys/net/netfilter/nf_conntrack";

pub(super) fn look(root: &Root) -> Network {
    let names = root.names(&format!("{CONF}/ipv4/conf")).into_iter();
    let setting = |path: String| root.number::<u32>(&path).unwrap_or(0);
    let filter = |name: &str| setting(format!("{CONF}/ipv4/conf/{name}/rp_filter"));
    let for_all = filter("all");
    let interfaces = names.filter(|name| !["all", "default"].contains(&name.as_str()));
    let count = root.number(&format!("{CONNTRACK}_count"));
    Network {
        interfaces: interfaces
            .map(|name| Interface {
                ipv6_disabled: setting(format!("{CONF}/ipv6/conf/{name}/disable_ipv6")) != 0,
                rp_filter: filter(&name).max(for_all),
                name,
            })
            .collect(),
        loopback_down: loopback::that_is_down(),
        has_ipv6: root.has(&format!("{CONF}/ipv6")),
        conntrack: count.zip(root.number(&format!("{CONNTRACK}_max"))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Tree;
    use super::*;

    #[test]
    fn the_stricter_filter_holds() {
        let tree = Tree::of(
            "conf",
            &[
                ("/proc/sys/net/ipv4/conf/all/rp_filter", "1\n"),
                ("/proc/sys/net/ipv4/conf/default/rp_filter", "1\n"),
                ("/proc/sys/net/ipv4/conf/eth0/rp_filter", "2\n"),
                ("/proc/sys/net/ipv4/conf/eth1/rp_filter", "0\n"),
                ("/proc/sys/net/ipv6/conf/eth1/disable_ipv6", "1\n"),
                ("/proc/sys/net/netfilter/nf_conntrack_count", "5\n"),
                ("/proc/sys/net/netfilter/nf_conntrack_max", "10\n"),
            ],
        );
        let network = look(&tree.0);
        let found: Vec<_> = network
            .interfaces
            .iter()
            .map(|one| (one.name.as_str(), one.rp_filter, one.ipv6_disabled))
            .collect();
        assert_eq!(found, [("eth0", 2, false), ("eth1", 1, true)]);
        assert_eq!(network.conntrack, Some((5, 10)));
    }
}
