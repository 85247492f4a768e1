//! Buffers: memory that belongs either to the program or to posted work.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use portolan_provider::traits::Pd;
use portolan_provider::verbs::{Access, Sge};
use portolan_provider::{Error, Result, Step};

use super::backing::Backing;
use super::memory::MESSAGE_MAX_BYTES;
use super::program::Memory;

/// Memory of this process for sends, receives, and as source or destination of transfers.
///
/// While the program owns it, no device accesses it, and it is an ordinary slice. Posting work takes the buffer by
/// value, and the end of the work returns it. So it can be neither freed nor reused while it is posted.
///
/// It consists of the library's memory ([`Connection::buffer`](crate::Connection::buffer)) or, without copying, of
/// the program's, which [`Buffer::into_memory`] returns:
///
/// ```no_run
/// # fn send(connection: &portolan::Connection) -> Result<(), portolan::Error> {
/// let buffer = portolan::Buffer::from(vec![7; 1 << 20]);
/// let done = connection.send(buffer)?.wait()?;
/// let vector: Vec<u8> = done.buffer.into_memory().expect("the vector that it was made of");
/// # Ok(())
/// # }
/// ```
///
/// A buffer works with every connection on every device. Its first use with a device registers the memory there,
/// which takes longer than later uses; [`Connection::register`](crate::Connection::register) does that in advance.
/// Peers cannot access it directly; use [`SharedMemory`](crate::SharedMemory) for that.
///
/// [`Buffer::split_off`] and [`Buffer::split_to`] create slices of it, which are separate buffers and share the
/// registration:
///
/// ```
/// let mut buffer = portolan::Buffer::from(b"headbody".to_vec());
/// let body = buffer.split_off(4);
/// assert_eq!((&buffer[..], &body[..]), (&b"head"[..], &b"body"[..]));
/// buffer.unsplit(body).unwrap();
/// assert_eq!(buffer.into_memory::<Vec<u8>>().unwrap(), b"headbody");
/// ```
pub struct Buffer {
    backing: Arc<Backing>,
    /// The offset of the buffer. No other buffer of the backing overlaps it.
    offset: usize,
    length: usize,
}

impl Buffer {
    /// Allocates zeroed memory and registers it for local use.
    ///
    /// # Errors
    /// The length is 0, there is no memory (`ENOMEM`), or a limit of the device is reached.
    pub fn new(pd: &Arc<dyn Pd>, length: usize) -> Result<Self> {
        Ok(Self::whole(Backing::new(pd, length, Access::LOCAL_WRITE)?))
    }

    /// Creates a buffer from the program's memory, without copying.
    pub fn of(memory: impl Memory) -> Self {
        Self::whole(Backing::of(memory))
    }

    pub(super) fn whole(backing: impl Into<Arc<Backing>>) -> Self {
        let backing = backing.into();
        Self {
            offset: 0,
            length: backing.len(),
            backing,
        }
    }

    /// Deregisters the memory that the buffer was created from, and returns it.
    ///
    /// ```
    /// use portolan::Buffer;
    ///
    /// let buffer = Buffer::from(vec![1, 2, 3]);
    /// let vector: Vec<u8> = buffer.into_memory().expect("the vector that it is made of");
    /// assert_eq!(vector, [1, 2, 3]);
    /// ```
    ///
    /// # Errors
    /// The buffer itself, if it is a slice whose rest is elsewhere, or was created from another type.
    pub fn into_memory<M: Memory>(self) -> std::result::Result<M, Self> {
        let Self {
            backing,
            offset,
            length,
        } = self;
        let restore = |backing| Self {
            backing,
            offset,
            length,
        };
        if length != backing.len() {
            return Err(restore(backing));
        }
        let backing = Arc::try_unwrap(backing).map_err(restore)?;
        let memory = backing.into_memory();
        memory.map_err(|backing| restore(Arc::new(backing)))
    }

    /// Splits it in two: it keeps the first `at` bytes and returns the rest.
    ///
    /// # Panics
    /// If `at` is beyond its end.
    #[must_use = "the rest is freed otherwise"]
    #[track_caller]
    pub fn split_off(&mut self, at: usize) -> Self {
        let length = self.length.checked_sub(at);
        let Some(length) = length else {
            panic!("{at} is beyond {} bytes", self.length)
        };
        self.length = at;
        Self {
            backing: self.backing.clone(),
            offset: self.offset + at,
            length,
        }
    }

    /// Splits it in two: returns the first `at` bytes and keeps the rest.
    ///
    /// # Panics
    /// If `at` is beyond its end.
    #[must_use = "the first part is freed otherwise"]
    #[track_caller]
    pub fn split_to(&mut self, at: usize) -> Self {
        let rest = self.split_off(at);
        std::mem::replace(self, rest)
    }

    /// Joins it with the slice that follows it.
    ///
    /// # Errors
    /// The other buffer, if it does not follow this one.
    pub fn unsplit(&mut self, next: Self) -> std::result::Result<(), Self> {
        let follows =
            Arc::ptr_eq(&self.backing, &next.backing) && next.offset == self.offset + self.length;
        if !follows {
            return Err(next);
        }
        self.length += next.length;
        Ok(())
    }

    /// Whether the buffer may be the destination of a receive or a read. False for read-only memory (`bytes::Bytes`,
    /// `memmap2::Mmap`). Writing to such a buffer as a slice copies the memory first.
    pub fn is_writable(&self) -> bool {
        self.backing.is_writable()
    }

