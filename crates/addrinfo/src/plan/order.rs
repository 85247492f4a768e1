//! The order of the results (RFC 6724 section 6).
//!
//! The resolver orders addresses by the sources that routing would select. If the source is given,
//! the rules that depend on it are applied again, with the policy table of RFC 6724 section 2.1.

use std::cmp::Reverse;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use portolan_provider::Address;

use super::candidate::{Candidate, ip_of};
use crate::explain::{Decision, OrderRule};

/// Scopes numbered as in multicast addresses (RFC 4291 section 2.7), so that they compare (RFC 6724
/// section 3.1).
const LINK_LOCAL: u8 = 0x2;
const SITE_LOCAL: u8 = 0x5;
const GLOBAL: u8 = 0xE;
/// Maximum length of the common prefix that is compared: the subnet prefix of an interface's
/// address (RFC 4291 section 2.5.1).
const PREFIX_BITS_MAX: u32 = 64;

/// The default policy table (RFC 6724 section 2.1): prefix, its length, precedence, label. Longest first.
const POLICY: [(Ipv6Addr, u32, u8, u8); 9] = [
    (Ipv6Addr::LOCALHOST, 128, 50, 0),
    (Ipv4Addr::UNSPECIFIED.to_ipv6_mapped(), 96, 35, 4),
    (Ipv6Addr::UNSPECIFIED, 96, 1, 3),
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 32, 5, 5),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16, 30, 2),
    (Ipv6Addr::new(0x3FFE, 0, 0, 0, 0, 0, 0, 0), 16, 1, 12),
    (Ipv6Addr::new(0xFEC0, 0, 0, 0, 0, 0, 0, 0), 10, 1, 11),
    (Ipv6Addr::new(0xFC00, 0, 0, 0, 0, 0, 0, 0), 7, 3, 13),
    (Ipv6Addr::UNSPECIFIED, 0, 40, 1),
];

/// The sort key, in the order of RFC 6724's rules; smaller sorts first. Ties keep the resolver's
/// order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    /// Rule 1.
    is_unusable: bool,
    /// The rules that depend on a given source.
    from_source: Option<FromSource>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FromSource {
    /// Rule 2.
    is_of_other_scope: bool,
    /// Rule 5.
    is_of_other_label: bool,
    /// Rule 6.
    precedence: Reverse<u8>,
    /// Rule 8.
    scope: u8,
    /// Rule 9.
    common_prefix: Reverse<u32>,
}

/// Sorts candidates and stores each one's position.
pub(super) fn in_order(mut candidates: Vec<Candidate>) -> Vec<Candidate> {
    let of = candidates.len();
    if of > 1 {
        candidates.sort_by_cached_key(Rank::of);
    }
    let mut before = None;
    for (at, candidate) in candidates.iter_mut().enumerate() {
        let rank = Rank::of(candidate);
        let rule = before.replace(rank).map(|before| rank.rule_after(before));
        let position = at + 1;
        candidate
            .decisions
            .push(Decision::Order { position, of, rule });
    }
    candidates
}

impl Rank {
    fn of(candidate: &Candidate) -> Self {
        let is_given_ip = |source: &Address| candidate.is_pinned && source.inet().is_some();
        let source = candidate.src.filter(is_given_ip);
        let ends = source.zip(candidate.dst);
        Self {
            is_unusable: !candidate.is_usable,
            from_source: ends.map(|(from, to)| FromSource::of(ip_of(&from), ip_of(&to))),
        }
    }

    /// The rule that places this after another.
    fn rule_after(self, before: Self) -> OrderRule {
        if self.is_unusable != before.is_unusable {
            return OrderRule::Unusable;
        }
        let (Some(this), Some(before)) = (self.from_source, before.from_source) else {
            return OrderRule::Resolver;
        };
        if this.is_of_other_scope != before.is_of_other_scope {
            OrderRule::MatchingScope
        } else if this.is_of_other_label != before.is_of_other_label {
            OrderRule::MatchingLabel
        } else if this.precedence != before.precedence {
            OrderRule::Precedence
        } else if this.scope != before.scope {
            OrderRule::SmallerScope
        } else if this.common_prefix != before.common_prefix {
            OrderRule::LongestPrefix
        } else {
            OrderRule::Resolver
        }
    }
}

impl FromSource {
    fn of(from: IpAddr, to: IpAddr) -> Self {
        let ((_, own_label), (precedence, label)) = (policy(from), policy(to));
        // For IPv4 the rule would always prefer the same one of several equivalent addresses.
        let common_prefix = match (from, to) {
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let differing = from.to_bits() ^ to.to_bits();
                differing.leading_zeros().min(PREFIX_BITS_MAX)
            }
            _ => 0,
        };
        Self {
            is_of_other_scope: scope(to) != scope(from),
            is_of_other_label: label != own_label,
            precedence: Reverse(precedence),
            scope: scope(to),
            common_prefix: Reverse(common_prefix),
        }
    }
}

