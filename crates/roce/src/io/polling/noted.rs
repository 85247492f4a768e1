//! A list of queue pairs that another thread will handle soon.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use portolan_threads::lock::Mutex;
use portolan_wire::Qpn;

/// Numbers of queue pairs. The caller notes each at most once.
///
/// Mostly one queue pair is noted at a time, so the first one has a place that needs no lock.
#[derive(Debug, Default)]
pub(crate) struct Noted {
    /// 0 if there is none.
    first: AtomicU32,
    any: AtomicBool,
    queue_pairs: Mutex<Vec<Qpn>>,
}

impl Noted {
    #[inline]
    pub(crate) fn note(&self, qpn: Qpn) {
        let first = &self.first;
        let noted = first.compare_exchange(0, qpn.value(), Ordering::SeqCst, Ordering::SeqCst);
        if noted.is_err() || qpn.value() == 0 {
            self.note_more(qpn);
        }
    }

    #[cold]
    fn note_more(&self, qpn: Qpn) {
        let mut queue_pairs = self.queue_pairs.lock();
        queue_pairs.push(qpn);
        self.any.store(true, Ordering::SeqCst);
    }

    /// Undoes the last [`note`](Self::note) of a queue pair, if that costs little: the queue pair may stay noted.
    #[inline]
    pub(crate) fn cross_out(&self, qpn: Qpn) {
        let first = &self.first;
        let _ = first.compare_exchange(qpn.value(), 0, Ordering::SeqCst, Ordering::SeqCst);
    }

    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.first.load(Ordering::SeqCst) != 0 || self.any.load(Ordering::SeqCst)
    }

    pub(crate) fn take(&self) -> Option<Qpn> {
        if self.first.load(Ordering::SeqCst) != 0 {
            let first = self.first.swap(0, Ordering::SeqCst);
            if first != 0 {
                return Some(Qpn::new(first));
            }
        }
        if !self.any.load(Ordering::SeqCst) {
            return None;
        }
        let mut queue_pairs = self.queue_pairs.lock();
        let next = queue_pairs.pop();
        if next.is_none() {
            self.any.store(false, Ordering::SeqCst);
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_noted_entry_is_taken_once() {
        let noted = Noted::default();
        assert!(!noted.any());
        noted.note(Qpn::new(1));
        noted.note(Qpn::new(2));
        assert!(noted.any());
        let mut taken: Vec<_> = std::iter::from_fn(|| noted.take()).collect();
        taken.sort();
        assert_eq!(taken, [Qpn::new(1), Qpn::new(2)]);
        assert!(!noted.any());
        noted.note(Qpn::new(3));
        noted.cross_out(Qpn::new(4));
        assert!(noted.any());
        noted.cross_out(Qpn::new(3));
        assert!(!noted.any());
        assert_eq!(noted.take(), None);
    }
}
