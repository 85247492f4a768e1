//! Firewall and address translation rules in a common form, and their effect on a RoCEv2 packet.
//!
//! Only the protocol and the destination port of the packet are known. So a condition on anything else may or may not
//! hold.

use std::net::IpAddr;

/// Maximum number of nested jumps; netfilter allows no more.
const JUMPS_MAX: usize = 16;
/// Maximum number of rules evaluated for one packet, far more than on any real system.
const STEPS_MAX: usize = 200_000;

/// All rules of a machine.
#[derive(Clone, Debug, Default)]
pub(super) struct Ruleset {
    pub(super) chains: Vec<Chain>,
    /// The tools that listed them.
    pub(super) tools: Vec<&'static str>,
}

/// A list of rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Chain {
    /// Table and name in the usual form: `inet filter/input`.
    pub(super) table: String,
    pub(super) name: String,
    /// The tool that listed it, once known.
    pub(super) tool: &'static str,
    /// The hook that enters it; other chains are only jumped to.
    pub(super) hook: Option<Hook>,
    pub(super) drops_by_default: bool,
    pub(super) rules: Vec<Rule>,
}

/// A netfilter hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hook {
    Prerouting,
    Input,
    Output,
    Postrouting,
    /// For packets of other hosts.
    Forward,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    /// The rule in the tool's syntax.
    pub(super) text: String,
    pub(super) conditions: Vec<Condition>,
    pub(super) action: Action,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    /// Whether the protocol is UDP; `false` means another one.
    Udp(bool),
    /// The destination port: whether 4791 is among the matching ones.
    Port(bool),
    /// Whether the source address is within a prefix.
    Source {
        address: IpAddr,
        length: u8,
        negated: bool,
    },
    /// The protocol or the port is compared with values that are not known here, such as those of a named set.
    Elsewhere,
    /// Anything else.
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Accept,
    Drop,
    /// Returns to the calling chain.
    Return,
    Jump(String),
    /// A verdict map: each condition with its action.
    Map(Vec<(Condition, Action)>),
    /// The sender's address is replaced.
    SourceNat,
    /// The destination's address or port is replaced.
    DestinationNat,
    /// The packet continues at the next rule.
    Nothing,
}

/// The result for a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Passes,
    /// It is dropped: the chain, and the rule or the chain's policy.
    Stops {
        chain: String,
        rule: Option<String>,
        tool: &'static str,
        /// Whether no earlier rule may have accepted it.
        is_certain: bool,
    },
}

/// A rule that translates addresses, which RoCEv2's checksum covers.
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

/// What a rule does under some conditions.
struct Case<'a> {
    conditions: Vec<&'a Condition>,
    action: &'a Action,
}

impl Case<'_> {
    fn holds(&self) -> Holds {
        let mut all = Holds::Yes;
        for condition in &self.conditions {
            match condition {
                Condition::Udp(false) | Condition::Port(false) => return Holds::No,
                Condition::Udp(true) | Condition::Port(true) => {}
                Condition::Source { .. } | Condition::Elsewhere | Condition::Other => {
                    all = Holds::Maybe;
                }
            }
        }
        all
    }

    /// Whether it matches our port explicitly.
    fn names_port(&self) -> bool {
        self.conditions.contains(&&Condition::Port(true))
    }

    /// Whether it may match our port explicitly.
    fn may_name_port(&self) -> bool {
        self.conditions.contains(&&Condition::Elsewhere)
    }
}

impl Rule {
    /// The rule as a case, or each case of its verdict map.
    fn cases(&self) -> Box<dyn Iterator<Item = Case<'_>> + '_> {
        let conditions = || self.conditions.iter();
        match &self.action {
            Action::Map(map) => Box::new(map.iter().map(move |(condition, action)| Case {
                conditions: conditions().chain([condition]).collect(),
                action,
            })),
            action => Box::new(std::iter::once(Case {
                conditions: conditions().collect(),
                action,
            })),
        }
    }

    fn is_possible(&self) -> bool {
        self.cases().any(|case| case.holds() != Holds::No)
    }

