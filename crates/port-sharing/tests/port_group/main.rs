//! Many processes on one UDP port: the group by its public interface, with real sockets and with
//! processes that are killed. Everything stays on loopback; each test has a port and names of its
//! own.

mod at_once;
mod chaos;
mod death;
mod harness;
mod hostile;
mod last_words;
mod limits;
mod process;
mod requests;
mod sharing;
