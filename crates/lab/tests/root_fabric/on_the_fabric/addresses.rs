//! InfiniBand addresses, resolved at hosts of the fabric.

use std::net::Ipv6Addr;
use std::time::{Duration, Instant};

use portolan_lab::fabric::{Fabric, Topology};
use portolan_wire::sa::PathRecord;

const HOST: &str = env!("CARGO_BIN_EXE_fabric_addresses");
const NAME: &str = "harbour";
const ID: &str = "0x1000000000000077";
/// Far longer than the administrator takes to expire a lease.
const PATIENCE: Duration = Duration::from_secs(60);

/// The program's output at a host.
#[track_caller]
fn at(fabric: &Fabric, host: &str, arguments: &[&str]) -> String {
    let output = fabric.at(host, HOST).args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn gid(fabric: &Fabric, host: &str) -> Ipv6Addr {
    Ipv6Addr::from(fabric.topology().gid(host).unwrap())
}

/// The fields of the path between two hosts, by name, as saquery prints them.
fn saquery(fabric: &Fabric, from: &str, to: &str) -> Vec<(String, String)> {
    let (sgid, dgid) = (gid(fabric, from).to_string(), gid(fabric, to).to_string());
    let mut command = fabric.at(from, "saquery");
    let output = command
        .args(["-p", "--sgid", &sgid, "--dgid", &dgid])
        .output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    let field = |line: &str| {
        let (name, value) = line.trim().split_once("..")?;
        Some((name.to_owned(), value.trim_start_matches('.').to_owned()))
    };
    text.lines().filter_map(field).collect()
}

/// The non-zero fields of a path in saquery's format.
fn as_saquery(path: &PathRecord) -> Vec<(String, String)> {
    let lasting = |selected: portolan_wire::sa::Selected| format!("{:#x}", 0x80 | selected.value);
    [
        ("dgid", Ipv6Addr::from(path.dgid.0).to_string()),
        ("sgid", Ipv6Addr::from(path.sgid.0).to_string()),
        ("dlid", path.dlid.to_string()),
        ("slid", path.slid.to_string()),
        ("pkey", format!("{:#X}", path.pkey.0).replace("0X", "0x")),
        ("sl", format!("{:#x}", path.sl)),
        ("mtu", lasting(path.mtu)),
        ("rate", lasting(path.rate)),
        ("pkt_life", lasting(path.packet_lifetime)),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// Parses a path in hexadecimal.
fn record(text: &str) -> PathRecord {
    let byte = |at: usize| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap();
    let bytes: Vec<u8> = (0..text.len() / 2).map(byte).collect();
    PathRecord::parse(&bytes).unwrap()
}

#[test]
fn a_gid_resolves_to_the_hosts_own_port_and_the_path_that_saquery_prints() {
    let Some(fabric) = crate::fabric(Topology::two_switches_four_hosts()) else {
        return;
    };
    for to in ["Host2", "Host3", "Host4"] {
        let node = format!("{},pkey=0xffff", gid(&fabric, to));
        let told = at(&fabric, "Host1", &["resolve", &node]);
        let words: Vec<&str> = told.split_whitespace().collect();
        let [destination, pkey, sid, source, path] = words[..] else {
            panic!("one result with one path: {told}");
        };
        assert_eq!(destination, gid(&fabric, to).to_string());
        assert_eq!((pkey, sid), ("0xffff", "0x0000000001061d2f"));
        assert_eq!(source, gid(&fabric, "Host1").to_string());
        let ours = as_saquery(&record(path));
        let theirs = saquery(&fabric, "Host1", to);
        for field in ours {
            assert!(theirs.contains(&field), "{field:?} in {theirs:?}");
        }
        // The service level required by the hints.
        let other = at(&fabric, "Host1", &["resolve", &node, "9"]);
        let path = other.split_whitespace().last().unwrap();
        assert_eq!(record(path).sl, 9, "{other}");
    }
    // A GID of another subnet, which no port reaches.
    let away = at(&fabric, "Host1", &["resolve", "2001:db8::1"]);
    assert_eq!(away.split_whitespace().count(), 4, "{away}");
}

#[test]
fn a_service_is_found_by_name_and_by_id_until_it_is_withdrawn_or_its_lease_is_over() {
    let Some(fabric) = crate::fabric(Topology::two_switches_four_hosts()) else {
        return;
    };
    let provider = gid(&fabric, "Host4").to_string();
    let find = |service: &str| at(&fabric, "Host2", &["find", service]);
    let expected = format!("unbound 22\nresolved\n{provider} 0xffff {ID} ");
    let (none, seeker) = ("unbound 22\nerror -2\n", gid(&fabric, "Host2"));
    assert_eq!(find(NAME), none);
    at(&fabric, "Host4", &["register", NAME, ID, "3600"]);
    for service in [NAME, ID] {
        assert_eq!(find(service), format!("{expected}{seeker}\n"));
    }
    at(&fabric, "Host4", &["withdraw", NAME, ID]);
    assert_eq!(find(NAME), none);
    assert_eq!(find(ID), none);
    at(&fabric, "Host4", &["register", NAME, ID, "2"]);
    let deadline = Instant::now() + PATIENCE;
    while find(NAME) != none {
        assert!(Instant::now() < deadline, "its lease must expire");
        std::thread::sleep(Duration::from_millis(200));
    }
}
