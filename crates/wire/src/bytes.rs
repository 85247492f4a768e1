//! Checked access to byte buffers, shared by all parsers.

use crate::{Error, Result};

/// The first `N` bytes of `input`.
pub(crate) fn head<'a, const N: usize>(what: &'static str, input: &'a [u8]) -> Result<&'a [u8; N]> {
    input.first_chunk().ok_or(Error::Truncated {
        what,
        needed: N,
        got: input.len(),
    })
}

/// Splits the first `N` bytes off `input`.
pub(crate) fn split<'a, const N: usize>(
    what: &'static str,
    input: &'a [u8],
) -> Result<(&'a [u8; N], &'a [u8])> {
    input.split_first_chunk().ok_or(Error::Truncated {
        what,
        needed: N,
        got: input.len(),
    })
}

/// Writes `bytes` at the front of `out`; returns their number.
pub(crate) fn put(what: &'static str, bytes: &[u8], out: &mut [u8]) -> Result<usize> {
    let got = out.len();
    out.get_mut(..bytes.len())
        .ok_or(Error::NoRoom {
            what,
            needed: bytes.len(),
            got,
        })?
        .copy_from_slice(bytes);
    Ok(bytes.len())
}

/// Returns `value` if it fits into `width` bits.
pub(crate) fn fit(what: &'static str, value: u32, width: u32) -> Result<u32> {
    let max = u32::MAX >> (32 - width);
    if value <= max {
        Ok(value)
    } else {
        Err(Error::OutOfRange {
            what,
            max: max.into(),
            got: value.into(),
        })
    }
}

/// A 24-bit big-endian number.
pub(crate) const fn be24(bytes: [u8; 3]) -> u32 {
    u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]])
}

/// The low 24 bits of `value`, big-endian.
pub(crate) const fn to_be24(value: u32) -> [u8; 3] {
    let [_, a, b, c] = value.to_be_bytes();
    [a, b, c]
}

/// Reads fields of a header at constant offsets. An offset outside of the header does not compile.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a, const N: usize>(pub(crate) &'a [u8; N]);

impl<const N: usize> Fields<'_, N> {
    /// `LEN` bytes at `AT`.
    pub(crate) fn array<const AT: usize, const LEN: usize>(self) -> [u8; LEN] {
        const { assert!(AT + LEN <= N, "field outside of its header") };
        let mut out = [0; LEN];
        out.copy_from_slice(&self.0[AT..AT + LEN]);
        out
    }

    pub(crate) fn u8<const AT: usize>(self) -> u8 {
        let [byte] = self.array::<AT, 1>();
        byte
    }

    /// `WIDTH` bits of the byte at `AT`; bit `SHIFT` is the lowest.
    pub(crate) fn bits<const AT: usize, const SHIFT: u32, const WIDTH: u32>(self) -> u8 {
        const {
            assert!(
                WIDTH > 0 && SHIFT + WIDTH <= 8,
                "bits outside of their byte"
            )
        };
        self.u8::<AT>() >> SHIFT & (0xFF >> (8 - WIDTH))
    }

    /// Bit `SHIFT` of the byte at `AT`.
    pub(crate) fn bit<const AT: usize, const SHIFT: u32>(self) -> bool {
        self.bits::<AT, SHIFT, 1>() != 0
    }

    pub(crate) fn u16<const AT: usize>(self) -> u16 {
        u16::from_be_bytes(self.array::<AT, 2>())
    }

    pub(crate) fn u24<const AT: usize>(self) -> u32 {
        be24(self.array::<AT, 3>())
    }

    pub(crate) fn u32<const AT: usize>(self) -> u32 {
        u32::from_be_bytes(self.array::<AT, 4>())
    }

    pub(crate) fn u64<const AT: usize>(self) -> u64 {
        u64::from_be_bytes(self.array::<AT, 8>())
    }
}

/// Builds a header of zeros by setting fields at constant offsets.
pub(crate) struct Builder<const N: usize>([u8; N]);

