//! 24-bit numbers: queue pair numbers and packet sequence numbers.

use core::fmt;

const MASK_24: u32 = 0x00FF_FFFF;

/// A 24-bit queue pair number.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Qpn(u32);

impl Qpn {
    /// QP1, the general services interface, which receives connection management datagrams.
    pub const GSI: Qpn = Qpn(1);
    /// The destination queue pair of multicast packets (IBTA 10.5).
    pub const MULTICAST: Qpn = Qpn(MASK_24);
    /// The largest number.
    pub const MAX: Qpn = Qpn(MASK_24);

    /// The low 24 bits of `value`.
    #[inline]
    pub const fn new(value: u32) -> Qpn {
        Qpn(value & MASK_24)
    }

    /// The number, at most 24 bits.
    #[inline]
    pub const fn value(self) -> u32 {
        self.0
    }
}

impl From<Qpn> for u32 {
    fn from(qpn: Qpn) -> u32 {
        qpn.0
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:06x}", self.0)
    }
}

impl fmt::Debug for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Qpn({self})")
    }
}

/// A 24-bit packet sequence number (IBTA 9.7.1). It wraps, so it has no order: compare with
/// [`Psn::diff`].
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    /// The largest number; the next is zero.
    pub const MAX: Psn = Psn(MASK_24);

    /// The low 24 bits of `value`.
    #[inline]
    pub const fn new(value: u32) -> Psn {
        Psn(value & MASK_24)
    }

    /// The number, at most 24 bits.
    #[inline]
    pub const fn value(self) -> u32 {
        self.0
    }

    /// `count` packets later.
    #[must_use]
    #[inline]
    pub const fn add(self, count: u32) -> Psn {
        Psn::new(self.0.wrapping_add(count))
    }

    /// `count` packets earlier.
    #[must_use]
    #[inline]
    pub const fn sub(self, count: u32) -> Psn {
        Psn::new(self.0.wrapping_sub(count))
    }

    /// The next number.
    #[must_use]
    #[inline]
    pub const fn next(self) -> Psn {
        self.add(1)
    }

    /// The signed distance from `other` to `self`, negative if `self` is behind: the shorter way
    /// around, from −2^23 to 2^23 − 1 (IBTA 9.7.1, the valid and the duplicate region).
    #[inline]
    pub const fn diff(self, other: Psn) -> i32 {
        // The left shift moves the 24-bit sign to the word's sign bit; the arithmetic right shift
        // extends it.
        (self.0.wrapping_sub(other.0) << 8) as i32 >> 8
    }
}

impl From<Psn> for u32 {
    fn from(psn: Psn) -> u32 {
        psn.0
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Psn({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn diff_undoes_add_within_half_the_circle(start: u32, step in -(1i32 << 23)..(1 << 23)) {
            let start = Psn::new(start);
            let end = start.add(step as u32);
            prop_assert_eq!(end.diff(start), step);
            prop_assert_eq!(end.sub(step as u32), start);
        }

        #[test]
        fn diff_is_antisymmetric_except_at_the_antipode(a: u32, b: u32) {
            let (a, b) = (Psn::new(a), Psn::new(b));
            if a.diff(b) == -(1 << 23) {
                prop_assert_eq!(b.diff(a), -(1 << 23));
            } else {
                prop_assert_eq!(a.diff(b), -b.diff(a));
            }
        }

        #[test]
        fn no_number_leaves_24_bits(value: u32, count: u32) {
            prop_assert!(Psn::new(value).add(count).value() <= Psn::MAX.value());
            prop_assert!(Psn::new(value).sub(count).value() <= Psn::MAX.value());
            prop_assert!(Qpn::new(value).value() <= Qpn::MAX.value());
        }
    }

    #[test]
    fn zero_follows_the_largest() {
        assert_eq!(Psn::MAX.next(), Psn::new(0));
        assert_eq!(Psn::new(0).diff(Psn::MAX), 1);
        assert_eq!(Psn::MAX.diff(Psn::new(0)), -1);
    }
}
