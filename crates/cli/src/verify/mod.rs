//! Data that is verified at the far end: the protocol between `bench verify` and its peers, each of them
//! another `bench verify --serve`, or a C program over libibverbs (crates/lab/c/verify.c).
//!
//! One side asks, the other is asked. Every request names an operation, who carries it out, and a seed from
//! which both know the data:
//!
//! ```text
//! the asker carries it out:        asker              the asked one does:  asker             
//!   REQUEST ->  prepares memory                         prepares memory, REQUEST ->
//!           <-  READY, where it is                                               operation
//!   operation                                                    <- VERDICT on what it read
//!   DONE    ->  looks at its memory                     looks at its memory
//!           <-  VERDICT
//! ```
//!
//! Messages are sends of 64 bytes over the same connection, so whoever hears one knows that the operation
//! before it is over. What is overwritten is the complement of what comes: no byte is right by chance. Memory
//! around it is looked at, too.

mod end;
mod message;
mod pattern;
mod plan;
#[cfg(test)]
mod tests;

pub(crate) use end::{End, options};
pub(crate) use message::{Initiator, LENGTH_MAX, Operation};
pub(crate) use plan::{Case, SIZES, cases};
