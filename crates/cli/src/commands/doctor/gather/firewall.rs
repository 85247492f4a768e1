//! The firewall's rules, from the installed tools.

use super::super::facts::Unseen;
use super::super::rules::{Chain, Ruleset};
use super::{iptables, nft, tool};

/// The iptables tools with their family: current and legacy variants, each with its own tables.
const SAVERS: [(&str, &str); 4] = [
    ("iptables-save", "ip"),
    ("ip6tables-save", "ip6"),
    ("iptables-legacy-save", "ip"),
    ("ip6tables-legacy-save", "ip6"),
];

pub(super) fn look(unseen: &mut Vec<Unseen>) -> Ruleset {
    let mut rules = Ruleset::default();
    let mut shared = Vec::new();
    let mut complaints = Vec::new();
    for (name, family) in SAVERS {
        let Some(program) = tool::find(name) else {
            continue;
        };
        match tool::run(&program, &[]) {
            Ok(text) => {
                let (chains, is_nft) = iptables::parse(&text, family);
                // The plain name may be the same tool as one of the others.
                let is_same = |one: &Chain, other: &Chain| {
                    (&one.table, &one.name, &one.rules) == (&other.table, &other.name, &other.rules)
                };
                let is_told = |one: &Chain| rules.chains.iter().any(|other| is_same(one, other));
                let is_new = chains.iter().any(|chain| !is_told(chain));
                if is_nft {
                    let chains = chains.iter();
                    shared.extend(chains.map(|chain| (chain.table.clone(), chain.name.clone())));
                }
                if is_new {
                    let chains = chains.into_iter().map(|chain| Chain {
                        tool: name,
                        ..chain
                    });
                    rules.chains.extend(chains);
                }
                rules.tools.push(name);
            }
            Err(why) => complaints.push((name, why)),
        }
    }
    if let Some(program) = tool::find("nft") {
        match tool::run(&program, &["-j", "list", "ruleset"]) {
            Ok(text) => match nft::parse(&text) {
                Some(chains) => {
                    // iptables lists its own chains within nftables more readably.
                    let is_told = |chain: &Chain| {
                        let mut told = shared.iter();
                        told.any(|(table, name)| (table, name) == (&chain.table, &chain.name))
                    };
                    let others = chains.into_iter().filter(|chain| !is_told(chain));
                    rules.chains.extend(others);
                    rules.tools.push("nft");
                }
                None => complaints.push(("nft", "its output cannot be parsed".into())),
            },
            Err(why) => complaints.push(("nft", why)),
        }
    }
    // One successful tool is enough: each reads its own tables, but a kernel rarely has all of them.
    if rules.tools.is_empty() {
        let why = match complaints.first() {
            None => "neither nft nor iptables is installed (apt-get install nftables)".to_owned(),
            Some(_) if !rustix::process::geteuid().is_root() => {
                "only root can list them".to_owned()
            }
            Some((tool, why)) => format!("{tool}: {why}"),
        };
        unseen.push(Unseen {
            what: "firewall rules".into(),
            why,
        });
    }
    rules
}
