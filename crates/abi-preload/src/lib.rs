//! `librspreload.so` turns the TCP sockets of unmodified programs into rsockets.
//!
//! The program's descriptors stay real kernel TCP sockets; a stream only replaces the connection. So options,
//! addresses, close-on-exec, `dup` and `fork` work as usual, and the TCP socket is ready for use if no rsocket answers.
//!
//! Each module uses only modules listed above it, except that `epoll` looks up sockets by `descriptors`:
//!
//! * `real`: libc's own functions. `table`: lock-free lookup of objects by descriptor number. `inside`: threads that are in a
//!   call of this library. `exiting`: whether the process is at its end.
//! * `settings`: which sockets become streams. `report`: counts of the outcomes. `names`: addresses.
//! * `watchers`: who learns of a socket's changes. `background`: the thread that works while the program does not.
//! * `pump`: streams relayed to other processes through the kernel. `backlog`: connections that wait for `accept`.
//!   `sharing`: processes that share a listening socket.
//! * `farewell`: wakes who sleeps on a stream that is handed over. `socket`: a socket and its kinds. `wait`: blocking.
//!   `connect`, `listen`: how a socket gets its stream. `look`: its readiness. `transfer`, `copy`, `options`: calls on one socket.
//! * `epoll`: epoll sets with streams. `handover`: streams for other processes. `descriptors`: lifetime of the numbers.
//! * `poll`, `messages`, `stdio`: calls on several descriptors, on messages, and on files.
//! * `process`: load, fork and exit. `export`, `limits`: the exported functions.

#![cfg_attr(
    test,
    allow(
        dead_code,
        reason = "tests have libc's functions, not the exported ones"
    )
)]

mod background;
mod backlog;
#[cfg(not(test))]
mod calls;
mod connect;
mod copy;
mod descriptors;
mod epoll;
mod exiting;
#[cfg(not(test))]
mod export;
mod farewell;
mod handover;
mod inheritance;
mod inside;
#[cfg(not(test))]
mod limits;
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
mod sharing;
mod socket;
mod stdio;
mod table;
mod transfer;
mod wait;
mod watchers;
