//! A list of queue pairs that another thread will handle soon.

use std::sync::atomic::{AtomicBool, Ordering};

use portolan_threads::lock::Mutex;
use portolan_wire::Qpn;

/// Numbers of queue pairs. The caller notes each at most once.
#[derive(Debug, Default)]
pub(crate) struct Noted {
    any: AtomicBool,
    queue_pairs: Mutex<Vec<Qpn>>,
}

impl Noted {
    pub(crate) fn note(&self, qpn: Qpn) {
        let mut queue_pairs = self.queue_pairs.lock();
        queue_pairs.push(qpn);
        self.any.store(true, Ordering::SeqCst);
    }

    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::SeqCst)
    }

    pub(crate) fn take(&self) -> Option<Qpn> {
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
    }
}
