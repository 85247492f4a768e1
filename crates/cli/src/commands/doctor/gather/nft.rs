//! Parses the output of `nft -j list ruleset` (libnftables-json(5)).

use std::net::IpAddr;

use serde_json::Value;

use super::ROCE_PORT;
use crate::commands::doctor::rules::{Action, Chain, Condition, Hook, Rule};

/// Parses the chains of a rule set; `None` if the text is not one.
pub(super) fn parse(text: &str) -> Option<Vec<Chain>> {
    let whole: Value = serde_json::from_str(text).ok()?;
    let objects = whole.get("nftables")?.as_array()?;
    let mut chains: Vec<Chain> = Vec::new();
    for object in objects {
        if let Some(chain) = object.get("chain") {
            let (family, table) = (field(chain, "family")?, field(chain, "table")?);
            chains.push(read_chain(chain, family, table)?);
        } else if let Some(rule) = object.get("rule") {
            let table = format!("{} {}", field(rule, "family")?, field(rule, "table")?);
            let name = field(rule, "chain")?;
            let chain = chains
                .iter_mut()
                .find(|c| c.table == table && c.name == name);
            if let Some(chain) = chain {
                chain.rules.push(read_rule(rule.get("expr")?.as_array()?));
            }
        }
    }
    Some(chains)
}

fn field<'a>(object: &'a Value, name: &str) -> Option<&'a str> {
    object.get(name)?.as_str()
}

fn read_chain(chain: &Value, family: &str, table: &str) -> Option<Chain> {
    // Chains of bridges and devices see frames at other points.
    let is_ip = ["ip", "ip6", "inet"].contains(&family);
    let hook = field(chain, "hook").filter(|_| is_ip);
    Some(Chain {
        table: format!("{family} {table}"),
        name: field(chain, "name")?.to_owned(),
        tool: "nft",
        hook: hook.and_then(hook_of),
        drops_by_default: field(chain, "policy") == Some("drop"),
        rules: Vec::new(),
    })
}

pub(super) fn hook_of(name: &str) -> Option<Hook> {
    Some(match name.to_ascii_lowercase().as_str() {
        "prerouting" => Hook::Prerouting,
        "input" => Hook::Input,
        "output" => Hook::Output,
        "postrouting" => Hook::Postrouting,
        "forward" => Hook::Forward,
        _ => return None,
    })
}

fn read_rule(statements: &[Value]) -> Rule {
    let mut rule = Rule {
        text: String::new(),
        conditions: Vec::new(),
        action: Action::Nothing,
    };
    let mut words = Vec::new();
    for statement in statements {
        let Some((name, body)) = statement
            .as_object()
            .and_then(|object| object.iter().next())
        else {
            continue;
        };
        match name.as_str() {
            "match" => {
                read_match(body, &mut rule.conditions);
                words.push(match_text(body));
            }
            "accept" => rule.action = Action::Accept,
            "drop" | "reject" => rule.action = Action::Drop,
            "return" => rule.action = Action::Return,
            "jump" | "goto" => {
                let target = field(body, "target").unwrap_or_default();
                words.push(format!("{name} {target}"));
                rule.action = Action::Jump(target.to_owned());
                continue;
            }
            "vmap" => {
                rule.action = read_map(body, &mut rule.conditions);
                words.push(map_text(body));
                continue;
            }
            "masquerade" | "snat" => rule.action = Action::SourceNat,
            "dnat" | "redirect" | "tproxy" => rule.action = Action::DestinationNat,
            "counter" | "log" | "comment" => continue,
            // Rules of iptables tools, limits, sets: may or may not match.
            _ => rule.conditions.push(Condition::Other),
        }
        if name != "match" {
            words.push(name.clone());
        }
    }
    rule.text = words.join(" ");
    rule
}

fn read_match(body: &Value, conditions: &mut Vec<Condition>) {
    let right = body.get("right").unwrap_or(&Value::Null);
    let left = body.get("left").unwrap_or(&Value::Null);
    conditions.extend(other_protocol(left));
    conditions.push(match field(body, "op") {
        Some("==") => condition(left, right, false),
        Some("!=") => condition(left, right, true),
        _ => unknown(left),
    });
}

