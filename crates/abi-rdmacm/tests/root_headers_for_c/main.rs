//! Our headers say what those of Debian's packages libibverbs-dev and librdmacm-dev say: each structure, number, macro
//! and function of theirs is in ours, and is the same.
//!
//! What there is comes from Debian's headers at the time of the test: a C program is made that names all of it, and is
//! compiled once with each.

mod compiler;
mod declarations;
mod program;
mod tokens;

use compiler::Compiler;
use declarations::Declarations;

/// What both have.
const HEADERS: [&str; 8] = [
    "infiniband/verbs.h",
    "infiniband/verbs_api.h",
    "infiniband/sa.h",
    "infiniband/ib.h",
    "infiniband/opcode.h",
    "infiniband/tm_types.h",
    "rdma/rdma_cma.h",
    "rdma/rdma_verbs.h",
];
/// By which Debian's header makes its own numbers, and no program any.
const INNER_MACRO: &str = "IBV_OPCODE";
/// Our headers.
const OURS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../include");

#[test]
fn everything_that_debians_headers_declare_is_in_ours_and_the_same() {
    let compiler = Compiler::new("headers");
    let mut declared = Declarations::read(&compiler.preprocess(&HEADERS), &HEADERS);
    assert!(declared.macros.remove(INNER_MACRO).is_some());
    // If the reader of headers overlooked what it should see, nothing would be compared.
    assert!(declared.structures.len() > 100, "{:?}", declared.structures);
    assert!(declared.enumerators.len() > 500);
    assert!(declared.functions.len() > 200, "{:?}", declared.functions);
    assert!(declared.macros.len() > 50, "{:?}", declared.macros);
    let source = program::source(&HEADERS, &declared);
    let theirs = compiler.run("theirs", &source, &[]);
    let ours = compiler.run("ours", &source, &["-I", OURS]);
    let mut differing = theirs.lines().zip(ours.lines()).filter(|(a, b)| a != b);
    assert_eq!(differing.next(), None, "theirs, then ours");
    assert_eq!(theirs.lines().count(), ours.lines().count());
}

#[test]
fn our_headers_compile_alone_without_a_warning() {
    let compiler = Compiler::new("alone");
    for header in HEADERS.iter().chain(&["infiniband/arch.h", "portolan.h"]) {
        let source = format!("#include <{header}>\nint main(void) {{ return 0; }}\n");
        let strict = ["-Wall", "-Wextra", "-Werror", "-I", OURS];
        compiler.run(&header.replace('/', "-"), &source, &strict);
    }
}

#[test]
fn what_is_new_can_be_had_with_debians_headers() {
    let compiler = Compiler::new("new");
    let source = "#include <portolan.h>\n\
                  int main(void) {\n\
                  return RAI_SA != 16 || RAI_DNS != 32 || RDMA_CM_EVENT_ADDRINFO_RESOLVED != 16 ||\n\
                  RDMA_CM_EVENT_ADDRINFO_ERROR != 17 || RDMA_CM_EVENT_USER != 18 ||\n\
                  sizeof(&rdma_query_addrinfo) != sizeof(&ibv_gid_reachable); }\n";
    // Debian's headers are found before ours.
    let strict = ["-Wall", "-Wextra", "-Werror", "-idirafter", OURS];
    compiler.run("theirs", source, &strict);
    compiler.run("ours", source, &["-Wall", "-Wextra", "-Werror", "-I", OURS]);
}
