//! When the progress thread looks at sockets that a thread of the program waits for: that thread may be stopped, be in a
//! signal handler, or have left its wait by longjmp(3).

use std::time::Duration;

use crate::io::polling::progress::{LOOK_INTERVAL, SLEEPER_LOOK_MAX};

/// The first look after traffic. Each further one waits twice as long.
const FIRST: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct SleeperLooks {
    due: Option<Duration>,
    interval: Duration,
    /// Number of packets of the process at the last plan.
    packets: u64,
}

impl Default for SleeperLooks {
    fn default() -> Self {
        Self {
            due: None,
            interval: FIRST,
            packets: 0,
        }
    }
}

impl SleeperLooks {
    /// The time of the next look. `None` if the progress thread itself waits for the sockets. `waits`: a thread of the
    /// program does. `is_away`: they are left to such a thread, which does not wait now.
    pub(crate) fn plan(
        &mut self,
        waits: bool,
        is_away: bool,
        packets: u64,
        now: Duration,
    ) -> Option<Duration> {
        if !waits && !is_away {
            self.due = None;
            return None;
        }
        if packets != self.packets {
            self.packets = packets;
            self.interval = FIRST;
        }
        let within = now
            + if is_away {
                LOOK_INTERVAL
            } else {
                self.interval
            };
        self.due = Some(self.due.map_or(within, |due| due.min(within)));
        self.due
    }

    /// Whether a look is due. It counts as done.
    pub(crate) fn take_due(&mut self, now: Duration) -> bool {
        let is_due = self.due.is_some_and(|due| due <= now);
        if is_due {
            self.due = None;
            self.interval = (2 * self.interval).min(SLEEPER_LOOK_MAX);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The times of the looks until `end`, while a thread waits and nothing arrives.
    fn looks(plan: &mut SleeperLooks, mut now: Duration, end: Duration, packets: u64) -> Vec<u128> {
        let mut found = Vec::new();
        while now < end {
            now = plan.plan(true, false, packets, now).unwrap();
            assert!(plan.take_due(now));
            found.push(now.as_millis());
        }
        found
    }

    #[test]
    fn an_idle_process_is_looked_at_ever_less_often_and_at_least_every_two_seconds() {
        let mut plan = SleeperLooks::default();
        let end = Duration::from_secs(10);
        let times = [50, 150, 350, 750, 1550, 3150, 5150, 7150, 9150, 11150];
        assert_eq!(looks(&mut plan, Duration::ZERO, end, 0), times);
        // After traffic it begins again.
        let later = Duration::from_secs(20);
        assert_eq!(looks(&mut plan, later, later + FIRST, 1), [20_050]);
    }

    #[test]
    fn sockets_that_nobody_waits_for_are_looked_at_soon_whatever_was_planned() {
        let mut plan = SleeperLooks::default();
        plan.plan(true, false, 0, Duration::ZERO);
        let soon = plan.plan(false, true, 0, Duration::ZERO).unwrap();
        assert_eq!(soon, LOOK_INTERVAL);
        assert!(!plan.take_due(soon - Duration::from_nanos(1)));
        assert!(plan.take_due(soon) && !plan.take_due(soon));
        assert_eq!(plan.plan(false, false, 0, soon), None);
    }
}