/// A verdict map (`vmap`): the packet's part `key` selects an action.
fn read_map(body: &Value, conditions: &mut Vec<Condition>) -> Action {
    let key = body.get("key").unwrap_or(&Value::Null);
    conditions.extend(other_protocol(key));
    let set = body.get("data").and_then(|data| data.get("set"));
    let Some(set) = set.and_then(Value::as_array) else {
        // `@name` is a map that is listed elsewhere.
        return Action::Map(vec![(Condition::Elsewhere, Action::Accept)]);
    };
    let cases = set.iter().filter_map(|element| {
        let (value, verdict) = (element.get(0)?, element.get(1)?);
        let (name, body) = verdict.as_object()?.iter().next()?;
        let action = match name.as_str() {
            "accept" => Action::Accept,
            "drop" => Action::Drop,
            "return" => Action::Return,
            "jump" | "goto" => Action::Jump(field(body, "target")?.to_owned()),
            _ => Action::Nothing,
        };
        Some((condition(key, value, false), action))
    });
    Action::Map(cases.collect())
}

/// A part of a packet that a rule looks at.
enum Part<'a> {
    Protocol,
    Port,
    Source,
    /// Several parts at once.
    Several(&'a [Value]),
    Other,
}

fn part(left: &Value) -> Part<'_> {
    if let Some(parts) = left.get("concat").and_then(Value::as_array) {
        return Part::Several(parts);
    }
    let (protocol, header) = payload(left);
    let meta = left.get("meta").and_then(|meta| field(meta, "key"));
    if meta == Some("l4proto") || ["protocol", "nexthdr"].contains(&header) {
        Part::Protocol
    } else if header == "dport" && ["udp", "th"].contains(&protocol) {
        Part::Port
    } else if header == "saddr" && ["ip", "ip6"].contains(&protocol) {
        Part::Source
    } else {
        Part::Other
    }
}

/// The protocol and the field of its header.
fn payload(left: &Value) -> (&str, &str) {
    let payload = left.get("payload").unwrap_or(&Value::Null);
    let of = |name| field(payload, name).unwrap_or_default();
    (of("protocol"), of("field"))
}

/// Looking at a field of another protocol's header requires that protocol.
fn other_protocol(left: &Value) -> Option<Condition> {
    let is_other = match part(left) {
        Part::Several(parts) => parts.iter().any(|part| other_protocol(part).is_some()),
        _ => {
            let others = ["tcp", "sctp", "dccp", "icmp", "icmpv6", "igmp", "udplite"];
            others.contains(&payload(left).0)
        }
    };
    is_other.then_some(Condition::Udp(false))
}

/// Whether a part of our packets is among values.
fn condition(left: &Value, right: &Value, is_negated: bool) -> Condition {
    let known = match part(left) {
        Part::Protocol => has_part(left, right).map(|has| Condition::Udp(has != is_negated)),
        Part::Port => has_part(left, right).map(|has| Condition::Port(has != is_negated)),
        Part::Source => prefix(right).map(|(address, length)| Condition::Source {
            address,
            length,
            negated: is_negated,
        }),
        Part::Several(parts) => {
            let may_be = |one: &Value| match one.get("concat").and_then(Value::as_array) {
                Some(values) => {
                    let mut pairs = parts.iter().zip(values);
                    pairs.all(|(part, value)| has_part(part, value) != Some(false))
                }
                None => true,
            };
            let may_be_any = match right.get("set").and_then(Value::as_array) {
                Some(set) => set.iter().any(may_be),
                None => may_be(right),
            };
            (!may_be_any && !is_negated).then_some(Condition::Port(false))
        }
        Part::Other => None,
    };
    known.unwrap_or_else(|| unknown(left))
}

/// A condition on a part of our packets of which it is not known whether it holds.
fn unknown(left: &Value) -> Condition {
    let names_port = |left: &Value| matches!(part(left), Part::Protocol | Part::Port);
    let is_elsewhere = match part(left) {
        Part::Several(parts) => parts.iter().any(names_port),
        _ => names_port(left),
    };
    match is_elsewhere {
        true => Condition::Elsewhere,
        false => Condition::Other,
    }
}

