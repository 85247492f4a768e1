//! Delivery of events to the program through channels, and migration of ids between channels.

use portolan_provider::cm::{CmEvent, EventType};

use crate::simulator::AgentKey;
use crate::simulator::agenda::HostTask;
use crate::simulator::channels::{CHANNELS, Channel, is_of_group};
use crate::simulator::failure::{Violation, violation};
use crate::simulator::world::World;

impl World {
    /// Queues an event from the engine and schedules its channel's thread. Sometimes this makes the
    /// program migrate the id.
    pub(in crate::simulator) fn queue_event(
        &mut self,
        host: usize,
        event: CmEvent,
    ) -> Result<(), Violation> {
        let machine = &mut self.hosts[host];
        let join = is_of_group(&event).then(|| machine.joins.get(&event.uid.0));
        let key = join.flatten().map_or(event.uid.0, |join| join.agent);
        let agent = machine.agents.get(&key);
        let owner = agent.ok_or_else(|| violation!("{} for nobody", event.event))?;
        let channel = machine.channels.push(owner.id, event);
        let after = machine.reaction();
        let moves = machine.rng.permille(machine.migrates_permille);
        let to = machine.rng.below(CHANNELS as u64) as Channel;
        self.plan_on(host, after, HostTask::TakeEvent(channel));
        if moves {
            let after = self.hosts[host].reaction();
            self.plan_on(host, after, HostTask::Migrate { key, to });
        }
        Ok(())
    }

    /// The program moves an id and its waiting events to another channel (`rdma_migrate_id`).
    /// Requests that wait at a listener move with it.
    pub(in crate::simulator) fn migrate(&mut self, host: usize, key: AgentKey, to: Channel) {
        let machine = &mut self.hosts[host];
        let Some(agent) = machine.agents.get(&key) else {
            return;
        };
        let id = agent.id;
        let belongs = |event: &CmEvent| {
            let is_request = event.event == EventType::ConnectRequest;
            event.id == id || is_request && event.uid.0 == key
        };
        let moved = machine.channels.migrate(id, to, belongs);
        if moved > 0 {
            self.tally.count("id migrated with waiting events");
        }
        for _ in 0..moved {
            let after = self.hosts[host].reaction();
            self.plan_on(host, after, HostTask::TakeEvent(to));
        }
    }
}
