//! `infiniband/verbs.h`.

mod attr;
mod context;
mod convert;
mod flow;
mod gid;
mod numbers;
mod objects;
mod receive;
mod resources;
mod tags;
mod work;

pub use attr::*;
pub use context::*;
pub use flow::*;
pub use gid::*;
pub use numbers::*;
pub use objects::*;
pub use receive::*;
pub use resources::*;
pub use tags::*;
pub use work::*;

use crate::{Structure, layouts};

pub(crate) fn structures() -> Vec<Structure> {
    [
        attr::structures(),
        context::structures(),
        flow::structures(),
        gid::structures(),
        objects::structures(),
        receive::structures(),
        resources::structures(),
        tags::structures(),
        work::structures(),
    ]
    .concat()
}
