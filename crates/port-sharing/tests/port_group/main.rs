//! Many processes on one UDP port: the group's public interface with real sockets and killed processes.
//! Everything stays on loopback; each test has its own port and names.

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
