//! `infiniband/verbs.h`.

mod attr;
mod context;
mod convert;
mod gid;
mod numbers;
mod objects;
mod resources;
mod work;

pub use attr::*;
pub use context::*;
pub use gid::*;
pub use numbers::*;
pub use objects::*;
pub use resources::*;
pub use work::*;

use crate::{Structure, layouts};

pub(crate) fn structures() -> Vec<Structure> {
    [
        attr::structures(),
        context::structures(),
        gid::structures(),
        objects::structures(),
        resources::structures(),
        work::structures(),
    ]
    .concat()
}
