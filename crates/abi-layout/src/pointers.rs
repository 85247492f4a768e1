//! Pointer arguments of C calls. The type of an argument states what the manual page requires of the pointer, so the
//! calls themselves need no unsafe code to dereference it.
//!
//! Values of these types only come from C calls. Rust code creates them by `new`, whose caller vouches for the
//! requirement.

#![allow(unsafe_code, reason = "C's promises become types")]

use std::ffi::{CStr, c_char, c_void};

use rustix::io::Errno;

use crate::guard::Result;

/// A place for a result: null, or writable until the call returns.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    /// # Safety
    /// The pointer is as the type requires.
    pub unsafe fn new(pointer: *mut T) -> Self {
        Self(pointer)
    }

    /// Refuses null before anything is done.
    ///
    /// # Errors
    /// `EINVAL`.
    pub fn check(self) -> Result<()> {
        match self.0.is_null() {
            true => Err(Errno::INVAL),
            false => Ok(()),
        }
    }

    /// Writes the result, unless the pointer is null.
    pub fn write(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: the type requires that it is writable.
            unsafe { self.0.write(value) };
        }
    }
}

/// A structure to read: null, or complete and unchanged until the call returns. Pointers in it are as its manual page
/// requires.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct In<T>(*const T);

impl<T> In<T> {
    /// # Safety
    /// The pointer is as the type requires.
    pub unsafe fn new(pointer: *const T) -> Self {
        Self(pointer)
    }

    /// The structure, unless the pointer is null.
    pub fn get(&self) -> Option<&T> {
        // SAFETY: the type requires that it is complete, and the call outlives `self`.
        unsafe { self.0.as_ref() }
    }

    /// The structure.
    ///
    /// # Errors
    /// `EINVAL` for null.
    pub fn required(&self) -> Result<&T> {
        self.get().ok_or(Errno::INVAL)
    }
}

/// A structure to read and change: null, or complete and exclusive to the call until it returns.
#[derive(Debug)]
#[repr(transparent)]
pub struct InOut<T>(*mut T);

impl<T> InOut<T> {
    /// # Safety
    /// The pointer is as the type requires.
    pub unsafe fn new(pointer: *mut T) -> Self {
        Self(pointer)
    }

    /// The structure, unless the pointer is null.
    pub fn get(&mut self) -> Option<&mut T> {
        // SAFETY: the type requires that it is complete and exclusive; `self` is mutably borrowed and has no copy.
        unsafe { self.0.as_mut() }
    }

    /// The structure.
    ///
    /// # Errors
    /// `EINVAL` for null.
    pub fn required(&mut self) -> Result<&mut T> {
        self.get().ok_or(Errno::INVAL)
    }

    /// Runs `act` with the structure.
    ///
    /// # Errors
    /// `EINVAL` for null; errors of `act`.
    pub fn with<R>(mut self, act: impl FnOnce(&mut T) -> Result<R>) -> Result<R> {
        act(self.required()?)
    }
}

/// Bytes whose number is another argument or field: null, or at least that many bytes.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Bytes(*const c_void);

impl Bytes {
    /// # Safety
    /// The pointer is as the type requires.
    pub unsafe fn new(pointer: *const c_void) -> Self {
        Self(pointer)
    }

    /// Whether the pointer is null, whatever the number is.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The bytes, at most as many as memory can hold; empty for null.
    ///
    /// # Safety
    /// `number` is the one that was passed with the pointer.
    pub unsafe fn get(&self, number: usize) -> &[u8] {
        match self.0.is_null() {
            true => &[],
            // SAFETY: the type requires at least `number` bytes, and the call outlives `self`.
            false => unsafe {
                std::slice::from_raw_parts(self.0.cast(), number.min(isize::MAX as usize))
            },
        }
    }
}

/// A text: null, or NUL-terminated and unchanged until the call returns.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Text(*const c_char);

impl Text {
    /// # Safety
    /// The pointer is as the type requires.
    pub unsafe fn new(pointer: *const c_char) -> Self {
        Self(pointer)
    }

    /// The text, unless the pointer is null.
    pub fn get(&self) -> Option<&CStr> {
        match self.0.is_null() {
            true => None,
            // SAFETY: the type requires that it is NUL-terminated, and the call outlives `self`.
            false => Some(unsafe { CStr::from_ptr(self.0) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::{null, null_mut};

    use super::*;

    #[test]
    fn null_is_no_structure_no_text_no_bytes_and_no_buffer() {
        // SAFETY: null is valid for every type.
        let (out, read, mut both, bytes, text) = unsafe {
            (
                Out::<u32>::new(null_mut()),
                In::<u32>::new(null()),
                InOut::<u32>::new(null_mut()),
                Bytes::new(null()),
                Text::new(null()),
            )
        };
        out.write(1);
        assert_eq!(out.check(), Err(Errno::INVAL));
        assert_eq!(read.required(), Err(Errno::INVAL));
        assert_eq!(both.required(), Err(Errno::INVAL));
        // SAFETY: with null the count does not matter.
        assert_eq!(unsafe { bytes.get(9) }, []);
        assert!(text.get().is_none());
    }

    #[test]
    fn valid_pointers_are_read_and_written() {
        let (mut place, mut number) = (0u32, 5u32);
        // SAFETY: locals, each used by one argument.
        let (out, mut both, text, bytes) = unsafe {
            (
                Out::new(&mut place),
                InOut::new(&mut number),
                Text::new(c"ahoy".as_ptr()),
                Bytes::new(b"ahoy".as_ptr().cast()),
            )
        };
        out.check().unwrap();
        out.write(7);
        *both.required().unwrap() += 1;
        assert_eq!(text.get(), Some(c"ahoy"));
        // SAFETY: the count is right.
        assert_eq!(unsafe { bytes.get(4) }, b"ahoy");
        assert_eq!((place, number), (7, 6));
    }
}