    /// Whether it matches our port explicitly.
    fn names_port(&self) -> bool {
        self.conditions.contains(&Condition::Port(true))
    }

    /// Whether it can match packets from one of these source addresses.
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

/// The result of evaluating a chain.
enum Walk {
    /// Reached the end: continue with the calling chain's next rule, or the policy.
    Through,
    Accepted,
    Stopped {
        chain: String,
        rule: String,
        tool: &'static str,
    },
}

/// What is known while a hook's chain is evaluated.
struct Progress {
    steps_left: usize,
    /// Whether a rule was passed that may have accepted the packet for its port.
    may_accept: bool,
}

impl Ruleset {
    /// The result for a packet to our port at a hook: the first chain that stops it decides, if one does for certain.
    pub(super) fn fate(&self, hook: Hook) -> Fate {
        let mut fate = Fate::Passes;
        for chain in self.chains.iter().filter(|chain| chain.hook == Some(hook)) {
            let mut progress = Progress {
                steps_left: STEPS_MAX,
                may_accept: false,
            };
            let walked = self.walk(chain, 0, &mut progress);
            let is_certain = !progress.may_accept;
            let stops = match walked {
                Walk::Stopped { chain, rule, tool } => Fate::Stops {
                    chain,
                    rule: Some(rule),
                    tool,
                    is_certain,
                },
                Walk::Through if chain.drops_by_default => Fate::Stops {
                    chain: chain.path(),
                    rule: None,
                    tool: chain.tool,
                    is_certain,
                },
                Walk::Accepted | Walk::Through => continue,
            };
            if is_certain {
                return stops;
            }
            if fate == Fate::Passes {
                fate = stops;
            }
        }
        fate
    }

    fn walk(&self, chain: &Chain, depth: usize, progress: &mut Progress) -> Walk {
        for rule in &chain.rules {
            for case in rule.cases() {
                if progress.steps_left == 0 {
                    return Walk::Through;
                }
                progress.steps_left -= 1;
                let holds = case.holds();
                match (case.action, holds) {
                    (_, Holds::No) => {}
                    // An explicit exception for the port counts, whatever its other conditions.
                    (Action::Accept, _) if holds == Holds::Yes || case.names_port() => {
                        // If a rule with other conditions jumps here, the caller goes on.
                        progress.may_accept |= case.names_port();
                        return Walk::Accepted;
                    }
                    // If a rule may or may not accept the packet, continue as if it did not.
                    (Action::Accept, Holds::Maybe) => progress.may_accept |= case.may_name_port(),
                    (Action::Return, Holds::Yes) => return Walk::Through,
                    (Action::Drop, Holds::Yes) => return chain.stops(rule),
                    (Action::Drop, Holds::Maybe) if case.names_port() => return chain.stops(rule),
                    (Action::Jump(to), _) if depth < JUMPS_MAX => {
                        let target = self
                            .chains
                            .iter()
                            .find(|c| c.table == chain.table && c.name == *to);
                        let walked = target.map(|target| self.walk(target, depth + 1, progress));
                        match (walked, holds) {
                            (Some(Walk::Accepted), Holds::Yes) => return Walk::Accepted,
                            (Some(stopped @ Walk::Stopped { .. }), Holds::Yes) => return stopped,
                            _ => {}
                        }
                    }
                    _ => {}
                }
            }
        }
        Walk::Through
    }

    /// The rules that would translate addresses or ports of packets from a host with these addresses.
    pub(super) fn translations(&self, own: &[IpAddr]) -> Vec<Translation> {
        let is_translation =
            |rule: &Rule| matches!(rule.action, Action::SourceNat | Action::DestinationNat);
        let mut found = Vec::new();
        for chain in &self.chains {
            for rule in chain.rules.iter().filter(|rule| is_translation(rule)) {
                let is_ours = match rule.action {
                    // Port forwarding matches the port explicitly.
                    Action::DestinationNat => rule.names_port(),
                    _ => rule.concerns(own),
                };
                if rule.is_possible() && is_ours {
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

/// Whether an address is within a prefix; `false` if the families differ.
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
