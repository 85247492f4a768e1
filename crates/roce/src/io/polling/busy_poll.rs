//! How long the progress thread polls for packets before it sleeps.
//!
//! A program whose memory is read or written by a peer does nothing itself: each request wakes its progress thread.
//! Waking takes as long as everything else together, and much longer if a hypervisor or an emulator has to wake an
//! idle processor. A peer that waits for its answer is likely to send the next request soon.
//!
//! So after such a request the thread polls the rings and sockets for a short time, as a waiting thread of the program does
//! ([`Spin`]).

use std::time::Duration;

use portolan_threads::spin::Spin;

/// Polls without success before the thread sleeps, if they take longer than 50 µs.
const LOOKS_MIN: u32 = 128;
/// Requests found in a row before the thread looks at everything else that it waits for.
const FOUND_MAX: u32 = 16;
/// After this time with success, it does so as well.
const LONGEST: Duration = Duration::from_millis(1);

/// Decides from experience whether the thread polls after a request.
#[derive(Debug)]
pub(crate) struct BusyPoll {
    spin: Spin,
}

/// The result of one poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// A one-sided request, which the poll has executed.
    OneSided,
    /// The same, and the thread has something else to do.
    LastOneSided,
    Nothing,
    /// Other packets arrived, or the thread has something else to do.
    Enough,
}

impl Default for BusyPoll {
    fn default() -> Self {
        Self {
            spin: Spin::at_least(LOOKS_MIN),
        }
    }
}

impl BusyPoll {
    /// Polls for the next one-sided requests after one was executed, while no thread polls. Returns whether any was
    /// executed.
    pub(crate) fn run(
        &self,
        clock: impl Fn() -> Duration,
        mut look: impl FnMut(Duration) -> Look,
    ) -> bool {
        let mut now = clock();
        let begun = now;
        let mut polling = self.spin.start();
        let mut found = 0;
        loop {
            let looked = look(now);
            now = clock();
            match looked {
                Look::OneSided => {
                    found += 1;
                    if found == FOUND_MAX || now.saturating_sub(begun) >= LONGEST {
                        return true;
                    }
                    polling = self.spin.start();
                }
                Look::LastOneSided => return true,
                Look::Nothing if self.spin.goes_on(&mut polling) => {}
                Look::Nothing | Look::Enough => return found > 0,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs with the results of its looks, `gap` apart. Returns what the run says, and how many looks it made.
    fn run(looks: impl IntoIterator<Item = Look>, gap: Duration) -> (bool, u32) {
        let now = std::cell::Cell::new(Duration::ZERO);
        let (mut looks, mut made) = (looks.into_iter(), 0);
        let found = BusyPoll::default().run(
            || now.get(),
            |_| {
                made += 1;
                now.set(now.get() + gap);
                looks.next().expect("no further look")
            },
        );
        (found, made)
    }

    #[test]
    fn requests_that_follow_each_other_are_taken_in_one_run_until_other_work_is_looked_for() {
        let requests = || std::iter::repeat(Look::OneSided);
        let gap = Duration::from_micros(1);
        assert_eq!(run(requests(), gap), (true, FOUND_MAX));
        assert_eq!(run(requests(), LONGEST / 2), (true, 2));
        assert_eq!(run([Look::OneSided, Look::Enough], gap), (true, 2));
        assert_eq!(run([Look::Enough], gap), (false, 1));
        assert_eq!(run([Look::LastOneSided], gap), (true, 1));
    }

    #[test]
    fn a_run_ends_if_no_further_request_comes() {
        let nothing = || std::iter::repeat(Look::Nothing);
        let gap = Duration::from_micros(1);
        assert!(!run(nothing(), gap).0);
        let (found, looks) = run(std::iter::once(Look::OneSided).chain(nothing()), gap);
        assert!(found && looks > 1);
    }
}
