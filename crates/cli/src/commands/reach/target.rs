//! A GID to check.

use std::net::IpAddr;

use nix::net::if_::if_nametoindex;
use portolan::wire::addr::Gid;

/// A GID, and the network interface of its zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) gid: Gid,
    pub(super) interface_index: Option<u32>,
}

impl Target {
    /// Reads a GID: `fe80::1`, `fe80::1%eth0`, `10.0.0.7`, or eight groups of four digits.
    ///
    /// # Errors
    /// The text is not a GID.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (address, zone) = match text.split_once('%') {
            Some((address, zone)) => (address, Some(zone)),
            None => (text, None),
        };
        let ip: IpAddr = address.parse().map_err(|_| {
            "a GID expected: an IPv6 address, or an IPv4 address for RoCE".to_owned()
        })?;
        let index = |zone: &str| {
            let by_name = if_nametoindex(zone).ok();
            let index = by_name.or_else(|| zone.parse().ok().filter(|index| *index > 0));
            index.ok_or_else(|| format!("there is no network interface {zone}"))
        };
        Ok(Self {
            gid: Gid::from_ip(ip),
            interface_index: zone.map(index).transpose()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gids_are_addresses_of_either_family_with_a_zone_or_without() {
        let gid = |text: &str| Target::parse(text).unwrap().gid.to_string();
        assert_eq!(gid("10.0.0.7"), "::ffff:10.0.0.7");
        assert_eq!(gid("::ffff:10.0.0.7"), "::ffff:10.0.0.7");
        assert_eq!(
            gid("fe80:0000:0000:0000:0000:00ff:fe00:0001"),
            "fe80::ff:fe00:1"
        );
        assert_eq!(Target::parse("::1%lo").unwrap().interface_index, Some(1));
        for wrong in [
            "",
            "x",
            "10.0.0",
            "fe80::1%",
            "fe80::1%no-such-if",
            "fe80::1%0",
            "::1::2",
        ] {
            assert!(Target::parse(wrong).is_err(), "{wrong}");
        }
    }
}
