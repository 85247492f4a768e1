//! Parses the output of `iptables-save` and its variants (iptables-extensions(8)).

use std::net::IpAddr;

use super::ROCE_PORT;
use super::nft::hook_of;
use crate::commands::doctor::rules::{Action, Chain, Condition, Rule};

/// Parses the chains saved by a tool of this family (`ip` or `ip6`); also returns whether they are nftables' own
/// tables.
pub(super) fn parse(text: &str, family: &str) -> (Vec<Chain>, bool) {
    let is_nft = text
        .lines()
        .any(|line| line.starts_with('#') && line.contains("(nf_tables)"));
    let mut chains: Vec<Chain> = Vec::new();
    let mut table = String::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = format!("{family} {name}");
        } else if let Some(chain) = line.strip_prefix(':') {
            let mut words = chain.split_whitespace();
            let name = words.next().unwrap_or_default();
            let policy = words.next();
            chains.push(Chain {
                table: table.clone(),
                name: name.to_owned(),
                tool: "",
                // User-defined chains have no policy.
                hook: policy.filter(|policy| *policy != "-").and(hook_of(name)),
                drops_by_default: policy == Some("DROP"),
                rules: Vec::new(),
            });
        } else if let Some(rule) = line.strip_prefix("-A ") {
            let (name, rest) = rule.split_once(' ').unwrap_or((rule, ""));
            let chain = chains
                .iter_mut()
                .find(|c| c.table == table && c.name == name);
            if let Some(chain) = chain {
                chain.rules.push(read_rule(rest));
            }
        }
    }
    (chains, is_nft)
}

fn read_rule(text: &str) -> Rule {
    let mut rule = Rule {
        text: text.to_owned(),
        conditions: Vec::new(),
        action: Action::Nothing,
    };
    let mut words = words(text).into_iter().peekable();
    let mut negated = false;
    while let Some(word) = words.next() {
        if word == "!" {
            negated = true;
            continue;
        }
        let condition = match word.as_str() {
            "-p" | "--protocol" => {
                let name = words.next().unwrap_or_default();
                let is_udp = ["udp", "17", "all", "0"].contains(&name.as_str());
                Some(Condition::Udp(is_udp != negated))
            }
            "--dport" | "--dports" | "--destination-port" | "--destination-ports" => {
                let list = words.next().unwrap_or_default();
                Some(match has_port(&list) {
                    Some(has) => Condition::Port(has != negated),
                    None => Condition::Elsewhere,
                })
            }
            // A set of addresses, ports or both: `dst` are those of the destination.
            "--match-set" => {
                let _set = words.next();
                let of = words.next().unwrap_or_default();
                Some(match of.split(',').any(|of| of == "dst") {
                    true => Condition::Elsewhere,
                    false => Condition::Other,
                })
            }
            "-s" | "--source" => {
                let text = words.next().unwrap_or_default();
                Some(match prefix(&text) {
                    Some((address, length)) => Condition::Source {
                        address,
                        length,
                        negated,
                    },
                    None => Condition::Other,
                })
            }
            // The module's own options contain the condition.
            "-m" | "--match" => {
                let module = words.next().unwrap_or_default();
                let is_silent = ["udp", "tcp", "multiport", "comment"].contains(&module.as_str());
                (!is_silent).then_some(Condition::Other)
            }
            "--comment" => {
                words.next();
                None
            }
            "-j" | "-g" | "--jump" | "--goto" => {
                let target = words.next().unwrap_or_default();
                rule.action = action(target);
                // The target's own options follow.
                break;
            }
            "-i" | "-o" | "-d" => {
                words.next();
                Some(Condition::Other)
            }
            option if option.starts_with('-') => Some(Condition::Other),
            _ => None,
        };
        negated = false;
        rule.conditions.extend(condition);
    }
    rule
}

fn action(target: String) -> Action {
    match target.as_str() {
        "ACCEPT" => Action::Accept,
        "DROP" | "REJECT" => Action::Drop,
        "RETURN" => Action::Return,
        "MASQUERADE" | "SNAT" | "NETMAP" => Action::SourceNat,
        "DNAT" | "REDIRECT" | "TPROXY" => Action::DestinationNat,
        "LOG" | "NFLOG" | "MARK" | "CONNMARK" | "TCPMSS" | "NOTRACK" | "CT" | "" => Action::Nothing,
        _ => Action::Jump(target),
    }
}

/// Splits a rule into words; double quotes protect spaces.
fn words(text: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut word = String::new();
    let mut is_quoted = false;
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            '"' => is_quoted = !is_quoted,
            '\\' if is_quoted => word.extend(characters.next()),
            ' ' if !is_quoted => {
                if !word.is_empty() {
                    all.push(std::mem::take(&mut word));
                }
            }
            other => word.push(other),
        }
    }
    if !word.is_empty() {
        all.push(word);
    }
    all
}

