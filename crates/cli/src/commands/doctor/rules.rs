//! Firewall and address translation rules, in one form whatever tool told of them; and what becomes of a
//! RoCEv2 packet that meets them.
//!
//! The packet is known by its protocol and its destination port alone, so a condition on anything else
//! may or may not hold.

use std::net::IpAddr;

/// Jumps followed; netfilter allows no more.
const JUMPS_MAX: usize = 16;
/// Rules looked at for one packet: far more than any kernel would put up with.
const STEPS_MAX: usize = 200_000;

/// All rules of a machine.
#[derive(Clone, Debug, Default)]
pub(super) struct Ruleset {
    pub(super) chains: Vec<Chain>,
    /// The tools that told of them.
    pub(super) tools: Vec<&'static str>,
}

/// A list of rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Chain {
    /// Table and name, as people know it: `inet filter/input`.
    pub(super) table: String,
    pub(super) name: String,
    /// The tool that told of it, once that is settled.
    pub(super) tool: &'static str,
    /// Where the kernel enters it; others are jumped to.
    pub(super) hook: Option<Hook>,
    pub(super) drops_by_default: bool,
    pub(super) rules: Vec<Rule>,
}

/// Where a packet meets rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hook {
    Prerouting,
    Input,
    Output,
    Postrouting,
    /// Of other hosts' packets.
    Forward,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    /// As the tool writes it.
    pub(super) text: String,
    pub(super) conditions: Vec<Condition>,
    pub(super) action: Action,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    /// It is about UDP, or about something else.
    Udp(bool),
    /// The destination port: whether 4791 is among those that it is about.
    Port(bool),
    /// The sender's address is within a prefix, or is not.
    Source {
        address: IpAddr,
        length: u8,
        negated: bool,
    },
    /// Anything else.
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Accept,
    Drop,
    /// Back to where it was jumped from.
    Return,
    Jump(String),
    /// The sender's address is replaced.
    SourceNat,
    /// The destination's address or port is replaced.
    DestinationNat,
    /// The packet continues at the next rule.
    Nothing,
}

/// What becomes of the packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Passes,
    /// It does not pass: the chain, and the rule or the chain's policy.
    Stops {
        chain: String,
        rule: Option<String>,
        tool: &'static str,
    },
}

/// A rule that changes addresses, which RoCEv2's checksum covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Translation {
    pub(super) chain: String,
    pub(super) rule: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    No,
    Maybe,
    Yes,
}

impl Rule {
    fn holds(&self) -> Holds {
        let mut all = Holds::Yes;
        for condition in &self.conditions {
            match condition {
                Condition::Udp(false) | Condition::Port(false) => return Holds::No,
                Condition::Udp(true) | Condition::Port(true) => {}
                Condition::Source { .. } | Condition::Other => all = Holds::Maybe,
            }
        }
        all
    }

    /// It is about our port in so many words.
    fn names_port(&self) -> bool {
        self.conditions.contains(&Condition::Port(true))
    }

    /// It can concern packets of a sender that has one of these addresses.
    fn concerns(&self, addresses: &[IpAddr]) -> bool {
        self.conditions.iter().all(|condition| match condition {
            Condition::Source {
                address,
                length,
                negated,
            } => addresses
                .iter()
                .any(|own| is_within(*own, *address, *length) != *negated),
            _ => true,
        })
    }
}

/// What a walk through a chain comes to.
enum Walk {
    /// To the end: the next rule of the chain that jumped here, or the policy.
    Through,
    Accepted,
    Stopped {
        chain: String,
        rule: String,
        tool: &'static str,
    },
}