/// Whether our packets' protocol or port is among values; `None` if unknown.
fn has_part(left: &Value, right: &Value) -> Option<bool> {
    match part(left) {
        Part::Protocol => contains(right, &|one| {
            one.as_str() == Some("udp") || one.as_u64() == Some(17)
        }),
        Part::Port => contains(right, &|one| one.as_u64() == Some(u64::from(ROCE_PORT))),
        _ => None,
    }
}

/// Whether a value, set or range contains a `wanted` one; `None` if unknown.
fn contains(value: &Value, wanted: &dyn Fn(&Value) -> bool) -> Option<bool> {
    if let Some(set) = value.get("set").and_then(Value::as_array) {
        let mut all = Some(false);
        for element in set {
            match contains(element, wanted) {
                Some(true) => return Some(true),
                Some(false) => {}
                None => all = None,
            }
        }
        return all;
    }
    if let Some(range) = value.get("range").and_then(Value::as_array) {
        let (first, last) = (range.first()?.as_u64()?, range.get(1)?.as_u64()?);
        let port = u64::from(ROCE_PORT);
        return Some((first..=last).contains(&port) && wanted(&port.into()));
    }
    // `@name` is a set that is listed elsewhere, `*` is any value that is not in the map.
    match value {
        Value::String(name) if name.starts_with('@') || name == "*" => None,
        Value::String(_) | Value::Number(_) => Some(wanted(value)),
        _ => None,
    }
}

fn prefix(value: &Value) -> Option<(IpAddr, u8)> {
    if let Some(prefix) = value.get("prefix") {
        let address: IpAddr = field(prefix, "addr")?.parse().ok()?;
        return Some((address, u8::try_from(prefix.get("len")?.as_u64()?).ok()?));
    }
    let address: IpAddr = value.as_str()?.parse().ok()?;
    Some((address, if address.is_ipv4() { 32 } else { 128 }))
}

/// A match in nft's syntax, complete enough to find the rule.
fn match_text(body: &Value) -> String {
    let op = match field(body, "op") {
        None | Some("==" | "in") => String::new(),
        Some(op) => format!("{op} "),
    };
    format!(
        "{} {op}{}",
        part_text(body.get("left").unwrap_or(&Value::Null)),
        value_text(body.get("right").unwrap_or(&Value::Null))
    )
}

/// A verdict map in nft's syntax, without its elements.
fn map_text(body: &Value) -> String {
    let key = part_text(body.get("key").unwrap_or(&Value::Null));
    match body.get("data") {
        Some(Value::String(name)) => format!("{key} vmap {name}"),
        _ => format!("{key} vmap {{ … }}"),
    }
}

fn part_text(left: &Value) -> String {
    match (left.get("payload"), left.get("meta"), left.get("ct")) {
        (Some(_), _, _) => {
            let (protocol, header) = payload(left);
            format!("{protocol} {header}")
        }
        (_, Some(meta), _) => field(meta, "key").unwrap_or_default().to_owned(),
        (_, _, Some(ct)) => format!("ct {}", field(ct, "key").unwrap_or_default()),
        _ => "…".to_owned(),
    }
}

