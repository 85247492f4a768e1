//! The BPF program that selects the socket of a packet.
//!
//! Linux runs it for every packet to a port that several `SO_REUSEPORT` sockets share (socket(7),
//! `SO_ATTACH_REUSEPORT_CBPF`). The program sees the data after the UDP header. It returns the index of a socket in
//! binding order.

#![allow(unsafe_code, reason = "setsockopt(2) with a program")]

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use super::block::BLOCK_COUNT;
use super::raw::last_errno;

/// Offset of the destination QPN's high byte in a base transport header (IBTA 9.2).
const BTH_DEST_QPN_OFFSET: u32 = 5;

const LOAD_BYTE: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
const JUMP_IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const RETURN_A: u16 = (libc::BPF_RET | libc::BPF_A) as u16;
const RETURN_CONSTANT: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// Returns the high byte of the destination QPN, or 0 if that is not a block. A packet that is too short also returns
/// 0, because a load past the end ends the program with 0. Without the bounds check, the kernel would fall back to a
/// hash and deliver strays to any socket.
const PROGRAM: [libc::sock_filter; 4] = [
    instruction(LOAD_BYTE, 0, 0, BTH_DEST_QPN_OFFSET),
    instruction(JUMP_IF_AT_LEAST, 1, 0, BLOCK_COUNT as u32),
    instruction(RETURN_A, 0, 0, 0),
    instruction(RETURN_CONSTANT, 0, 0, 0),
];

const fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

/// Attaches the program to the reuseport group of `socket`.
pub(super) fn attach(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut filter = PROGRAM;
    let mut program = MaybeUninit::<libc::sock_fprog>::uninit();
    let at = program.as_mut_ptr();
    // SAFETY: the memory is our own. All bytes are written, because the kernel also reads the padding.
    unsafe {
        at.write_bytes(0, 1);
        (&raw mut (*at).len).write(filter.len() as u16);
        (&raw mut (*at).filter).write(filter.as_mut_ptr());
    }
    // SAFETY: `program` and the instructions it points to are locals that outlive the call, and the kernel copies them.
    // The length is the size of `sock_fprog`.
    let status = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            program.as_ptr().cast(),
            size_of_val(&program) as libc::socklen_t,
        )
    };
    if status < 0 {
        Err(last_errno())
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's result for a UDP payload.
    fn run(payload: &[u8]) -> u32 {
        let mut accumulator = 0;
        let mut at = 0;
        loop {
            let i = PROGRAM[at];
            at += 1;
            match i.code {
                LOAD_BYTE => match payload.get(i.k as usize) {
                    Some(&byte) => accumulator = u32::from(byte),
                    None => return 0,
                },
                JUMP_IF_AT_LEAST => {
                    at += usize::from(if accumulator >= i.k { i.jt } else { i.jf });
                }
                RETURN_A => return accumulator,
                RETURN_CONSTANT => return i.k,
                code => panic!("unknown instruction {code:#x}"),
            }
        }
    }

    #[test]
    fn the_high_byte_of_the_destination_qpn_chooses_the_socket() {
        for high in 0..128u8 {
            let bth = [0x04, 0, 0xff, 0xff, 0, high, 0xaa, 0xbb, 0, 0, 0, 0];
            assert_eq!(run(&bth), u32::from(high));
        }
    }

    #[test]
    fn packets_without_a_block_go_to_the_coordinator() {
        assert_eq!(
            run(&[0x64, 0, 0xff, 0xff, 0, 0xff, 0xff, 0xff, 0, 0, 0, 0]),
            0
        );
        assert_eq!(run(&[0x64, 0, 0xff, 0xff, 0, 0x80, 0, 0, 0, 0, 0, 0]), 0);
        assert_eq!(run(b"short"), 0);
        assert_eq!(run(b""), 0);
    }
}
