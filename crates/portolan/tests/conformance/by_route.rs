//! The choice of the provider: the pinned one; otherwise the one that serves the route to the destination or
//! the listener's address.
//!
//! `PORTOLAN_TEST_ROUTES` lists local addresses with their providers, such as
//! `10.7.0.1=kernel,10.8.0.1=software`. The default is only the loopback address, which the software device
//! serves on any machine.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Once;

use portolan::provider::{self, Reason, configure_software, pin, towards};
use portolan::resolve::{Hints, Request};
use portolan::software::SoftwareConfig;
use portolan::{Connector, Listener};

use crate::pair::*;

/// Environment variable with the addresses and their providers.
const ROUTES_ENV: &str = "PORTOLAN_TEST_ROUTES";
/// A UDP port for the software device if the kernel's rdma_rxe holds RoCE's own port.
const SOFTWARE_PORT: u16 = 14_791;

/// Local addresses and the names of their providers.
fn routes() -> Vec<(IpAddr, String)> {
    static MOVED: Once = Once::new();
    let pinned = std::env::var(provider::PROVIDER_ENV).ok();
    let Ok(text) = std::env::var(ROUTES_ENV) else {
        let name = pinned.unwrap_or_else(|| "software".into());
        return vec![(local_ip(), name)];
    };
    MOVED.call_once(|| {
        let mut config = SoftwareConfig::default();
        config.stack.group.port = SOFTWARE_PORT;
        configure_software(config).unwrap();
    });
    let each = text.split(',').map(|route| {
        let (address, name) = route.split_once('=').unwrap();
        (address.parse().unwrap(), name.to_owned())
    });
    each.collect()
}

/// Connects to the listener without naming a provider, and moves bytes.
fn moves_bytes(listener: &Listener, to: SocketAddr) {
    let connector = Connector::new().timeout(PATIENCE);
    std::thread::scope(|scope| {
        let active = scope.spawn(move || connector.connect_to(to).unwrap());
        let passive = listener.accept_within(PATIENCE).unwrap().accept().unwrap();
        let active = active.join().unwrap();
        let sent = active.send(active.buffer_from(b"ahoy").unwrap()).unwrap();
        assert_eq!(&passive.receive_within(PATIENCE).unwrap()[..], b"ahoy");
        sent.wait().unwrap();
    });
}

#[test]
fn each_destination_uses_the_provider_of_its_route() {
    for (ip, name) in routes() {
        let listener = Listener::bind_to(SocketAddr::new(ip, 0)).unwrap();
        assert_eq!(listener.providers().collect::<Vec<_>>(), [&name], "{ip}");
        let to = listener.local_addr().unwrap();
        assert_eq!(towards(None, to).unwrap().provider.name(), name, "{to}");
        moves_bytes(&listener, to);
    }
}

#[test]
fn a_listener_at_the_wildcard_address_is_reached_at_the_addresses_of_every_provider() {
    let routes = routes();
    for family in ["0.0.0.0", "::"] {
        let wildcard: IpAddr = family.parse().unwrap();
        let mut mine = routes
            .iter()
            .filter(|(ip, _)| ip.is_ipv4() == wildcard.is_ipv4())
            .peekable();
        if mine.peek().is_none() {
            continue;
        }
        let listener = Listener::bind_to(SocketAddr::new(wildcard, 0)).unwrap();
        let providers: BTreeSet<_> = listener.providers().collect();
        let expected: BTreeSet<_> = mine.clone().map(|(_, name)| name.as_str()).collect();
        assert!(providers.is_superset(&expected), "{providers:?}");
        let port = listener.local_addr().unwrap().port();
        for (ip, _) in mine {
            moves_bytes(&listener, SocketAddr::new(*ip, port));
        }
    }
}

#[test]
fn resolving_reports_the_provider_and_why() {
    for (ip, name) in routes() {
        let text = ip.to_string();
        let request = Request::new(Some(&text), Some("7471")).hints(Hints::new());
        let found = request.addresses().unwrap().next().unwrap();
        let explained = found.explain.to_string();
        let wanted = format!("provider {name}: ");
        assert!(explained.contains(&wanted), "{explained}");
    }
}

#[test]
fn a_pinned_provider_is_used_whatever_the_route() {
    if std::env::var_os(ROUTES_ENV).is_none() {
        // Other tests of this process must not be moved to another provider. If there is only one provider,
        // pinning it moves none.
        let to = SocketAddr::new(local_ip(), 7471);
        let name = provider().name();
        let all = [provider::Choice::Kernel, provider::Choice::Software];
        pin(all.into_iter().find(|choice| choice.name() == name));
        let chosen = towards(None, to).unwrap();
        pin(None);
        assert_eq!(chosen.provider.name(), name);
        assert_eq!(chosen.reason.to_string(), "the program pins it");
        return;
    }
    for (ip, _) in routes() {
        for choice in [provider::Choice::Kernel, provider::Choice::Software] {
            pin(Some(choice));
            let chosen = towards(None, SocketAddr::new(ip, 7471));
            pin(None);
            let chosen = chosen.unwrap();
            assert_eq!(chosen.provider.name(), choice.name());
            assert!(matches!(chosen.reason, Reason::Pinned(_)));
        }
    }
}
