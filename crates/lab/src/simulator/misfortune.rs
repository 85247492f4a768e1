//! Faults of machines and network: partitions, stalls, crashes.

use std::time::Duration;

use super::agenda::HostTask;
use super::failure::Violation;
use super::host::Host;
use super::world::World;

impl World {
    /// Cuts hosts apart, or reconnects them.
    pub(super) fn set_cut(&mut self, number: usize, is_cut: bool) {
        let partition = self.plan.partitions[number];
        let [from, to] = [partition.from, partition.to].map(|host| self.hosts[host].group);
        self.trace.note(partition.from, || {
            format!(
                "{} to address {to}",
                if is_cut { "cut off" } else { "connected again" }
            )
        });
        self.network.set_blocked(from, to, is_cut);
        if partition.both {
            self.network.set_blocked(to, from, is_cut);
        }
    }

    /// The machine stalls for a time.
    pub(super) fn stall(&mut self, number: usize) {
        let stall = self.plan.stalls[number];
        self.trace
            .note(stall.host, || format!("stalls for {:?}", stall.lasts));
        self.tally.count("stall");
        self.hosts[stall.host].stall(self.now, stall.lasts);
    }

    /// The machine loses all state. Its clock stays that of the run, because engines are given
    /// durations.
    pub(super) fn crash(&mut self, number: usize) -> Result<(), Violation> {
        let crash = self.plan.crashes[number];
        if !self.hosts[crash.host].is_up {
            return Ok(());
        }
        self.audit(crash.host)?;
        self.trace.note(crash.host, || "crashes".into());
        let rng = self.rng.fork();
        let plan = self.plan.clone();
        let old = &self.hosts[crash.host];
        for slot in old.slots.values() {
            self.oracle.endpoints[slot.endpoint].left = true;
        }
        // The restarted process keeps its block if it reuses its numbers. Otherwise the block stays
        // unused until all others have been given out.
        let (group, old_block) = (old.group, old.block);
        let block = match crash.reuses_qpns {
            true => old_block,
            false => self.port_groups[group].next_block(),
        };
        let mut new = Host::new(block, &plan.hosts[crash.host], &plan.cm, old.boot + 1, rng);
        new.is_up = false;
        new.qpns_used = old.qpns_used.clone();
        if crash.reuses_qpns {
            new.qpns_to_reuse = old.slots.keys().copied().collect();
        }
        self.tally.count("crash");
        let process = self.process(crash.host);
        self.hosts[crash.host] = new;
        self.depart(process, old_block);
        Ok(())
    }

    /// The machine restarts, with its listeners and nothing else.
    pub(super) fn restart(&mut self, number: usize) -> Result<(), Violation> {
        let host = self.plan.crashes[number].host;
        if self.hosts[host].is_up {
            return Ok(());
        }
        self.trace.note(host, || "starts anew".into());
        self.hosts[host].is_up = true;
        self.stand(host);
        self.plan_on(host, Duration::ZERO, HostTask::Open);
        Ok(())
    }
}
