//! How long a queue pair may wait for an answer.

use std::time::Duration;

use portolan_provider::verbs::{QpAttr, QpState};
use portolan_wire::timer::{cm_timeout_us, rnr_timer_us};

use super::{EndpointIndex, Oracle};
use crate::simulator::failure::{Violation, ensure};

/// Added to a limit for the order of tasks at the same time. Timers fire on time here.
const SLACK: Duration = Duration::from_millis(1);

/// How long a queue pair has waited for an answer.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::simulator) struct Silence {
    /// When the last new request was sent or the last response arrived.
    since: Option<Duration>,
    limit: Duration,
    /// Timeout of one try, and number of tries.
    once: Duration,
    tries: u32,
}

/// Time that a machine lost to stalls.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::simulator) struct Lateness {
    /// Total time of its stalls, and their number.
    pub(in crate::simulator) total: Duration,
    pub(in crate::simulator) stalls: u32,
}

impl Silence {
    /// The queue pair enters RTS with these attributes. Its peer's RNR NAKs carry `rnr_timer`.
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
    /// A queue pair without responses must give up after its retries, and not later. Time stalled
    /// does not count, and each stall may cost one more try.
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
