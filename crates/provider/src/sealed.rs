//! Seals traits: only Portolan's crates implement them, so a new method breaks no program.

/// A supertrait of the sealed ones.
pub trait Sealed {}
