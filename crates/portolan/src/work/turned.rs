//! Lets a task wait for completions that another task or thread dispatches.

use std::pin::Pin;
use std::task::{Context, Poll};

use super::table::{Turn, Work};

/// A future that is ready once completions were dispatched since a turn. Dropping it removes its
/// waker.
#[derive(Debug)]
pub(crate) struct Turned<'a> {
    work: &'a Work,
    turn: Turn,
    /// The index of its waker, valid within one turn: a dispatch removes all wakers.
    place: Option<usize>,
}

impl Work {
    /// Waits for a dispatch of completions since `turn`.
    pub(crate) fn turned_since(&self, turn: Turn) -> Turned<'_> {
        Turned {
            work: self,
            turn,
            place: None,
        }
    }
}

impl Future for Turned<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.work.state.lock();
        if state.turns != self.turn.0 {
            return Poll::Ready(());
        }
        let waker = context.waker();
        match self.place.and_then(|place| state.wakers.get_mut(place)) {
            Some(known) => known.clone_from(waker),
            None => {
                let place = state.wakers.insert(waker.clone());
                drop(state);
                self.place = Some(place);
            }
        }
        Poll::Pending
    }
}

impl Drop for Turned<'_> {
    fn drop(&mut self) {
        let mut state = self.work.state.lock();
        if state.turns == self.turn.0
            && let Some(place) = self.place
        {
            state.wakers.try_remove(place);
        }
    }
}
