//! The configuration of name lookups: `/etc/hosts`, `/etc/resolv.conf`, `/etc/nsswitch.conf`.

use std::net::IpAddr;

use super::super::facts::Names;
use super::Root;

pub(super) fn look(root: &Root) -> Names {
    let text = |path: &str| root.read(path).unwrap_or_default();
    let hosts = text("/etc/hosts");
    let resolver = text("/etc/resolv.conf");
    let switch = text("/etc/nsswitch.conf");
    let sources = switch
        .lines()
        .find_map(|line| line.trim().strip_prefix("hosts:"));
    Names {
        hosts: hosts.lines().filter_map(read_host).collect(),
        name_servers: resolver.lines().filter_map(read_server).collect(),
        // Without the file, libc uses files and name servers.
        asks_dns: sources.is_none_or(|sources| {
            let mut sources = sources.split_whitespace();
            sources.any(|source| ["dns", "resolve"].contains(&source))
        }),
    }
}

fn read_host(line: &str) -> Option<(IpAddr, Vec<String>)> {
    let mut words = line.split('#').next()?.split_whitespace();
    let address = words.next()?.parse().ok()?;
    Some((address, words.map(str::to_owned).collect()))
}

fn read_server(line: &str) -> Option<IpAddr> {
    let mut words = line.split_whitespace();
    (words.next()? == "nameserver").then_some(())?;
    // A link-local server is followed by its zone.
    words.next()?.split('%').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::tests::Tree;
    use super::*;

    #[test]
    fn hosts_and_name_servers_are_read_as_libc_does() {
        let tree = Tree::of(
            "names",
            &[
                (
                    "/etc/hosts",
                    "127.0.0.1 localhost me # this\n#::1 no\n127.0.1.1\tHost\n",
                ),
                (
                    "/etc/resolv.conf",
                    "search a\nnameserver 10.0.0.1\nnameserver fe80::1%eth0\n",
                ),
                ("/etc/nsswitch.conf", "passwd: files\nhosts: files mdns4\n"),
            ],
        );
        let names = look(&tree.0);
        assert_eq!(
            names.of("host").collect::<Vec<_>>(),
            ["127.0.1.1".parse::<IpAddr>().unwrap()]
        );
        assert_eq!(names.of("no").count() + names.of("this").count(), 0);
        assert_eq!(names.name_servers.len(), 2);
        assert!(!names.asks_dns);
        let without = Tree::of("no-names", &[("/etc/other", "")]);
        assert!(look(&without.0).asks_dns);
    }
}
