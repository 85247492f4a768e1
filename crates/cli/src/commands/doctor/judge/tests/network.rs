//! Problems of the network.

use super::*;

pub(super) fn cases() -> Vec<Case> {
    let port = || vec![Condition::Udp(true), Condition::Port(true)];
    let interfaces = |f: &mut Facts| f.software.push(device("eth1", 3, "10.1.0.1"));
    vec![
        case(("container", Note), "lxc", "", healthy(), |f| {
            f.host.container = Some("lxc".into())
        }),
        case(
            ("firewall-stops", Problem),
            "come to UDP port 4791: inet t/c: the rule",
            "nft insert rule inet t c udp dport 4791 accept",
            healthy(),
            |f| {
                f.rules
                    .chains
                    .push(chain(Hook::Input, rule(port(), Action::Drop)))
            },
        ),
        case(
            ("firewall-stops", Problem),
            "sent to UDP port 4791: no rule of",
            "ip6tables -I OUTPUT -p udp --dport 4791 -j ACCEPT",
            healthy(),
            |f| {
                let mut chain = chain(Hook::Output, rule(vec![Condition::Other], Action::Accept));
                (chain.table, chain.name) = ("ip6 filter".into(), "OUTPUT".into());
                chain.tool = "ip6tables-save";
                chain.drops_by_default = true;
                f.rules.chains.push(chain);
            },
        ),
        case(
            ("firewall-stops", Problem),
            "come to UDP port 4791: ip raw/PREROUTING: the rule",
            "iptables-legacy -t raw -I PREROUTING -p udp --dport 4791 -j ACCEPT",
            healthy(),
            |f| {
                let mut chain = chain(Hook::Prerouting, rule(port(), Action::Drop));
                (chain.table, chain.name) = ("ip raw".into(), "PREROUTING".into());
                chain.tool = "iptables-legacy-save";
                f.rules.chains.push(chain);
            },
        ),
        case(
            ("firewall-stops", Problem),
            "sent to UDP port 4791: inet t/c: the rule",
            "nft insert rule inet t c udp dport 4791 accept",
            healthy(),
            |f| {
                f.rules
                    .chains
                    .push(chain(Hook::Postrouting, rule(port(), Action::Drop)))
            },
        ),
        case(
            ("firewall-stops", Note),
            "may drop packets that come to UDP port 4791: the policy of inet t/c is to drop, unless",
            "nft insert rule inet t c udp dport 4791 accept",
            healthy(),
            |f| {
                let accept = rule(vec![Condition::Elsewhere], Action::Accept);
                let mut chain = chain(Hook::Input, accept);
                chain.drops_by_default = true;
                f.rules.chains.push(chain);
            },
        ),
        case(
            ("translation", Problem),
            "(the rule)",
            "exempt",
            healthy(),
            |f| {
                f.rules
                    .chains
                    .push(chain(Hook::Postrouting, rule(vec![], Action::SourceNat)));
            },
        ),
        case(
            ("conntrack-full", Problem),
            "100 of at most 100",
            "nf_conntrack_max=200",
            healthy(),
            |f| {
                f.network.conntrack = Some((100, 100));
            },
        ),
        case(
            ("localhost-unknown", Note),
            "localhost",
            "127.0.0.1 localhost",
            healthy(),
            |f| f.names.hosts.clear(),
        ),
        case(
            ("hostname-is-loopback", Note),
            "pilot is 127.0.1.1",
            "/etc/hosts",
            healthy(),
            |f| {
                f.names.hosts.push((ip("127.0.1.1"), vec!["pilot".into()]));
            },
        ),
        case(
            ("name-server-missing", Note),
            "no name server",
            "resolv.conf",
            healthy(),
            |f| {
                f.names.name_servers.clear();
            },
        ),
        case(
            ("ipv6-disabled", Note),
            "on eth0",
            "conf.eth0.disable_ipv6=0",
            healthy(),
            |f| {
                f.network.interfaces[1].ipv6_disabled = true;
            },
        ),
        case(
            ("ipv6-disabled", Note),
            "kernel has no IPv6",
            "ipv6.disable",
            healthy(),
            |f| {
                f.network.has_ipv6 = false;
            },
        ),
        case(
            ("reverse-path-filter", Note),
            "eth0",
            "conf.eth0.rp_filter=2",
            healthy(),
            |f| {
                interfaces(f);
                f.network.interfaces[1].rp_filter = 1;
            },
        ),
        case(
            ("destination-unresolved", Problem),
            "there:7471: not known",
            "",
            healthy(),
            |f| {
                f.destination = to(Err("not known".into()));
            },
        ),
        case(
            ("destination-no-route", Problem),
            "10.0.0.7:7471: no route",
            "ip route get 10.0.0.7",
            healthy(),
            |f| {
                let fault = WayFault::NoRoute("no route".into());
                f.destination = to(Ok(vec![way(Some(fault))]));
            },
        ),
        case(
            ("destination-no-route", Note),
            "no route",
            "ip route get",
            healthy(),
            |f| {
                let fault = WayFault::NoRoute("no route".into());
                f.destination = to(Ok(vec![way(None), way(Some(fault))]));
            },
        ),
        case(
            ("destination-no-device", Problem),
            "from 10.9.0.1",
            "portolan devices",
            healthy(),
            |f| {
                let fault = WayFault::NoDevice(ip("10.9.0.1"));
                f.destination = to(Ok(vec![way(Some(fault))]));
            },
        ),
        case(
            ("destination-no-device", Problem),
            "is this host's, but no software device has it",
            "portolan devices",
            healthy(),
            |f| {
                f.destination = to(Ok(vec![way(Some(WayFault::NotOfADevice))]));
            },
        ),
    ]
}
