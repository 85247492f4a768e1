//! Checks placed bytes against the messages they belong to.

use super::place::Cursor;
use super::{Endpoint, EndpointIndex, Oracle};
use crate::simulator::failure::{Violation, ensure, violation};
use crate::simulator::plan::{Flaw, Kind};

impl Oracle {
    /// A request of the peer placed `bytes` at `addr`.
    pub(in crate::simulator) fn placed_by_peer(
        &mut self,
        index: EndpointIndex,
        addr: u64,
        bytes: &[u8],
    ) -> Result<(), Violation> {
        let here = &self.endpoints[index];
        let peer = here.peer.and_then(|peer| self.endpoints.get(peer));
        let peer =
            peer.ok_or_else(|| violation!("endpoint {index} received data but has no peer"))?;
        let mut cursor = here.inbound;
        let message = loop {
            let message = peer.sends.get(cursor.message).ok_or_else(|| {
                violation!(
                    "endpoint {index} received bytes after the last message of {}",
                    peer.index
                )
            })?;
            if message.plan.kind != Kind::Read && message.len() > cursor.offset {
                break message;
            }
            cursor = message.pass(cursor);
        };
        let what = |why: &str| {
            let (of, at) = (cursor.message, cursor.offset);
            violation!(
                "endpoint {index}, byte {at} of message {of} of {}: {why}",
                peer.index
            )
        };
        let refused = [
            Flaw::LocalKey,
            Flaw::RemoteKey,
            Flaw::RemoteRange,
            Flaw::RemoteRight,
        ];
        ensure!(
            message
                .plan
                .flaw
                .is_none_or(|flaw| !refused.contains(&flaw)),
            "{}",
            what("placed, but must be refused")
        );
        let place = match message.plan.kind {
            Kind::Write => message
                .remote
                .as_ref()
                .and_then(|target| target.at(cursor.offset)),
            _ => {
                let receive = here.receives.get(cursor.receives);
                receive.and_then(|receive| receive.target.at(cursor.offset))
            }
        };
        let (expected, room) = place.ok_or_else(|| what("placed where nothing was granted"))?;
        ensure!(
            expected == addr,
            "{}",
            what(&format!("placed at {addr:#x}, not {expected:#x}"))
        );
        let len = bytes.len() as u64;
        ensure!(
            len <= room && cursor.offset + len <= message.len(),
            "{}",
            what(&format!("{len} bytes placed, beyond the end"))
        );
        ensure!(
            message.content.matches(cursor.offset, bytes),
            "{}",
            what(&format!("{len} bytes are not what was sent"))
        );
        cursor.offset += len;
        self.endpoints[index].inbound = cursor;
        Ok(())
    }

    /// The response to a read placed `bytes` at `addr`.
    pub(in crate::simulator) fn placed_by_read(
        &mut self,
        index: EndpointIndex,
        addr: u64,
        bytes: &[u8],
    ) -> Result<(), Violation> {
        let here = &self.endpoints[index];
        let mut cursor = here.reading;
        let read = loop {
            let read = here.sends.get(cursor.message).ok_or_else(|| {
                violation!("endpoint {index} received read data after its last read")
            })?;
            if read.plan.kind == Kind::Read && read.len() > cursor.offset {
                break read;
            }
            cursor = Cursor {
                message: cursor.message + 1,
                offset: 0,
                ..cursor
            };
        };
        let what = |why: &str| {
            violation!(
                "endpoint {index}, byte {} of read {}: {why}",
                cursor.offset,
                cursor.message
            )
        };
        ensure!(
            read.plan.flaw.is_none_or(|flaw| flaw == Flaw::RemoteRange),
            "{}",
            what("answered, but must be refused")
        );
        let place = read.local.at(cursor.offset);
        let (expected, room) = place.ok_or_else(|| what("placed where nothing was granted"))?;
        ensure!(
            expected == addr,
            "{}",
            what(&format!("placed at {addr:#x}, not {expected:#x}"))
        );
        let len = bytes.len() as u64;
        ensure!(len <= room, "{}", what("placed beyond the end"));
        ensure!(
            read.content.matches(cursor.offset, bytes),
            "{}",
            what("wrong bytes")
        );
        cursor.offset += len;
        self.endpoints[index].reading = cursor;
        Ok(())
    }

    /// Whether message `message` of endpoint `index` arrived whole: its peer has placed the last
    /// byte, or, if the message is empty, completed its receive.
    pub(super) fn has_arrived(&self, index: EndpointIndex, message: usize) -> bool {
        let endpoint = &self.endpoints[index];
        let Some(posted) = endpoint.sends.get(message) else {
            return false;
        };
        if posted.plan.kind == Kind::Read {
            return posted.len() == 0 || endpoint.reading.is_past(message, posted.len());
        }
        self.receivers(index)
            .any(|receiver| self.has_arrived_at(receiver, index, message))
    }

    /// Whether message `message` of endpoint `index` (not a read) arrived whole at `receiver`.
    pub(super) fn has_arrived_at(
        &self,
        receiver: &Endpoint,
        index: EndpointIndex,
        message: usize,
    ) -> bool {
        let endpoint = &self.endpoints[index];
        let Some(posted) = endpoint.sends.get(message) else {
            return false;
        };
        if posted.len() > 0 && !receiver.inbound.is_past(message, posted.len()) {
            return false;
        }
        let before = endpoint.sends[..message].iter();
        let receives_before = before.filter(|posted| posted.plan.takes_receive()).count();
        !posted.plan.takes_receive() || receiver.receives_done > receives_before
    }
}