/// Whether a list of ports and ranges (`53,4000:5000`) contains ours; `None` if it is not such a list.
fn has_port(list: &str) -> Option<bool> {
    let mut has = false;
    for part in list.split(',') {
        let (first, last) = part.split_once(':').unwrap_or((part, part));
        let first: u16 = if first.is_empty() {
            0
        } else {
            first.parse().ok()?
        };
        let last: u16 = if last.is_empty() {
            u16::MAX
        } else {
            last.parse().ok()?
        };
        has |= (first..=last).contains(&ROCE_PORT);
    }
    Some(has)
}

fn prefix(text: &str) -> Option<(IpAddr, u8)> {
    let (address, length) = text.split_once('/').unwrap_or((text, ""));
    let address: IpAddr = address.parse().ok()?;
    let whole = if address.is_ipv4() { 32 } else { 128 };
    let length = if length.is_empty() {
        whole
    } else {
        length.parse().ok()?
    };
    (length <= whole).then_some((address, length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::rules::{Fate, Hook, Ruleset};

    fn saved(rules: &str) -> Ruleset {
        let text = format!(
            "# Generated by iptables-save v1.8.9 (nf_tables)\n*filter\n:INPUT ACCEPT [0:0]\n\
             :OUTPUT ACCEPT [0:0]\n:own - [0:0]\n{rules}\nCOMMIT\n"
        );
        let (chains, is_nft) = parse(&text, "ip");
        assert!(is_nft);
        Ruleset {
            chains,
            tools: vec!["iptables-save"],
        }
    }

    fn is_stopped(rules: &str) -> bool {
        saved(rules).fate(Hook::Input) != Fate::Passes
    }

    #[test]
    fn a_rule_that_drops_the_port_stops_the_packet() {
        for rule in [
            "-A INPUT -p udp -m udp --dport 4791 -j DROP",
            "-A INPUT -p udp -m multiport --dports 53,4000:5000 -j REJECT --reject-with icmp-port-unreachable",
            "-A INPUT -p udp -m udp ! --dport 53 -j DROP",
            "-A INPUT -i eth0 -p udp -m udp --dport 4791 -m comment --comment \"no RoCE -j ACCEPT\" -j DROP",
            "-A INPUT -j own\n-A own -p udp -j DROP",
            "-A INPUT ! -p tcp -j DROP",
        ] {
            assert!(is_stopped(rule), "{rule}");
        }
    }

    #[test]
    fn other_rules_do_not() {
        for rule in [
            "-A INPUT -p tcp -m tcp --dport 4791 -j DROP",
            "-A INPUT -p udp -m udp --dport 53 -j DROP",
            "-A INPUT -m conntrack --ctstate INVALID -j DROP",
            "-A INPUT -s 192.0.2.0/24 -j DROP",
            "-A INPUT -p udp -m udp --dport 4791 -j ACCEPT\n-A INPUT -j DROP",
            "-A own -j DROP",
            "-A INPUT -j LOG --log-prefix \"4791 -j DROP\"",
            "-A OUTPUT -p udp --dport 4791 -j DROP",
        ] {
            assert!(!is_stopped(rule), "{rule}");
        }
    }

    #[test]
    fn an_accept_for_a_set_of_destinations_makes_a_later_drop_uncertain() {
        for (rule, is_sure) in [
            (
                "-A INPUT -p udp -m set --match-set s dst -j ACCEPT\n-A INPUT -j DROP",
                false,
            ),
            (
                "-A INPUT -m set --match-set s src -j ACCEPT\n-A INPUT -j DROP",
                true,
            ),
            ("-A INPUT -i lo -j ACCEPT\n-A INPUT -j DROP", true),
        ] {
            let found = saved(rule).fate(Hook::Input);
            assert!(
                matches!(found, Fate::Stops { is_certain, .. } if is_certain == is_sure),
                "{rule}: {found:?}"
            );
        }
    }

    #[test]
    fn a_policy_of_drop_counts_and_a_masquerade_of_others_does_not() {
        let text = "*filter\n:INPUT DROP [0:0]\nCOMMIT\n*nat\n:POSTROUTING ACCEPT [0:0]\n\
                    -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE\nCOMMIT\n";
        let (chains, is_nft) = parse(text, "ip");
        assert!(!is_nft);
        let rules = Ruleset {
            chains,
            tools: vec![],
        };
        let chain = "ip filter/INPUT".to_owned();
        assert_eq!(
            rules.fate(Hook::Input),
            Fate::Stops {
                chain,
                rule: None,
                tool: "",
                is_certain: true,
            }
        );
        assert!(
            rules
                .translations(&["10.0.0.1".parse().unwrap()])
                .is_empty()
        );
        assert_eq!(
            rules.translations(&["172.17.0.2".parse().unwrap()]).len(),
            1
        );
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics(text in "(\\*|:|-A | |!|-p|udp|--dport|\"|\\\\|\n|4791|/|,|INPUT|-j|DROP){0,40}") {
            let (chains, _) = parse(&text, "ip");
            let rules = Ruleset { chains, tools: vec![] };
            let _ = (rules.fate(Hook::Input), rules.translations(&[]));
        }
    }
}
