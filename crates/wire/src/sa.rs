//! Records of InfiniBand's subnet administrator (IBTA 15.2.5).

mod path_record;

pub use path_record::{PathRecord, Selected, Selector};
