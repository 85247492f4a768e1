//! Packets between two processes of one host that trust each other, by rings in memory files instead of sockets.
//!
//! A link goes one way: the sender makes the ring, and hands it to the receiver over a connection of the port-sharing
//! group's ([`MemberLinks`](portolan_port_sharing::MemberLinks)). The receiver answers with its board, on which it says
//! how far it has read and whether it sleeps. A message on the same connection wakes a sleeping process. What goes
//! through a ring are the very packets that would go through the socket; a queue pair's engine does not know which it is.
//!
//! * `cursor`: how far both are, and who is to be woken; `sync` for its model checker.
//! * `mapping`, `ring`: memory files; records in them.
//! * `bell`: what wakes this process and the other one; `message`: the messages of a link.
//! * `hazard`: rights that are taken back while another process may be using them.
//! * `memory_files`, `rights`: memory that others may reach by themselves, and what they may do there.
//! * `peer_memory`, `peer_rights`: the same of another process; `rights_layout`: what both see.
//! * `handshake`: how two processes hand each other all this.
//! * `links`: the links of this process, how they come about and end.

pub(crate) mod bell;
pub(crate) mod cursor;
pub(crate) mod handshake;
pub(crate) mod hazard;
pub(crate) mod links;
pub(crate) mod mapping;
pub(crate) mod memory_files;
mod message;
pub(crate) mod peer_memory;
pub(crate) mod peer_rights;
pub(crate) mod rights;
pub(crate) mod rights_layout;
pub(crate) mod ring;
mod sync;
