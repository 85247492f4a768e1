//! Runs work in parallel.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;

/// Number of threads.
const THREADS: usize = 2;

/// Applies `work` to each item in parallel. The results are in the order of the items.
pub(crate) fn side_by_side<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let (send, done) = channel();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            let (send, next, work) = (send.clone(), &next, &work);
            scope.spawn(move || {
                while let Some((at, item)) = take(items, next) {
                    if send.send((at, work(item))).is_err() {
                        return;
                    }
                }
            });
        }
    });
    drop(send);
    let mut results: Vec<(usize, R)> = done.iter().collect();
    results.sort_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}

fn take<'a, T>(items: &'a [T], next: &AtomicUsize) -> Option<(usize, &'a T)> {
    let at = next.fetch_add(1, Ordering::Relaxed);
    Some((at, items.get(at)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_item_is_done_once_and_the_results_are_in_order() {
        let items: Vec<u64> = (0..100).collect();
        let squares = side_by_side(&items, |number| number * number);
        let expected: Vec<u64> = items.iter().map(|number| number * number).collect();
        assert_eq!(squares, expected);
    }
}
