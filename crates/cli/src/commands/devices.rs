//! `devices`: lists the RDMA devices and their addresses.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use portolan::provider::traits::Device;
use portolan::provider::verbs::{DeviceAttr, GidEntry, LinkLayer, PortAttr};
use serde_json::json;

use crate::args::DevicesArgs;
use crate::exit::Outcome;
use crate::interrupt::Interrupt;
use crate::output::Output;
use crate::terminal::Paint;

/// Polling interval of `--watch`.
const WATCH_INTERVAL: Duration = Duration::from_millis(50);

/// Lists the devices of the process's provider. With `--watch`, then prints changes until interrupted.
///
/// # Errors
///
/// The provider cannot start, or a device cannot be queried.
pub(crate) fn run(args: &DevicesArgs, output: &mut Output) -> Result<Outcome> {
    let provider = portolan::provider::default_provider()?;
    let interrupt = args.watch.then(Interrupt::install).transpose()?;
    let mut known = list()?;
    for listed in &known {
        listed.print(provider.name(), None, output)?;
    }
    if known.is_empty() && !output.json {
        output.line("no devices: no network interface has an address")?;
    }
    output.flush()?;
    while interrupt.as_ref().is_some_and(|raised| !raised.is_raised()) {
        std::thread::sleep(WATCH_INTERVAL);
        let now = list()?;
        for (listed, change) in changes(&known, &now) {
            listed.print(provider.name(), Some(change), output)?;
        }
        output.flush()?;
        known = now;
    }
    Ok(Outcome::Good)
}

fn list() -> Result<Vec<Listed>> {
    let devices = portolan::devices()?;
    let ports = devices.iter().map(Listed::of_ports);
    Ok(ports.collect::<Result<Vec<_>>>()?.concat())
}

/// A change of a device between two polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Added,
    Changed,
    Removed,
}

impl Change {
    fn name(self) -> &'static str {
        match self {
            Change::Added => "added",
            Change::Changed => "changed",
            Change::Removed => "removed",
        }
    }
}

/// Changed devices in their current state; removed ones in their last state.
fn changes<'a>(
    before: &'a [Listed],
    now: &'a [Listed],
) -> impl Iterator<Item = (&'a Listed, Change)> {
    let is_in = |devices: &'a [Listed], listed: &Listed| {
        let port = |of: &Listed| (of.index, of.port_num);
        devices.iter().find(|device| port(device) == port(listed))
    };
    let removed = before
        .iter()
        .filter(move |listed| is_in(now, listed).is_none());
    let others = now
        .iter()
        .filter_map(move |listed| match is_in(before, listed) {
            None => Some((listed, Change::Added)),
            Some(old) => (old != listed).then_some((listed, Change::Changed)),
        });
    removed
        .map(|listed| (listed, Change::Removed))
        .chain(others)
}

/// A port of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Listed {
    name: String,
    index: u32,
    port_num: u8,
    interface_index: u32,
    attr: DeviceAttr,
    port: PortAttr,
    gids: Vec<GidEntry>,
}

impl Listed {
    fn of_ports(device: &Arc<dyn Device>) -> Result<Vec<Listed>> {
        let attr = device.attr()?;
        let of_port = |port_num| {
            Ok(Listed {
                name: device.name().to_owned(),
                index: device.index(),
                port_num,
                interface_index: device.interface_index(),
                attr,
                port: device.port_attr(port_num)?,
                gids: device.gids(port_num)?,
            })
        };
        (1..=attr.phys_port_cnt).map(of_port).collect()
    }

    /// Prints the device and its change.
    fn print(&self, provider: &str, change: Option<Change>, output: &mut Output) -> Result<()> {
        if output.json {
            let mut object = self.object(provider);
            if let Some(change) = change {
                object["change"] = change.name().into();
            }
            output.object(&object)?;
            return Ok(());
        }
        let lines = match change {
            Some(Change::Removed) => vec![output.theme.paint(Paint::Bold, &self.name)],
            _ => self.lines(provider, output),
        };
        let mut word = change.map_or(String::new(), |change| format!("{}  ", change.name()));
        for line in lines {
            output.line(&format!("{word}{line}"))?;
            word.clear();
        }
        Ok(())
    }

    fn state(&self) -> &'static str {
        if self.port.active { "active" } else { "down" }
    }

    fn lines(&self, provider: &str, output: &Output) -> Vec<String> {
        let theme = &output.theme;
        let paint = if self.port.active {
            Paint::Good
        } else {
            Paint::Bad
        };
        let mut lines = vec![format!(
            "{}  {provider}, {}, mtu {} (at most {}), node guid {:016x}",
            theme.paint(Paint::Bold, &self.name),
            theme.paint(paint, self.state()),
            self.port.active_mtu.bytes(),
            self.port.max_mtu.bytes(),
            self.attr.node_guid,
        )];
        if self.attr.phys_port_cnt > 1 {
            lines[0] += &format!(", port {}", self.port_num);
        }
        if self.port.link_layer == LinkLayer::InfiniBand {
            lines[0] += &format!(", InfiniBand, LID {}", self.port.lid);
        }
        for entry in &self.gids {
            lines.push(format!("  gid {:>2}  {}", entry.index, entry.gid.to_ip()));
        }
        if output.verbose {
            let attr = &self.attr;
            lines.push(format!(
                "  limits  {} queue pairs of {} work requests, {} completion queues of {}, \
                 {} memory regions of {}, {} reads at once",
                attr.max_qp,
                attr.max_qp_wr,
                attr.max_cq,
                attr.max_cqe,
                attr.max_mr,
                crate::text::bytes(attr.max_mr_size),
                attr.max_qp_rd_atom,
            ));
        }
        lines
    }

    fn object(&self, provider: &str) -> serde_json::Value {
        let gid = |entry: &GidEntry| {
            json!({
                "index": entry.index,
                "gid": entry.gid.to_string(),
                "address": entry.gid.to_ip().to_string(),
            })
        };
        json!({
            "type": "device",
            "name": self.name,
            "provider": provider,
            "port": self.port_num,
            "link_layer": self.port.link_layer.to_string(),
            "lid": self.port.lid,
            "interface_index": self.interface_index,
            "active": self.port.active,
            "active_mtu": self.port.active_mtu.bytes(),
            "max_mtu": self.port.max_mtu.bytes(),
            "node_guid": format!("{:016x}", self.attr.node_guid),
            "gids": self.gids.iter().map(gid).collect::<Vec<_>>(),
            "max_qp": self.attr.max_qp,
            "max_qp_wr": self.attr.max_qp_wr,
            "max_cq": self.attr.max_cq,
            "max_cqe": self.attr.max_cqe,
            "max_mr": self.attr.max_mr,
            "max_mr_size": self.attr.max_mr_size,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices() -> Vec<Listed> {
        let devices = list().unwrap();
        assert!(!devices.is_empty(), "this machine has no loopback");
        devices
    }

    #[test]
    fn only_devices_that_appeared_disappeared_or_changed_are_reported() {
        let before = devices();
        let told = |before: &[Listed], now: &[Listed]| {
            changes(before, now)
                .map(|(listed, change)| (listed.interface_index, change))
                .collect::<Vec<_>>()
        };
        assert_eq!(told(&before, &before), []);
        let index = before[0].interface_index;
        let others = before[1..].to_vec();
        assert_eq!(told(&others, &before), [(index, Change::Added)]);
        assert_eq!(told(&before, &others), [(index, Change::Removed)]);
        let mut changed = before.clone();
        changed[0].port.active = !changed[0].port.active;
        assert_eq!(told(&before, &changed), [(index, Change::Changed)]);
    }
}