impl<const N: usize> Builder<N> {
    pub(crate) const fn new() -> Self {
        Builder([0; N])
    }

    /// The header built so far.
    pub(crate) const fn bytes(&self) -> &[u8; N] {
        &self.0
    }

    pub(crate) const fn finish(self) -> [u8; N] {
        self.0
    }

    /// Sets `LEN` bytes at `AT`.
    pub(crate) fn array<const AT: usize, const LEN: usize>(
        &mut self,
        value: &[u8; LEN],
    ) -> &mut Self {
        const { assert!(AT + LEN <= N, "field outside of its header") };
        self.0[AT..AT + LEN].copy_from_slice(value);
        self
    }

    pub(crate) fn u8<const AT: usize>(&mut self, value: u8) -> &mut Self {
        self.array::<AT, 1>(&[value])
    }

    /// Sets `WIDTH` bits of the byte at `AT`; bit `SHIFT` is the lowest. The value must fit.
    pub(crate) fn bits<const AT: usize, const SHIFT: u32, const WIDTH: u32>(
        &mut self,
        what: &'static str,
        value: u8,
    ) -> Result<&mut Self> {
        const { assert!(AT < N, "field outside of its header") };
        const {
            assert!(
                WIDTH > 0 && SHIFT + WIDTH <= 8,
                "bits outside of their byte"
            )
        };
        self.0[AT] |= (fit(what, value.into(), WIDTH)? as u8) << SHIFT;
        Ok(self)
    }

    /// Sets bit `SHIFT` of the byte at `AT`.
    pub(crate) fn bit<const AT: usize, const SHIFT: u32>(&mut self, value: bool) -> &mut Self {
        const { assert!(AT < N && SHIFT < 8, "bit outside of its header") };
        self.0[AT] |= u8::from(value) << SHIFT;
        self
    }

    pub(crate) fn u16<const AT: usize>(&mut self, value: u16) -> &mut Self {
        self.array::<AT, 2>(&value.to_be_bytes())
    }

    /// Sets 24 bits; the value must fit.
    pub(crate) fn u24<const AT: usize>(
        &mut self,
        what: &'static str,
        value: u32,
    ) -> Result<&mut Self> {
        Ok(self.array::<AT, 3>(&to_be24(fit(what, value, 24)?)))
    }

    pub(crate) fn u32<const AT: usize>(&mut self, value: u32) -> &mut Self {
        self.array::<AT, 4>(&value.to_be_bytes())
    }

    pub(crate) fn u64<const AT: usize>(&mut self, value: u64) -> &mut Self {
        self.array::<AT, 8>(&value.to_be_bytes())
    }
}

/// Generates `LEN`, `parse` and `emit` of a header from its conversions `from_bytes` and
/// `to_bytes`.
macro_rules! header {
    ($repr:ty, $name:literal, $len:literal) => {
        impl $repr {
            /// Length of the header, in bytes.
            pub const LEN: usize = $len;

            /// Reads the header at the front of `input`.
            ///
            /// # Errors
            ///
            /// [`Error::Truncated`](crate::Error::Truncated).
            pub fn parse(input: &[u8]) -> $crate::Result<Self> {
                let bytes: &[u8; $len] = $crate::bytes::head($name, input)?;
                Ok(Self::from_fields($crate::bytes::Fields(bytes)))
            }

            /// Writes the header at the front of `out`; returns `LEN`.
            ///
            /// # Errors
            ///
            /// [`Error::NoRoom`](crate::Error::NoRoom) if `out` is shorter;
            /// [`Error::OutOfRange`](crate::Error::OutOfRange) for a value wider than its field.
            pub fn emit(&self, out: &mut [u8]) -> $crate::Result<usize> {
                let mut header = $crate::bytes::Builder::<$len>::new();
                self.build(&mut header)?;
                $crate::bytes::put($name, &header.finish(), out)
            }
        }
    };
}
pub(crate) use header;
