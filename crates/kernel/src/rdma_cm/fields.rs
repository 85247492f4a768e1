//! Structures as bytes: consecutive fields in host byte order, without padding.

/// A value that can be a field of an ABI structure.
pub trait Fields: Clone {
    /// Size in bytes.
    const SIZE: usize;

    /// All bytes zero.
    fn zeroed() -> Self;

    /// Writes the value into the first [`Self::SIZE`] bytes of `out` and advances `out`.
    fn put(&self, out: &mut &mut [u8]);

    /// Reads the value from the first [`Self::SIZE`] bytes of `from` and advances `from`.
    fn take(from: &mut &[u8]) -> Self;

    /// All bytes of an array zero.
    fn zeroed_array<const N: usize>() -> [Self; N] {
        std::array::from_fn(|_| Self::zeroed())
    }

    /// Writes several values.
    #[inline(always)]
    fn put_all(items: &[Self], out: &mut &mut [u8]) {
        items.iter().for_each(|item| item.put(out));
    }

    /// Reads several values.
    fn take_array<const N: usize>(from: &mut &[u8]) -> [Self; N] {
        std::array::from_fn(|_| Self::take(from))
    }

    /// The value as bytes for the kernel.
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; Self::SIZE];
        self.put(&mut &mut bytes[..]);
        bytes
    }

    /// The value of at least [`Self::SIZE`] bytes.
    fn from_bytes(bytes: &[u8]) -> Self {
        Self::take(&mut &bytes[..])
    }
}

macro_rules! integers {
    ($($integer:ty),*) => {$(
        impl Fields for $integer {
            const SIZE: usize = size_of::<$integer>();

            #[inline(always)]
            fn zeroed() -> Self {
                0
            }

            #[inline(always)]
            fn put(&self, out: &mut &mut [u8]) {
                let (here, rest) = std::mem::take(out).split_at_mut(Self::SIZE);
                here.copy_from_slice(&self.to_ne_bytes());
                *out = rest;
            }

            #[inline(always)]
            fn take(from: &mut &[u8]) -> Self {
                let (here, rest) = from.split_at(Self::SIZE);
                *from = rest;
                let mut bytes = [0; size_of::<$integer>()];
                bytes.copy_from_slice(here);
                <$integer>::from_ne_bytes(bytes)
            }
        }
    )*};
}

integers!(u16, u32, u64);

/// Copied as a whole, because most fields of commands and answers are byte arrays (addresses, private data).
impl Fields for u8 {
    const SIZE: usize = 1;

    #[inline(always)]
    fn zeroed() -> Self {
        0
    }

    #[inline(always)]
    fn put(&self, out: &mut &mut [u8]) {
        Self::put_all(&[*self], out);
    }

    #[inline(always)]
    fn take(from: &mut &[u8]) -> Self {
        let [byte] = Self::take_array(from);
        byte
    }

    fn zeroed_array<const N: usize>() -> [Self; N] {
        [0; N]
    }

    #[inline(always)]
    fn put_all(items: &[Self], out: &mut &mut [u8]) {
        let (here, rest) = std::mem::take(out).split_at_mut(items.len());
        here.copy_from_slice(items);
        *out = rest;
    }

    fn take_array<const N: usize>(from: &mut &[u8]) -> [Self; N] {
        let (here, rest) = from.split_at(N);
        *from = rest;
        let mut bytes = [0; N];
        bytes.copy_from_slice(here);
        bytes
    }
}

impl<T: Fields, const N: usize> Fields for [T; N] {
    const SIZE: usize = N * T::SIZE;

    #[inline(always)]
    fn zeroed() -> Self {
        T::zeroed_array()
    }

    #[inline(always)]
    fn put(&self, out: &mut &mut [u8]) {
        T::put_all(self, out);
    }

    #[inline(always)]
    fn take(from: &mut &[u8]) -> Self {
        T::take_array(from)
    }
}

/// Defines structures whose bytes are their consecutive fields.
macro_rules! fields {
    ($(
        $(#[$attr:meta])*
        pub struct $name:ident { $($field:ident: $type:ty),* $(,)? }
    )*) => {$(
        $(#[$attr])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name { $(pub $field: $type),* }

        impl Fields for $name {
            const SIZE: usize = 0 $(+ <$type as Fields>::SIZE)*;

            #[inline(always)]
            fn zeroed() -> Self {
                Self { $($field: <$type>::zeroed()),* }
            }

            #[inline(always)]
            fn put(&self, out: &mut &mut [u8]) {
                $(self.$field.put(out);)*
            }

            #[inline(always)]
            fn take(from: &mut &[u8]) -> Self {
                Self { $($field: <$type>::take(from)),* }
            }
        }
    )*};
}

pub(crate) use fields;
