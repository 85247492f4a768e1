//! The examples for C.

use crate::compiler::Compiled;

const EXAMPLES: [&str; 4] = [
    "ibv_gid_reachable",
    "rdma_get_cm_event",
    "rdma_getaddrinfo",
    "rdma_resolve_addrinfo",
];

#[test]
fn the_examples_for_c_compile_with_our_headers_without_a_warning() {
    let compiled = Compiled::new("examples");
    for name in EXAMPLES {
        let object = compiled.object(&format!("examples/c/{name}/{name}.c"));
        assert!(object.exists());
    }
}
