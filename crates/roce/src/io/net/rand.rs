//! Unpredictable numbers: keys, queue pair numbers, source ports, seeds.

use std::cell::Cell;

use portolan_provider::{Cause, Error, Result, Step};
use portolan_threads::fork;
use rustix::io::{Errno, retry_on_intr};
use rustix::rand::{GetRandomFlags, getrandom};

/// Numbers that one system call gets. A connection needs two at each end.
const RESERVE: usize = 16;

thread_local! {
    /// The process that got the numbers (a forked child must not hand out the same), how many are not handed out yet, and
    /// the numbers.
    static UNUSED: Cell<(u32, usize, [u32; RESERVE])> = const { Cell::new((0, 0, [0; RESERVE])) };
}

/// Bytes from the kernel's generator. Up to 256 bytes arrive completely or not at all (getrandom(2)).
///
/// # Errors
/// `Os` if the kernel refuses.
pub fn random<const N: usize>(step: Step) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let errno = match retry_on_intr(|| getrandom(&mut bytes, GetRandomFlags::empty())) {
        Ok(got) if got == N => return Ok(bytes),
        Ok(_) => Errno::IO,
        Err(errno) => errno,
    };
    let (call, errno) = ("getrandom", errno.raw_os_error());
    Err(Error::new(step, Cause::Os { call, errno }))
}

/// 32 bits from the kernel's generator.
pub(crate) fn random_u32(step: Step) -> Result<u32> {
    let process = fork::generation();
    let (owner, mut left, mut numbers) = UNUSED.get();
    if owner != process || left == 0 {
        let bytes: [u8; 4 * RESERVE] = random(step)?;
        let (words, _) = bytes.as_chunks();
        for (number, word) in numbers.iter_mut().zip(words) {
            *number = u32::from_ne_bytes(*word);
        }
        left = RESERVE;
    }
    left -= 1;
    UNUSED.set((process, left, numbers));
    Ok(numbers[left])
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn numbers_are_handed_out_once_also_by_several_threads() {
        let draw = || -> Vec<u32> {
            let draws = (0..5 * RESERVE).map(|_| random_u32(Step::CreateQp).unwrap());
            draws.collect()
        };
        let threads = [(); 4].map(|()| std::thread::spawn(draw));
        let drawn: Vec<u32> = threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect();
        // Two of 320 numbers are equal once in 80,000 runs.
        assert_eq!(drawn.iter().collect::<HashSet<_>>().len(), drawn.len());
    }
}
