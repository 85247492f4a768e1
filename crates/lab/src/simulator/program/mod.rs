//! The programs of the machines: they listen, connect, talk and part, ask and answer, join and
//! leave as the plan says, and do on each event what the library does for its users.

mod datagram;
mod depart;
mod endpoint;
mod handshake;
mod inquire;
mod listen;
mod member;
mod migrate;
mod private_data;
mod request;
mod serve;
mod talk;
