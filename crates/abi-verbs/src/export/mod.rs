//! The functions of C, by their names and the versions of `libibverbs.map`.

mod connections;
mod devices;
mod kern;
mod private;
mod queues;
mod words;
