//! Addresses as text and as bytes: reading the output returns the same address.

use portolan_provider::address::{IbText, SOCKADDR_LEN_MAX};
use portolan_provider::{Address, SockaddrIb};
use portolan_wire::addr::{Gid, PKey};
use proptest::prelude::*;

fn ib() -> impl Strategy<Value = SockaddrIb> {
    (
        any::<[u8; 16]>(),
        any::<(u16, u32, u64, u64, u64)>(),
        any::<[bool; 3]>(),
    )
        .prop_map(
            |(gid, (pkey, flowinfo, sid, sid_mask, scope_id), [flow, mask, scope])| SockaddrIb {
                pkey: PKey(pkey),
                flowinfo: if flow { flowinfo } else { 0 },
                gid: Gid(gid),
                sid,
                sid_mask: if mask { sid_mask } else { u64::MAX },
                scope_id: if scope { scope_id } else { 0 },
            },
        )
}

fn address() -> impl Strategy<Value = Address> {
    prop_oneof![
        ib().prop_map(Address::Ib),
        any::<std::net::SocketAddr>().prop_map(Address::Inet),
    ]
}

proptest! {
    #[test]
    fn a_printed_ib_address_parses_to_the_same_address(address in ib()) {
        prop_assert_eq!(address.to_string().parse(), Ok(address));
    }

    #[test]
    fn the_order_of_keys_does_not_matter(address in ib()) {
        let text = address.to_string();
        let (gid, keys) = text.split_once(',').expect("keys");
        let mut keys: Vec<_> = keys.split(',').collect();
        keys.reverse();
        let turned = format!("{gid},{}", keys.join(","));
        prop_assert_eq!(turned.parse(), Ok(address));
    }

    #[test]
    fn any_text_is_refused_or_survives_printing(text in "[0-9a-f:]{0,8}(%[0-9a-z]{0,3})?(,[a-z]{3,4}=(0x)?[0-9a-f:]{0,5}){0,3}") {
        if let Ok(address) = text.parse::<SockaddrIb>() {
            prop_assert_eq!(address.to_string().parse(), Ok(address));
        }
    }

    #[test]
    fn no_text_panics(text: String) {
        let _ = IbText::parse(&text);
        let _ = text.parse::<SockaddrIb>();
    }

    #[test]
    fn an_address_written_as_bytes_parses_to_the_same_address(address in address()) {
        let bytes = address.to_sockaddr();
        prop_assert!(bytes.len() <= SOCKADDR_LEN_MAX);
        prop_assert_eq!(Address::from_sockaddr(&bytes), Ok(address));
    }

    #[test]
    fn any_bytes_are_refused_or_written_as_the_same(family in prop::sample::select(vec![2u16, 10, 27, 1]), rest in prop::collection::vec(any::<u8>(), 0..64)) {
        let mut bytes = family.to_ne_bytes().to_vec();
        bytes.extend(rest);
        if let Ok(address) = Address::from_sockaddr(&bytes) {
            let again = address.to_sockaddr();
            prop_assert_eq!(again.len(), bytes.len());
            // The padding of sockaddr_in is written as zero, regardless of the input.
            let significant = if bytes.len() == 16 { 8 } else { bytes.len() };
            prop_assert_eq!(&again[..significant], &bytes[..significant]);
        }
    }
}
