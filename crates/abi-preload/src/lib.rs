//! `librspreload.so`: the TCP sockets of unmodified programs become rsockets.
//!
//! The program's numbers stay real descriptors of the kernel's: each is a TCP socket, whose connection the stream replaces.
//! So options, names, close-on-exec, `dup` and `fork` work as ever, and where no rsocket answers, TCP is there already.
//!
//! A file uses only files that stand above it here:
//!
//! * `real`: libc's own functions. `table`: objects by number, without a lock.
//! * `settings`: which sockets become streams. `report`: what became of them. `names`: addresses.
//! * `backlog`: connections that wait for `accept`. `pump`: streams that the kernel carries for other processes.
//! * `socket`: a socket and its kinds; `wait`: sleeping; `connect`, `listen`: how it gets its stream; `look`: what it is ready
//!   for; `transfer`, `copy`, `options`: the calls on one.
//! * `epoll`: sets with streams. `handover`: what other processes get. `descriptors`: what happens to numbers.
//! * `poll`, `messages`, `stdio`: the calls on several numbers, on messages, and on files.
//! * `process`: when it starts, forks and ends. `export`: the functions.

#![cfg_attr(
    test,
    allow(
        dead_code,
        reason = "tests have libc's functions, not the exported ones"
    )
)]

mod backlog;
mod connect;
mod copy;
mod descriptors;
mod epoll;
#[cfg(not(test))]
mod export;
mod handover;
mod listen;
mod look;
mod messages;
mod names;
mod options;
mod poll;
mod process;
mod pump;
mod real;
mod report;
mod settings;
mod socket;
mod stdio;
mod table;
mod transfer;
mod wait;
