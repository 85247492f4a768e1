//! The programs of the machines. They listen, connect, send and disconnect, ask and answer, join
//! and leave as planned, and handle each event as the library does for its users.

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
