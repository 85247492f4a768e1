//! The keys of the JSON object must be documented.

use super::*;
use crate::commands::doctor::object::object;

#[test]
fn the_object_has_the_documented_keys() {
    const DOCUMENT: &str = include_str!("../../../../../../../docs/doctor.md");
    let mut facts = healthy_kernel();
    facts.destination = to(Ok(vec![way(None)]));
    facts.port.group = Some(Ok(PortGroup {
        holder_pid: 7,
        pids: vec![7],
    }));
    facts.port.sockets.push(socket(Owner::Kernel, 0));
    facts.host.container = Some("lxc".into());
    facts.unseen.push(Unseen {
        what: "firewall rules".into(),
        why: "only root sees them".into(),
    });
    let found = judge(&facts);
    let mut keys = BTreeSet::new();
    collect_keys(&object(&facts, &found), "", &mut keys);
    // Module names are specific to the machine.
    keys.retain(|key| !key.starts_with("kernel.modules."));
    let rows = DOCUMENT.lines().take_while(|line| *line != "## Findings");
    let documented: BTreeSet<String> = rows
        .filter_map(|line| Some(line.strip_prefix("| `")?.split('`').next()?.to_owned()))
        .collect();
    assert_eq!(keys, documented);
}

/// The paths of all keys. An item of a list is written `key[]`.
fn collect_keys(value: &serde_json::Value, path: &str, keys: &mut BTreeSet<String>) {
    match value {
        serde_json::Value::Object(object) => {
            for (name, value) in object {
                let path = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}.{name}")
                };
                collect_keys(value, &path, keys);
            }
        }
        serde_json::Value::Array(values) if values.iter().any(serde_json::Value::is_object) => {
            for value in values {
                collect_keys(value, &format!("{path}[]"), keys);
            }
        }
        _ => {
            keys.insert(path.to_owned());
        }
    }
}
