//! Streams between two endpoints over a reliable connection whose parts lag behind each other at random.

mod growth;
mod life;
mod link;
mod random;
