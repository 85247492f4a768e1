//! Checked access to byte buffers, and the layouts of headers: each field is declared with its place.

use crate::addr::{Gid, PKey, Psn, QKey, Qpn, ServiceId};
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

/// Returns an error unless a field has the only supported value.
pub(crate) fn expect(what: &'static str, got: u8, expected: u8) -> Result<()> {
    match got == expected {
        true => Ok(()),
        false => Err(Error::Unsupported {
            what,
            got: got.into(),
        }),
    }
}

/// A value of whole bytes.
pub(crate) trait Value: Sized {
    /// Length in bytes.
    const LEN: usize;

    /// Reads the value from `LEN` bytes.
    fn read(bytes: &[u8]) -> Self;

    /// Writes the value to `LEN` bytes, which are zero. Errors name it `what`.
    fn write(&self, what: &'static str, bytes: &mut [u8]) -> Result<()>;
}

/// A value of up to 32 bits.
pub(crate) trait Narrow {
    fn from_bits(bits: u32) -> Self;

    fn to_bits(&self) -> u32;
}

/// A field's place in a header.
pub(crate) trait Place<T> {
    /// Where the field ends, in bytes.
    const END: usize;

    fn get(header: &[u8]) -> T;

    /// Writes the field to a header where its bits are zero. Errors name it `what`.
    fn put(what: &'static str, value: &T, header: &mut [u8]) -> Result<()>;
}

/// Whole bytes from `BYTE` on.
pub(crate) struct At<const BYTE: usize>;

impl<T: Value, const BYTE: usize> Place<T> for At<BYTE> {
    const END: usize = BYTE + T::LEN;

    #[inline]
    fn get(header: &[u8]) -> T {
        T::read(&header[BYTE..BYTE + T::LEN])
    }

    #[inline]
    fn put(what: &'static str, value: &T, header: &mut [u8]) -> Result<()> {
        value.write(what, &mut header[BYTE..BYTE + T::LEN])
    }
}

/// `WIDTH` bits, above the lowest `SHIFT` bits of a big-endian number: the shortest one that begins at `BYTE` and has
/// them all.
pub(crate) struct Bits<const BYTE: usize, const SHIFT: u32, const WIDTH: u32>;

impl<T: Narrow, const BYTE: usize, const SHIFT: u32, const WIDTH: u32> Place<T>
    for Bits<BYTE, SHIFT, WIDTH>
{
    const END: usize = BYTE + (SHIFT + WIDTH).div_ceil(8) as usize;

    #[inline]
    fn get(header: &[u8]) -> T {
        const { assert!(WIDTH > 0 && SHIFT + WIDTH <= 32, "more than a word") };
        let mut number = 0;
        for byte in &header[BYTE..<Self as Place<T>>::END] {
            number = number << 8 | u32::from(*byte);
        }
        T::from_bits(number >> SHIFT & (u32::MAX >> (32 - WIDTH)))
    }

    #[inline]
    fn put(what: &'static str, value: &T, header: &mut [u8]) -> Result<()> {
        let mut number = fit(what, value.to_bits(), WIDTH)? << SHIFT;
        for byte in header[BYTE..<Self as Place<T>>::END].iter_mut().rev() {
            *byte |= number as u8;
            number >>= 8;
        }
        Ok(())
    }
}

impl<const N: usize> Value for [u8; N] {
    const LEN: usize = N;

    #[inline]
    fn read(bytes: &[u8]) -> Self {
        let mut array = [0; N];
        array.copy_from_slice(bytes);
        array
    }

