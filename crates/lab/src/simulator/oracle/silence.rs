//! How long a queue pair may wait for an answer.

use std::time::Duration;

use portolan_provider::verbs::{QpAttr, QpState};
use portolan_wire::timer::{cm_timeout_us, rnr_timer_us};

use super::{EndpointIndex, Oracle};
use crate::simulator::failure::{Violation, ensure};

/// Timers fire on time here; what is added to a limit for the order of things of one moment.
const SLACK: Duration = Duration::from_millis(1);

/// What a queue pair has waited for.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::simulator) struct Silence {
    /// The last new request sent, or the last response heard.
    since: Option<Duration>,
    limit: Duration,
    /// One try, and how many there are.
    once: Duration,
    tries: u32,
}

/// What a machine missed of the time.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::simulator) struct Lateness {
    /// All its stalls together, and how many they were.
    pub(in crate::simulator) total: Duration,
    pub(in crate::simulator) stalls: u32,
}

impl Silence {
    /// The queue pair is ready to send with these attributes, to a peer that asks it to wait for
    /// `rnr_timer` when it is not ready.
    pub(in crate::simulator) fn configure(&mut self, attr: &QpAttr, rnr_timer: u8) {
        let once = Duration::from_micros(cm_timeout_us(attr.timeout));
        let rnr_wait = Duration::from_micros(rnr_timer_us(rnr_timer).into());
        self.once = once;
        self.tries = u32::from(attr.retry_cnt) + 1;
        self.limit = once * self.tries + rnr_wait + SLACK;
    }

    pub(in crate::simulator) fn sent(&mut self, now: Duration) {
        self.since = Some(now);
    }

    pub(in crate::simulator) fn heard(&mut self, now: Duration) {
        self.since = Some(now);
    }
}

impl Oracle {
    /// A queue pair whose requests nobody answers gives up after all its retries, and not later,
    /// unless its machine stalled: what it missed does not count, and a last try that a stall cut into
    /// is one more.
    pub(in crate::simulator) fn check_silence(
        &self,
        index: EndpointIndex,
        now: Duration,
        state: QpState,
        late: Lateness,
    ) -> Result<(), Violation> {
        let endpoint = &self.endpoints[index];
        let Some(since) = endpoint.silence.since.filter(|_| state == QpState::Rts) else {
            return Ok(());
        };
        let waited = now.saturating_sub(since);
        let Silence {
            limit, once, tries, ..
        } = endpoint.silence;
        if waited <= limit + late.total + once * late.stalls.min(tries) {
            return Ok(());
        }
        let first = endpoint.sends_done;
        let awaited = endpoint.sends.iter().enumerate().skip(first);
        let mut awaited =
            awaited.filter(|(at, posted)| posted.is_signaled || !self.has_arrived(index, *at));
        let oldest = awaited.next().map(|(at, _)| at);
        ensure!(
            oldest.is_none(),
            "endpoint {index} waited {waited:?} for an answer to request {oldest:?} and did not give \
             up; its limit is {limit:?}",
        );
        Ok(())
    }
}
