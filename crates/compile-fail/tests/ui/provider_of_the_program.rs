use std::any::Any;
use std::sync::Arc;

use portolan::provider::traits::HostMemory;

#[derive(Debug)]
struct Own;

impl HostMemory for Own {
    fn addr(&self) -> u64 {
        0
    }

    fn len(&self) -> usize {
        0
    }

    fn is_held(&self) -> bool {
        false
    }

    fn as_arc_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}

fn main() {}