impl Ruleset {
    /// What becomes of a packet to our port at a hook: the first chain that stops it decides.
    pub(super) fn fate(&self, hook: Hook) -> Fate {
        for chain in self.chains.iter().filter(|chain| chain.hook == Some(hook)) {
            let mut steps = STEPS_MAX;
            match self.walk(chain, 0, &mut steps) {
                Walk::Accepted => {}
                Walk::Stopped { chain, rule, tool } => {
                    let rule = Some(rule);
                    return Fate::Stops { chain, rule, tool };
                }
                Walk::Through if chain.drops_by_default => {
                    return Fate::Stops {
                        chain: chain.path(),
                        rule: None,
                        tool: chain.tool,
                    };
                }
                Walk::Through => {}
            }
        }
        Fate::Passes
    }

    fn walk(&self, chain: &Chain, depth: usize, steps: &mut usize) -> Walk {
        for rule in &chain.rules {
            if *steps == 0 {
                return Walk::Through;
            }
            *steps -= 1;
            let holds = rule.holds();
            match (&rule.action, holds) {
                (_, Holds::No) => {}
                // What may or may not be let through is looked at further on, as if it were not.
                (Action::Accept, Holds::Yes) => return Walk::Accepted,
                // The port's own exception counts, whatever else it asks.
                (Action::Accept, Holds::Maybe) if rule.names_port() => return Walk::Accepted,
                (Action::Return, Holds::Yes) => return Walk::Through,
                (Action::Drop, Holds::Yes) => return chain.stops(rule),
                (Action::Drop, Holds::Maybe) if rule.names_port() => return chain.stops(rule),
                (Action::Jump(to), _) if depth < JUMPS_MAX => {
                    let target = self
                        .chains
                        .iter()
                        .find(|c| c.table == chain.table && c.name == *to);
                    let walked = target.map(|target| self.walk(target, depth + 1, steps));
                    match (walked, holds) {
                        (Some(Walk::Accepted), Holds::Yes) => return Walk::Accepted,
                        (Some(stopped @ Walk::Stopped { .. }), Holds::Yes) => return stopped,
                        _ => {}
                    }
                }
                _ => {}
            }
        }
        Walk::Through
    }

    /// The rules that would change addresses or ports of our packets, of a host with these addresses.
    pub(super) fn translations(&self, own: &[IpAddr]) -> Vec<Translation> {
        let is_translation =
            |rule: &Rule| matches!(rule.action, Action::SourceNat | Action::DestinationNat);
        let mut found = Vec::new();
        for chain in &self.chains {
            for rule in chain.rules.iter().filter(|rule| is_translation(rule)) {
                let is_ours = match rule.action {
                    // Whom a port is forwarded for, that is said in so many words.
                    Action::DestinationNat => rule.names_port(),
                    _ => rule.concerns(own),
                };
                if rule.holds() != Holds::No && is_ours {
                    found.push(Translation {
                        chain: chain.path(),
                        rule: rule.text.clone(),
                    });
                }
            }
        }
        found
    }

    pub(super) fn rules(&self) -> usize {
        self.chains.iter().map(|chain| chain.rules.len()).sum()
    }
}

impl Chain {
    pub(super) fn path(&self) -> String {
        format!("{}/{}", self.table, self.name)
    }

    fn stops(&self, rule: &Rule) -> Walk {
        Walk::Stopped {
            chain: self.path(),
            rule: rule.text.clone(),
            tool: self.tool,
        }
    }
}

/// Whether an address is within a prefix; of another family it is not.
pub(super) fn is_within(address: IpAddr, prefix: IpAddr, length: u8) -> bool {
    let shift = |bits: u32| bits.saturating_sub(u32::from(length));
    match (address, prefix) {
        (IpAddr::V4(address), IpAddr::V4(prefix)) => {
            let differ = address.to_bits() ^ prefix.to_bits();
            differ.checked_shr(shift(32)).unwrap_or(0) == 0
        }
        (IpAddr::V6(address), IpAddr::V6(prefix)) => {
            let differ = address.to_bits() ^ prefix.to_bits();
            differ.checked_shr(shift(128)).unwrap_or(0) == 0
        }
        _ => false,
    }
}
