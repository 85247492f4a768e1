//! Commands on an open rdma_cm device: written to it as bytes, with the address where the kernel is
//! to put its answer among them.

#![allow(
    unsafe_code,
    reason = "the kernel writes to addresses within the bytes"
)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use crate::ucma::abi::{EventResp, GetEvent, Header, SetOption, number};
use crate::ucma::fields::Fields;

/// A command without addresses in it.
pub trait Command: Fields {
    /// Its number in `enum rdma_ucm_cmd`.
    const NUMBER: u32;
}

/// A command that the kernel answers.
pub trait Question: Fields {
    /// Names the address where the kernel is to write.
    fn set_response(&mut self, address: u64);
}

/// An open rdma_cm device: an event channel.
#[derive(Debug)]
pub struct Channel {
    fd: OwnedFd,
}

impl Channel {
    /// Of a descriptor of the device.
    pub fn new(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Carries out a command that has no answer.
    ///
    /// # Errors
    /// The kernel's.
    pub fn command<C: Command>(&self, command: &C) -> Result<(), Errno> {
        // SAFETY: a `Command` has no addresses.
        unsafe { self.write(C::NUMBER, command, 0) }
    }

    /// Carries out a command and gives its answer. What the kernel does not write, because it is older
    /// than the field, stays as `prefilled` has it.
    ///
    /// # Errors
    /// The kernel's.
    pub fn ask<Q: Question, A: Fields>(
        &self,
        number: u32,
        mut question: Q,
        prefilled: &A,
    ) -> Result<A, Errno> {
        let mut answer = prefilled.to_bytes();
        question.set_response(answer.as_mut_ptr().expose_provenance() as u64);
        // SAFETY: the address is that of `answer`, which is as long as announced and outlives the call;
        // the kernel writes plain bytes to it, and no more than announced.
        unsafe { self.write(number, &question, answer.len())? };
        Ok(A::from_bytes(&answer))
    }

    /// GET_EVENT, which waits unless the descriptor is non-blocking.
    ///
    /// # Errors
    /// `EAGAIN`, and `EINTR`: whoever waits for ever wants to hear of signals.
    pub fn get_event(&self) -> Result<EventResp, Errno> {
        let mut answer = EventResp::zeroed().to_bytes();
        let get = GetEvent {
            response: answer.as_mut_ptr().expose_provenance() as u64,
        };
        // SAFETY: as in `ask`.
        unsafe { self.write_once(number::GET_EVENT, &get, answer.len())? };
        Ok(EventResp::from_bytes(&answer))
    }

    /// SET_OPTION with a value.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_option(&self, mut option: SetOption, value: &[u8]) -> Result<(), Errno> {
        option.optval = value.as_ptr().expose_provenance() as u64;
        option.optlen = value.len() as u32;
        // SAFETY: the address is that of `value`, from which the kernel reads as many bytes as it has.
        unsafe { self.write(number::SET_OPTION, &option, 0) }
    }

    /// # Safety
    /// Every address within the command is good for what the kernel does with it during the call.
    unsafe fn write<C: Fields>(
        &self,
        number: u32,
        command: &C,
        answer: usize,
    ) -> Result<(), Errno> {
        // SAFETY: passed on.
        rustix::io::retry_on_intr(|| unsafe { self.write_once(number, command, answer) })
    }

    /// # Safety
    /// As for `write`.
    unsafe fn write_once<C: Fields>(
        &self,
        number: u32,
        command: &C,
        answer: usize,
    ) -> Result<(), Errno> {
        const LENGTH: &str = "commands and answers are shorter than 64 KiB";
        let header = Header {
            cmd: number,
            in_len: u16::try_from(C::SIZE).expect(LENGTH),
            out_len: u16::try_from(answer).expect(LENGTH),
        };
        let bytes = [header.to_bytes(), command.to_bytes()].concat();
        // SAFETY: `bytes` are readable; of the addresses in them see above. This is libc's write, for that of
        // rustix promises the compiler that the call changes no memory.
        let written =
            unsafe { libc::write(self.fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) };
        let written = usize::try_from(written).map_err(|_| last_errno())?;
        // The kernel takes a command whole or not at all.
        if written == bytes.len() {
            Ok(())
        } else {
            Err(Errno::IO)
        }
    }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