    /// Registers the memory with a protection domain.
    pub(crate) fn register(&self, pd: &Arc<dyn Pd>) -> Result<()> {
        self.backing.with_region(pd, Access::LOCAL_WRITE, |_| ())
    }

    /// The address and key of `length` bytes from `offset`, for a work request.
    ///
    /// # Errors
    /// The length is above [`MESSAGE_MAX_BYTES`]; errors of registering.
    pub(crate) fn sge(&self, pd: &Arc<dyn Pd>, offset: usize, length: usize) -> Result<Sge> {
        debug_assert!(offset <= self.length && length <= self.length - offset);
        if length == 0 {
            return Ok(Sge::default());
        }
        if length > MESSAGE_MAX_BYTES {
            let expected = format_args!("at most {MESSAGE_MAX_BYTES} bytes in one message");
            return Err(Error::invalid(Step::PostSend, "length", expected, length));
        }
        let access = Access::LOCAL_WRITE;
        let lkey = self
            .backing
            .with_region(pd, access, |region| region.lkey())?;
        Ok(Sge {
            addr: self.backing.start().as_ptr() as u64 + (self.offset + offset) as u64,
            length: length as u32,
            lkey,
        })
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Self {
        Self::of(bytes)
    }
}

impl From<Box<[u8]>> for Buffer {
    fn from(bytes: Box<[u8]>) -> Self {
        Self::of(bytes)
    }
}

#[cfg(feature = "bytes")]
impl From<bytes::BytesMut> for Buffer {
    fn from(bytes: bytes::BytesMut) -> Self {
        Self::of(bytes)
    }
}

#[cfg(feature = "memmap2")]
impl From<memmap2::MmapMut> for Buffer {
    fn from(bytes: memmap2::MmapMut) -> Self {
        Self::of(bytes)
    }
}

#[cfg(feature = "bytes")]
impl From<bytes::Bytes> for Buffer {
    fn from(bytes: bytes::Bytes) -> Self {
        Self::of(bytes)
    }
}

#[cfg(feature = "memmap2")]
impl From<memmap2::Mmap> for Buffer {
    fn from(bytes: memmap2::Mmap) -> Self {
        Self::of(bytes)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the backing keeps that many initialized bytes in place, and no other buffer overlaps them. No
        // device accesses them: posted work owns its buffer, and peers have no rights to it.
        unsafe {
            let start = self.backing.start().as_ptr().add(self.offset);
            std::slice::from_raw_parts(start, self.length)
        }
    }
}

impl DerefMut for Buffer {
    /// Copies read-only memory (`bytes::Bytes`, `memmap2::Mmap`) first.
    fn deref_mut(&mut self) -> &mut [u8] {
        if !self.is_writable() {
            *self = Self::from(self.to_vec());
        }
        // SAFETY: as in `deref`. `self` is borrowed mutably, and writable memory has no other readers.
        unsafe {
            let start = self.backing.start().as_ptr().add(self.offset);
            std::slice::from_raw_parts_mut(start, self.length)
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_memory_is_returned_uncopied() {
        let vector = vec![1, 2, 3, 4];
        let (at, capacity) = (vector.as_ptr(), vector.capacity());
        let mut buffer = Buffer::from(vector);
        buffer[3] = 9;
        let vector: Vec<u8> = buffer.into_memory().unwrap();
        assert_eq!(vector, [1, 2, 3, 9]);
        assert_eq!((vector.as_ptr(), vector.capacity()), (at, capacity));

        let boxed: Box<[u8]> = Box::from([5, 6]);
        let at = boxed.as_ptr();
        let buffer = Buffer::from(boxed);
        let buffer = buffer.into_memory::<Vec<u8>>().unwrap_err();
        let boxed: Box<[u8]> = buffer.into_memory().unwrap();
        assert_eq!((boxed.as_ptr(), &boxed[..]), (at, &[5, 6][..]));
    }

    #[test]
    fn slices_are_joined_only_in_order_and_memory_is_returned_only_whole() {
        let mut first = Buffer::from((0..10).collect::<Vec<u8>>());
        let mut second = first.split_off(3);
        let third = second.split_off(4);
        let head = second.split_to(1);
        assert_eq!((&head[..], &second[..]), (&[3][..], &[4, 5, 6][..]));
        let third = first.unsplit(third).unwrap_err();
        let first_again = first.into_memory::<Vec<u8>>().unwrap_err();
        let mut first = first_again;
        let foreign = first.unsplit(Buffer::from(vec![1])).unwrap_err();
        assert_eq!(foreign[..], [1]);
        first.unsplit(head).unwrap();
        first.unsplit(second).unwrap();
        first.unsplit(third).unwrap();
        let all: Vec<u8> = first.into_memory().unwrap();
        assert_eq!(all, (0..10).collect::<Vec<u8>>());
    }

    #[test]
    fn an_empty_vector_is_a_buffer_too() {
        let buffer = Buffer::from(Vec::new());
        assert!(buffer.is_empty());
        assert_eq!(buffer.into_memory::<Vec<u8>>().unwrap(), [0; 0]);
    }

    #[test]
    #[should_panic(expected = "3 is beyond 2 bytes")]
    fn a_split_beyond_the_end_panics() {
        let _ = Buffer::from(vec![1, 2]).split_off(3);
    }
}
