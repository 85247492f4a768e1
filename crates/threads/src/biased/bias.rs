//! Which thread may enter a lock without an atomic instruction.

use super::sync::{
    AtomicU32, AtomicUsize, Ordering, heavy_barrier, light_barrier, wait_for_zero, wake,
};

/// Threads that can ever own one lock.
const OWNERS_MAX: usize = 4;
/// The bits of an owner that are its place. The numbers of threads are multiples.
const PLACE: usize = OWNERS_MAX - 1;
/// No thread has this number.
const NOBODY: usize = 0;

/// The bias of a lock towards one thread, its owner.
///
/// The owner writes that it enters, and then checks that it is still the owner. Another thread takes the ownership, and
/// then looks whether the owner has entered. With a full barrier between the two steps of both, one of them would see the
/// other (Dekker's algorithm). The owner has none: the other thread makes it execute one, wherever it is.
///
/// A thread that finds that it is not the owner any more may find it late, when there is another owner already. So each
/// has a place of its own to write to, for ever. When all places are taken, no further thread gets the ownership.
#[derive(Debug, Default)]
pub(super) struct Bias {
    /// The thread that may enter, with the number of its place. Only a thread that holds the lock changes it.
    owner: AtomicUsize,
    places: [Place; OWNERS_MAX],
}

#[derive(Debug, Default)]
struct Place {
    thread: AtomicUsize,
    /// How often the thread has entered and not left. Only this thread changes it.
    entered: AtomicU32,
}

/// Who may enter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Nobody,
    Itself,
    Another,
}

impl Bias {
    /// Enters if this thread is the owner, and has not entered already. Returns the owner that it enters as.
    #[inline(always)]
    pub(super) fn enter(&self, this_thread: usize) -> Option<usize> {
        let owner = self.owner.load(Ordering::Relaxed);
        if !is_of(owner, this_thread) {
            return None;
        }
        let entered = &self.place(owner).entered;
        if entered.load(Ordering::Relaxed) != 0 {
            return None;
        }
        entered.store(1, Ordering::Relaxed);
        self.stays(owner).then_some(owner)
    }

    /// Enters if this thread is the owner, which leaves as often as it has entered. Returns the owner that it enters as.
    #[inline(always)]
    pub(super) fn enter_again(&self, this_thread: usize) -> Option<usize> {
        let owner = self.owner.load(Ordering::Relaxed);
        if !is_of(owner, this_thread) {
            return None;
        }
        let entered = &self.place(owner).entered;
        entered.store(entered.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        self.stays(owner).then_some(owner)
    }

    /// This thread has written that it enters as this owner. Leaves if it is not the owner any more.
    #[inline(always)]
    fn stays(&self, owner: usize) -> bool {
        light_barrier();
        let is_still = self.owner.load(Ordering::Acquire) == owner;
        if !is_still {
            self.leave_late(owner);
        }
        is_still
    }

    #[cold]
    fn leave_late(&self, owner: usize) {
        let entered = &self.place(owner).entered;
        entered.store(entered.load(Ordering::Relaxed) - 1, Ordering::Release);
        wake(entered);
    }

    /// Leaves what this thread has [entered](Self::enter) as this owner.
    #[inline(always)]
    pub(super) fn leave(&self, owner: usize) {
        let entered = &self.place(owner).entered;
        entered.store(0, Ordering::Release);
        self.wake_if_taken(owner);
    }

    /// Leaves once what this thread has [entered](Self::enter_again) as this owner.
    #[inline(always)]
    pub(super) fn leave_again(&self, owner: usize) {
        let entered = &self.place(owner).entered;
        entered.store(entered.load(Ordering::Relaxed) - 1, Ordering::Release);
        self.wake_if_taken(owner);
    }

    /// Wakes the thread that takes the ownership away.
    #[inline(always)]
    fn wake_if_taken(&self, owner: usize) {
        light_barrier();
        if self.owner.load(Ordering::Relaxed) != owner {
            self.wake(owner);
        }
    }

    #[cold]
    fn wake(&self, owner: usize) {
        wake(&self.place(owner).entered);
    }

    /// Whether the owner has entered. Exact for the owner itself while it holds the lock, otherwise a guess.
    #[inline]
    pub(super) fn has_entered(&self) -> bool {
        let owner = self.owner.load(Ordering::Relaxed);
        self.place(owner).entered.load(Ordering::Relaxed) != 0
    }

    /// The thread that may enter, as one that holds the lock sees it.
    #[inline]
    pub(super) fn owner(&self, this_thread: usize) -> Owner {
        match self.owner.load(Ordering::Relaxed) {
            NOBODY => Owner::Nobody,
            owner if is_of(owner, this_thread) => Owner::Itself,
            _ => Owner::Another,
        }
    }

    /// Makes this thread the owner if it can get a place. There is no owner, and the caller holds the lock, or is one of
    /// several readers that hold it together: then another one may be faster.
    pub(super) fn give_to(&self, this_thread: usize) {
        let (claimed, not) = (Ordering::Relaxed, Ordering::Relaxed);
        let place = (0..OWNERS_MAX).find(|place| {
            let thread = &self.place(*place).thread;
            self.is_place_of(*place, this_thread)
                || thread
                    .compare_exchange(NOBODY, this_thread, claimed, not)
                    .is_ok()
        });
        if let Some(place) = place {
            let (given, not) = (Ordering::Release, Ordering::Relaxed);
            let owner = this_thread | place;
            let _ = self.owner.compare_exchange(NOBODY, owner, given, not);
        }
    }

    /// Gives the ownership of this thread up. It holds the lock, and has not entered by its ownership.
    pub(super) fn give_up(&self) {
        self.owner.store(NOBODY, Ordering::Relaxed);
    }

    /// Takes the ownership from another thread, and waits until that has left. The caller holds the lock.
    pub(super) fn revoke(&self) {
        let owner = self.owner.load(Ordering::Relaxed);
        self.owner.store(NOBODY, Ordering::Relaxed);
        heavy_barrier();
        wait_for_zero(&self.place(owner).entered);
    }

    /// As [`revoke`](Self::revoke), but changes nothing and returns false if the owner has entered.
    pub(super) fn try_revoke(&self) -> bool {
        let owner = self.owner.load(Ordering::Relaxed);
        self.owner.store(NOBODY, Ordering::Relaxed);
        heavy_barrier();
        let is_out = self.place(owner).entered.load(Ordering::Acquire) == 0;
        if !is_out {
            self.owner.store(owner, Ordering::Release);
        }
        is_out
    }

    /// The place of an owner, or with a number.
    #[inline(always)]
    fn place(&self, owner: usize) -> &Place {
        &self.places[owner & PLACE]
    }

    fn is_place_of(&self, place: usize, thread: usize) -> bool {
        self.place(place).thread.load(Ordering::Relaxed) == thread
    }
}

#[inline(always)]
fn is_of(owner: usize, thread: usize) -> bool {
    // A thread's number has no bits of a place.
    (owner ^ thread) <= PLACE
}