    #[inline]
    fn write(&self, _: &'static str, bytes: &mut [u8]) -> Result<()> {
        bytes.copy_from_slice(self);
        Ok(())
    }
}

macro_rules! numbers {
    ($($type:ty),*) => { $(
        impl Value for $type {
            const LEN: usize = size_of::<$type>();

            #[inline]
            fn read(bytes: &[u8]) -> Self {
                Self::from_be_bytes(Value::read(bytes))
            }

            #[inline]
            fn write(&self, what: &'static str, bytes: &mut [u8]) -> Result<()> {
                self.to_be_bytes().write(what, bytes)
            }
        }
    )* };
}

numbers!(u8, u16, u32, u64);

macro_rules! arrays {
    ($($type:ty),*) => { $(
        impl<const N: usize> Value for [$type; N] {
            const LEN: usize = N * <$type>::LEN;

            fn read(bytes: &[u8]) -> Self {
                core::array::from_fn(|at| Value::read(&bytes[at * <$type>::LEN..][..<$type>::LEN]))
            }

            fn write(&self, what: &'static str, bytes: &mut [u8]) -> Result<()> {
                let mut places = self.iter().zip(bytes.chunks_exact_mut(<$type>::LEN));
                places.try_for_each(|(number, place)| number.write(what, place))
            }
        }
    )* };
}

arrays!(u16, u32, u64);

/// Types that are read and written like the value that they contain.
macro_rules! wrappers {
    ($($type:ident($inner:ty)),*) => { $(
        impl $crate::bytes::Value for $type {
            const LEN: usize = <$inner as $crate::bytes::Value>::LEN;

            #[inline]
            fn read(bytes: &[u8]) -> Self {
                $type($crate::bytes::Value::read(bytes))
            }

            #[inline]
            fn write(&self, what: &'static str, bytes: &mut [u8]) -> $crate::Result<()> {
                self.0.write(what, bytes)
            }
        }
    )* };
}
pub(crate) use wrappers;

wrappers!(Gid([u8; 16]), PKey(u16), QKey(u32), ServiceId(u64));

/// Types of few bits: how each is made of them, and they of it.
macro_rules! narrow {
    ($($type:ty: $from:expr, $to:expr;)*) => { $(
        impl $crate::bytes::Narrow for $type {
            #[inline]
            fn from_bits(bits: u32) -> Self {
                ($from)(bits)
            }

            #[inline]
            fn to_bits(&self) -> u32 {
                ($to)(*self)
            }
        }
    )* };
}
pub(crate) use narrow;

narrow! {
    bool: |bits| bits != 0, u32::from;
    u8: |bits| bits as u8, u32::from;
    u16: |bits| bits as u16, u32::from;
    u32: |bits| bits, |bits| bits;
    Qpn: Qpn::new, Qpn::value;
    Psn: Psn::new, Psn::value;
}

/// Declares a structure of the wire: its name in errors, its length in bytes, and each field with its type and place.
macro_rules! layout {
    (
        $(#[$attr:meta])*
        $vis:vis struct $name:ident($what:literal, $len:expr) {
            $($(#[$doc:meta])* $field_vis:vis $field:ident: $type:ty = $place:ty,)*
        }
    ) => {
        $(#[$attr])*
        $vis struct $name {
            $($(#[$doc])* $field_vis $field: $type,)*
        }

        const _: () = {
            $(assert!(
                <$place as $crate::bytes::Place<$type>>::END <= $len,
                concat!($what, " ", stringify!($field), " is outside of its header")
            );)*
        };

        impl $crate::bytes::Value for $name {
            const LEN: usize = $len;

            #[inline]
            fn read(bytes: &[u8]) -> Self {
                Self { $($field: <$place as $crate::bytes::Place<$type>>::get(bytes),)* }
            }

            #[inline]
            fn write(&self, _: &'static str, bytes: &mut [u8]) -> $crate::Result<()> {
                $(<$place as $crate::bytes::Place<$type>>::put(
                    concat!($what, " ", stringify!($field)),
                    &self.$field,
                    bytes,
                )?;)*
                Ok(())
            }
        }
    };
}
pub(crate) use layout;

/// Generates `LEN`, `parse` and `emit` of a header.
macro_rules! parse_and_emit {
    ($name:ident, $what:literal, $len:literal) => {
        impl $name {
            /// Length of the header, in bytes.
            pub const LEN: usize = $len;

            /// Reads the header at the front of `input`.
            ///
            /// # Errors
            ///
            /// [`Error::Truncated`](crate::Error::Truncated).
            pub fn parse(input: &[u8]) -> $crate::Result<Self> {
                Ok(Self::from_bytes($crate::bytes::head($what, input)?))
            }

            /// Reads the header from its bytes.
            pub fn from_bytes(bytes: &[u8; $len]) -> Self {
                $crate::bytes::Value::read(bytes)
            }

            /// Writes the header at the front of `out`; returns `LEN`.
            ///
            /// # Errors
            ///
            /// [`Error::NoRoom`](crate::Error::NoRoom) if `out` is shorter;
            /// [`Error::OutOfRange`](crate::Error::OutOfRange) for a value wider than its field.
            pub fn emit(&self, out: &mut [u8]) -> $crate::Result<usize> {
                let mut header = [0; $len];
                $crate::bytes::Value::write(self, $what, &mut header)?;
                $crate::bytes::put($what, &header, out)
            }
        }
    };
}
pub(crate) use parse_and_emit;

/// Declares a header as [`layout`] does, with `LEN`, `parse` and `emit`.
macro_rules! header {
    ($(#[$attr:meta])* $vis:vis struct $name:ident($what:literal, $len:literal) $fields:tt) => {
        $crate::bytes::layout! { $(#[$attr])* $vis struct $name($what, $len) $fields }
        $crate::bytes::parse_and_emit!($name, $what, $len);
    };
}
pub(crate) use header;