/// Precedence and label.
fn policy(address: IpAddr) -> (u8, u8) {
    let bits = mapped(address).to_bits();
    let matches = |prefix: Ipv6Addr, length: u32| {
        let differing = bits ^ prefix.to_bits();
        differing.leading_zeros() >= length
    };
    let mut rows = POLICY.into_iter();
    let found = rows.find(|(prefix, length, ..)| matches(*prefix, *length));
    found.map_or((0, 0), |(_, _, precedence, label)| (precedence, label))
}

/// The scope of an address (RFC 6724 sections 3.1 and 3.2).
fn scope(address: IpAddr) -> u8 {
    match address.to_canonical() {
        IpAddr::V4(v4) if v4.is_loopback() || v4.is_link_local() => LINK_LOCAL,
        IpAddr::V4(_) => GLOBAL,
        IpAddr::V6(v6) if v6.is_multicast() => v6.octets()[1] & 0xF,
        IpAddr::V6(v6) if v6.is_loopback() || v6.is_unicast_link_local() => LINK_LOCAL,
        IpAddr::V6(v6) if v6.segments()[0] & 0xFFC0 == 0xFEC0 => SITE_LOCAL,
        IpAddr::V6(_) => GLOBAL,
    }
}

fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ordered(source: &str, destinations: &[&str]) -> (Vec<String>, Vec<Option<OrderRule>>) {
        let inet = |text: &str| -> Address {
            let ip: IpAddr = text.parse().expect("an address");
            Address::Inet((ip, 0).into())
        };
        let candidate = |text: &&str| {
            let mut candidate = Candidate::new(Some(inet(text)), None, Decision::Numeric);
            candidate.pin(inet(source));
            candidate
        };
        let placed = in_order(destinations.iter().map(candidate).collect());
        let text = |candidate: &Candidate| candidate.dst.map(|to| ip_of(&to).to_string());
        let texts = placed.iter().filter_map(text).collect();
        let rule = |candidate: &Candidate| match candidate.decisions.last() {
            Some(Decision::Order { rule, .. }) => *rule,
            other => panic!("{other:?}"),
        };
        (texts, placed.iter().map(rule).collect())
    }

    #[test]
    fn each_rule_that_a_given_source_decides_puts_its_destination_first() {
        use OrderRule as R;
        for (source, first, second, rule) in [
            // The examples of RFC 6724 section 10.2, each with its source.
            ("fe80::1", "fe80::2", "2001:db8:1::1", R::MatchingScope),
            (
                "2001:db8:3::2",
                "2001:db8:1::1",
                "fe80::1",
                R::MatchingScope,
            ),
            (
                "2002:c633:6401::2",
                "2002:c633:6401::1",
                "2001:db8:1::1",
                R::MatchingLabel,
            ),
            ("fd00::1", "fd00::2", "2001:db8::2", R::MatchingLabel),
            ("2001:db8::1", "2002::1", "fd00::1", R::Precedence),
            (
                "2001:db8:1::2",
                "2001:db8:1::1",
                "2001:db8:3ffe::1",
                R::LongestPrefix,
            ),
            (
                "169.254.13.78",
                "169.254.1.1",
                "198.51.100.121",
                R::MatchingScope,
            ),
            (
                "198.51.100.117",
                "198.51.100.121",
                "169.254.1.1",
                R::MatchingScope,
            ),
            ("fec0::1", "fe80::2", "2001:db8::1", R::SmallerScope),
            // No rule decides: the resolver's order stays.
            ("10.0.0.1", "192.0.2.1", "10.0.0.2", R::Resolver),
        ] {
            let expected = ([first, second], [None, Some(rule)]);
            let (texts, rules) = ordered(source, &[first, second]);
            assert_eq!(
                (&texts[..], &rules[..]),
                (&expected.0.map(String::from)[..], &expected.1[..])
            );
            if rule != R::Resolver {
                let (texts, rules) = ordered(source, &[second, first]);
                assert_eq!(
                    (&texts[..], &rules[..]),
                    (&expected.0.map(String::from)[..], &expected.1[..])
                );
            }
        }
    }

    #[test]
    fn the_policy_is_that_of_the_longest_prefix() {
        for (text, expected) in [
            ("::1", (50, 0)),
            ("2001:db8::1", (40, 1)),
            ("10.0.0.1", (35, 4)),
            ("2002::1", (30, 2)),
            ("2001::1", (5, 5)),
            ("fd00::1", (3, 13)),
            ("::192.0.2.1", (1, 3)),
            ("fec0::1", (1, 11)),
            ("3ffe::1", (1, 12)),
        ] {
            assert_eq!(
                policy(text.parse().expect("an address")),
                expected,
                "{text}"
            );
        }
    }
}
