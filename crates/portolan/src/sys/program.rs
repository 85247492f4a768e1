//! The program's memory that devices may access without copying.

use std::any::Any;
use std::ptr::NonNull;

/// Types of memory that a [`Buffer`](crate::Buffer) or [`SharedMemory`](crate::SharedMemory) can consist of:
///
/// | memory | feature | |
/// |---|---|---|
/// | `Vec<u8>`, `Box<[u8]>` | | |
/// | `bytes::BytesMut` | `bytes` | |
/// | `bytes::Bytes` | `bytes` | read-only: the source of sends and writes, or shared for reading; the program's other handles stay usable |
/// | `memmap2::MmapMut` | `memmap2` | files, huge pages, memory of other processes |
/// | `memmap2::Mmap` | `memmap2` | read-only |
///
/// Registering memory costs time for each page: the device's driver pins it, or the kernel makes it resident. For a file
/// of a gigabyte that can take as long as copying it. So register once and use the buffer often. For data that is used
/// once, reading it in pieces into a few registered buffers may well be faster.
///
/// Mapping a file is `unsafe` in `memmap2`, because other programs may change or truncate it meanwhile. The program
/// promises that they do not. [`file_copy`](crate::examples::file_copy) transfers a file without it.
///
/// ```
/// use portolan::Access;
///
/// # let (server, client) = portolan::doc_pair()?;
/// // The vector's own bytes, without a copy.
/// let chart = server.share_memory(b"six fathoms".to_vec(), Access::REMOTE_READ);
/// let chart = chart.map_err(|(error, _vector)| error)?;
/// let read = client.read(client.buffer(11)?, chart.remote())?.wait()?.buffer;
/// assert_eq!(&read[..], b"six fathoms");
/// let vector: Vec<u8> = chart.revoke()?.into_memory().expect("the same vector");
/// # Ok::<(), portolan::Error>(())
/// ```
///
/// This trait is sealed: the library relies on how each type keeps its bytes in place.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not one of the types of memory that can be shared or become a buffer",
    label = "its bytes may move with it, or a feature is not enabled",
    note = "`Vec<u8>` and `Box<[u8]>` are; `Bytes` and `BytesMut` with the feature `bytes`, `Mmap` and `MmapMut` with `memmap2`; a `Buffer` gives its memory back with `into_memory`"
)]
pub trait Memory: KeptInPlace {}

impl<T: KeptInPlace> Memory for T {}

/// The requirements for a type of memory.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not one of the types of memory that can be shared or become a buffer",
    label = "its bytes may move with it, or a feature is not enabled",
    note = "`Vec<u8>` and `Box<[u8]>` are; `Bytes` and `BytesMut` with the feature `bytes`, `Mmap` and `MmapMut` with `memmap2`; a `Buffer` gives its memory back with `into_memory`"
)]
pub trait KeptInPlace: Sized {
    /// Keeps the bytes. Moving it does not move the bytes. It contains no reference or box to them that the compiler
    /// could assume to be unique.
    type Keeper: Any + Send + Sync;

    /// Converts the memory to its keeper.
    fn into_keeper(self) -> Self::Keeper;

    /// Whether the bytes may be written, because they have no other readers.
    const IS_WRITABLE: bool = true;

    /// The bytes. They may be written only if [`KeptInPlace::IS_WRITABLE`].
    fn place(keeper: &mut Self::Keeper) -> NonNull<[u8]>;

    /// Converts back to the memory.
    fn from_keeper(keeper: Self::Keeper) -> Self;
}

/// Memory whose bytes stay where they are when it is moved.
macro_rules! keeps_itself {
    ($($(#[$cfg:meta])* $memory:ty, writable: $is_writable:literal, [$($borrow:tt)+];)*) => {$(
        $(#[$cfg])*
        impl KeptInPlace for $memory {
            type Keeper = Self;

            const IS_WRITABLE: bool = $is_writable;

            fn into_keeper(self) -> Self {
                self
            }

            fn place(keeper: &mut Self) -> NonNull<[u8]> {
                NonNull::from($($borrow)+ keeper[..])
            }

            fn from_keeper(keeper: Self) -> Self {
                keeper
            }
        }
    )*};
}

keeps_itself! {
    Vec<u8>, writable: true, [&mut];
    #[cfg(feature = "bytes")]
    bytes::BytesMut, writable: true, [&mut];
    #[cfg(feature = "bytes")]
    bytes::Bytes, writable: false, [&];
    #[cfg(feature = "memmap2")]
    memmap2::MmapMut, writable: true, [&mut];
    #[cfg(feature = "memmap2")]
    memmap2::Mmap, writable: false, [&];
}

/// A boxed slice as a vector: the compiler may assume that a moved box is the only pointer to its bytes.
#[derive(Debug)]
pub struct Boxed(Vec<u8>);

impl KeptInPlace for Box<[u8]> {
    type Keeper = Boxed;

    fn into_keeper(self) -> Boxed {
        Boxed(self.into_vec())
    }

    fn place(keeper: &mut Boxed) -> NonNull<[u8]> {
        NonNull::from(&mut keeper.0[..])
    }

    fn from_keeper(keeper: Boxed) -> Self {
        // Length and capacity are equal, so nothing is moved.
        keeper.0.into_boxed_slice()
    }
}
