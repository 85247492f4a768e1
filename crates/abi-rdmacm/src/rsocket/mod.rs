//! The socket calls of `rsocket(7)`, over `portolan`'s streams.
//!
//! A socket's number is the descriptor of its event channel, which does not change from `rsocket` to `rclose`. The
//! streams use the devices of the process's libibverbs, like the rest of this library.
//!
//! * `settings`: the administrator's defaults. `errno`: errors of streams as `errno`.
//! * `socket`: a socket and its states. `table`: the sockets by number.
//! * `names`: addresses. `route`: paths. `pieces`: memory of programs.
//! * `connect`, `transfer`, `options`, `iomap`: the calls on one socket.
//! * `datagram`: datagram sockets.
//! * `poll`, `epoll`: the calls that wait for several sockets. `watchers`: what other calls tell the latter.

mod connect;
mod datagram;
mod epoll;
mod errno;
mod iomap;
mod names;
mod options;
mod pieces;
mod poll;
mod route;
mod settings;
mod socket;
mod table;
mod transfer;
mod watchers;

pub(crate) use self::connect::{accept, bind, close, connect, create, listen, shutdown};
pub(crate) use self::epoll::{Event, control, create as create_epoll, wait as wait_epoll};
pub(crate) use self::iomap::{map, unmap, write as write_mapped};
pub(crate) use self::names::{peer_name, socket_name};
pub(crate) use self::options::{descriptor, get as get_option, set as set_option};
pub(crate) use self::pieces::{Gather, Scatter};
pub(crate) use self::poll::{poll, select};
pub(crate) use self::table::find;
pub(crate) use self::transfer::{receive, receive_from, send, send_to};
