//! Packets between two processes of one host that trust each other, through rings in memory files instead of sockets.
//!
//! A link has one direction. The sender creates the ring and passes it to the receiver over a connection of the
//! port-sharing group ([`MemberLinks`](portolan_port_sharing::MemberLinks)). The receiver replies with its head page,
//! which holds its read position and whether it sleeps. A message on the same connection wakes a sleeping process. A
//! ring carries the same packets as the socket, so a queue pair's engine sees no difference.
//!
//! * `cursor`: the marks of records, the reader's position, and whom to wake; `sync` is for its model checker.
//! * `mapping`, `ring`: memory files, and the records in them. `ring_layout`: where they are. `record_header`: the header of
//!   a record that contains packets.
//! * `head_page`: what a reader shows its writers.
//! * `bell`: wakes this process and the other one; `waiter_bell`, a thread that waits for the rings itself. `message`: the
//!   messages of a link.
//! * `hazard`: withdrawal of rights that another process may be using.
//! * `memory_files`, `rights`: memory that other processes may access directly, and their rights.
//! * `peer_memory`, `peer_rights`: the same from the other side. `rights_layout`: the shared layout.
//! * `program_memory`: memory that lies in no file, which the kernel copies. `gate` and `stopped`: its withdrawal.
//! * `pull`: writes that the other process copies itself.
//! * `handshake`: how two processes exchange these files.
//! * `links`: creation and end of this process's links.

pub(crate) mod bell;
pub(crate) mod cursor;
mod gate;
pub(crate) mod handshake;
pub(crate) mod hazard;
pub(crate) mod head_page;
pub(crate) mod links;
pub(crate) mod mapping;
pub(crate) mod memory_files;
mod message;
pub(crate) mod peer_memory;
pub(crate) mod peer_rights;
pub(crate) mod program_memory;
pub(crate) mod pull;
pub(crate) mod record_header;
pub(crate) mod rights;
pub(crate) mod rights_layout;
pub(crate) mod ring;
mod ring_layout;
mod stopped;
mod sync;
pub(crate) mod waiter_bell;