fn value_text(value: &Value) -> String {
    let all = |values: &[Value], between: &str| {
        values
            .iter()
            .map(value_text)
            .collect::<Vec<_>>()
            .join(between)
    };
    if let Some(set) = value.get("set").and_then(Value::as_array) {
        return format!("{{ {} }}", all(set, ", "));
    }
    if let Some(range) = value.get("range").and_then(Value::as_array) {
        return all(range, "-");
    }
    if let Some((address, length)) = value.get("prefix").and_then(|_| prefix(value)) {
        return format!("{address}/{length}");
    }
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        Value::Array(values) => all(values, ","),
        _ => "…".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::rules::{Fate, Ruleset};

    fn ruleset(rules: &str, policy: &str) -> Ruleset {
        let text = format!(
            r#"{{"nftables": [{{"metainfo": {{"json_schema_version": 1}}}},
            {{"table": {{"family": "inet", "name": "t", "handle": 1}}}},
            {{"chain": {{"family": "inet", "table": "t", "name": "in", "handle": 1, "type": "filter",
              "hook": "input", "prio": 0, "policy": "{policy}"}}}},
            {{"chain": {{"family": "inet", "table": "t", "name": "own", "handle": 2}}}}{rules}]}}"#
        );
        let chains = parse(&text).unwrap();
        Ruleset {
            chains,
            tools: vec!["nft"],
        }
    }

    fn rule(chain: &str, statements: &str) -> String {
        format!(
            r#",{{"rule": {{"family": "inet", "table": "t", "chain": "{chain}", "handle": 3,
            "expr": [{statements}]}}}}"#
        )
    }

    fn port(right: &str) -> String {
        format!(
            r#"{{"match": {{"op": "==", "left": {{"payload": {{"protocol": "udp", "field": "dport"}}}},
            "right": {right}}}}}"#
        )
    }

    fn fate(rules: &[String], policy: &str) -> Fate {
        ruleset(&rules.concat(), policy).fate(Hook::Input)
    }

    fn stopped_by(fate: &Fate) -> &str {
        match fate {
            Fate::Stops {
                rule: Some(rule), ..
            } => rule,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_rule_that_drops_the_port_stops_the_packet_and_is_quoted_in_nfts_syntax() {
        let drop = rule("in", &format!("{}, {{\"drop\": null}}", port("4791")));
        assert_eq!(stopped_by(&fate(&[drop], "accept")), "udp dport 4791 drop");
        let set = port(r#"{"set": [53, {"range": [4000, 5000]}]}"#);
        let reject = rule(
            "in",
            &format!(r#"{set}, {{"counter": {{"packets": 0}}}}, {{"reject": null}}"#),
        );
        assert_eq!(
            stopped_by(&fate(&[reject], "accept")),
            "udp dport { 53, 4000-5000 } reject"
        );
    }

    #[test]
    fn rules_about_other_ports_and_protocols_do_not_stop_it() {
        let other = rule("in", &format!("{}, {{\"drop\": null}}", port("4790")));
        let tcp = port("4791").replace("udp", "tcp");
        let tcp = rule("in", &format!("{tcp}, {{\"drop\": null}}"));
        let state =
            r#"{"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": "invalid"}}"#;
        let state = rule("in", &format!("{state}, {{\"drop\": null}}"));
        assert_eq!(fate(&[other, tcp, state], "accept"), Fate::Passes);
    }

    #[test]
    fn a_policy_of_drop_stops_packets_that_no_rule_accepts() {
        let nothing = fate(&[], "drop");
        let chain = "inet t/in".to_owned();
        assert_eq!(
            nothing,
            Fate::Stops {
                chain,
                rule: None,
                tool: "nft",
                is_certain: true,
            }
        );
        let accept = rule("in", &format!("{}, {{\"accept\": null}}", port("4791")));
        assert_eq!(fate(&[accept], "drop"), Fate::Passes);
        let only_loopback =
            r#"{"match": {"op": "==", "left": {"meta": {"key": "iif"}}, "right": "lo"}}"#;
        let only_loopback = rule("in", &format!("{only_loopback}, {{\"accept\": null}}"));
        assert!(matches!(fate(&[only_loopback], "drop"), Fate::Stops { .. }));
    }

    #[test]
    fn an_accept_with_a_named_set_is_uncertain_and_one_for_other_values_is_none() {
        let is_certain = |statements: &str| {
            let rule = rule("in", statements);
            match fate(&[rule], "drop") {
                Fate::Stops { is_certain, .. } => is_certain,
                Fate::Passes => panic!("{statements}"),
            }
        };
        let accept = |condition: &str| format!("{condition}, {{\"accept\": null}}");
        assert!(!is_certain(&accept(&port(r#""@s""#))));
        let both = |right: &str| {
            let parts = r#"{"concat": [{"meta": {"key": "l4proto"}},
                {"payload": {"protocol": "th", "field": "dport"}}]}"#;
            let pair = format!(r#"{{"set": [{{"concat": ["tcp", 22]}}, {{"concat": {right}}}]}}"#);
            accept(&format!(
                r#"{{"match": {{"op": "==", "left": {parts}, "right": {pair}}}}}"#
            ))
        };
        assert!(!is_certain(&both(r#"["udp", 4791]"#)));
        assert!(is_certain(&both(r#"["udp", 53]"#)));
        assert!(is_certain(&both(r#"["tcp", 4791]"#)));
    }

    #[test]
    fn the_verdict_for_the_port_in_a_map_counts() {
        let map = |data: &str| {
            let key = r#"{"payload": {"protocol": "udp", "field": "dport"}}"#;
            rule(
                "in",
                &format!(r#"{{"vmap": {{"key": {key}, "data": {data}}}}}"#),
            )
        };
        let set = |elements: &str| map(&format!(r#"{{"set": [{elements}]}}"#));
        let accepts = set(r#"[53, {"drop": null}], [4791, {"accept": null}]"#);
        assert_eq!(fate(&[accepts], "drop"), Fate::Passes);
        let drops = set(r#"[53, {"accept": null}], [4791, {"drop": null}]"#);
        assert_eq!(
            stopped_by(&fate(&[drops], "accept")),
            "udp dport vmap { … }"
        );
        let jumps = set(r#"[{"range": [4000, 5000]}, {"jump": {"target": "own"}}]"#);
        let own = rule("own", r#"{"drop": null}"#);
        assert_eq!(stopped_by(&fate(&[jumps, own], "accept")), "drop");
        for (data, is_sure) in [
            (r#""@m""#, false),
            (r#"{"set": [["*", {"accept": null}]]}"#, false),
            (r#"{"set": [[53, {"accept": null}]]}"#, true),
            (r#"{"set": [[], 7, [4791], [4791, {}], [4791, 7]]}"#, true),
        ] {
            let found = fate(&[map(data)], "drop");
            assert!(
                matches!(found, Fate::Stops { is_certain, .. } if is_certain == is_sure),
                "{data}: {found:?}"
            );
        }
    }

    #[test]
    fn chains_that_are_jumped_to_count_and_loops_end() {
        let jump = rule("in", r#"{"jump": {"target": "own"}}"#);
        let again = rule("own", r#"{"jump": {"target": "own"}}"#);
        let drop = rule("own", &format!("{}, {{\"drop\": null}}", port("4791")));
        assert_eq!(
            stopped_by(&fate(
                &[jump.clone(), again.repeat(40), drop.clone()],
                "accept"
            )),
            "udp dport 4791 drop"
        );
        assert_eq!(fate(&[drop], "accept"), Fate::Passes);
        // An accept further down applies to all chains.
        let accept = rule("own", &format!("{}, {{\"accept\": null}}", port("4791")));
        assert_eq!(fate(&[jump, accept], "drop"), Fate::Passes);
    }

    #[test]
    fn translations_count_if_they_apply_to_our_addresses() {
        let source = r#"{"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "saddr"}},
            "right": {"prefix": {"addr": "172.17.0.0", "len": 16}}}}"#;
        let rules = rule("own", &format!("{source}, {{\"masquerade\": null}}"));
        let rules = ruleset(&rules, "accept");
        let of = |own: &str| rules.translations(&[own.parse().unwrap()]).len();
        assert_eq!((of("172.17.0.3"), of("10.0.0.1"), of("fd00::1")), (1, 0, 0));
        let all = ruleset(&rule("own", r#"{"masquerade": null}"#), "accept");
        assert_eq!(all.translations(&[]).len(), 1);
        let forwards = format!(r#"{}, {{"dnat": {{"addr": "10.0.0.2"}}}}"#, port("4791"));
        let forwards = ruleset(&rule("own", &forwards), "accept");
        assert_eq!(forwards.translations(&[])[0].rule, "udp dport 4791 dnat");
    }

    #[test]
    fn text_that_is_not_a_rule_set_is_ignored() {
        for text in [
            "",
            "{}",
            "[]",
            r#"{"nftables": 1}"#,
            r#"{"nftables": [{"chain": {}}]}"#,
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
