//! Our structures and our C headers match Debian's packages libibverbs-dev and librdmacm-dev. Each of their
//! structures exists in both; each number, macro and function exists in our headers; and all are the same.
//!
//! The list comes from Debian's headers at the time of the test. A generated C program names everything and is
//! compiled with both sets of headers.

#[path = "../support/compiler.rs"]
mod compiler;
mod declarations;
mod layouts;
mod program;
mod tokens;

use std::collections::BTreeSet;
use std::process::Command;

use compiler::{Compiler, said};
use declarations::Declarations;
use portolan_abi_layout::structures;

/// Headers that exist in both.
const HEADERS: [&str; 9] = [
    "infiniband/verbs.h",
    "infiniband/verbs_api.h",
    "infiniband/sa.h",
    "infiniband/ib.h",
    "infiniband/opcode.h",
    "infiniband/tm_types.h",
    "rdma/rdma_cma.h",
    "rdma/rdma_verbs.h",
    "rdma/rsocket.h",
];
/// A kernel header. libibverbs uses one of its structures in calls.
const KERNELS: &str = "rdma/ib_user_sa.h";
/// A macro with which Debian's header defines its own numbers. Programs do not use it.
const INNER_MACRO: &str = "IBV_OPCODE";
/// Our headers.
const OURS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../include");
/// Structures of Debian's headers that this crate lacks: by how their names begin, with the reasons.
const LEFT_OUT: [(&str, &str); 16] = [
    ("struct ibv_alloc_dm_attr", DEVICES),
    ("struct ibv_counter", DEVICES),
    ("struct ibv_dm", DEVICES),
    ("struct ibv_flow", DEVICES),
    ("struct ibv_mod", DEVICES),
    ("struct ibv_ops_wr", DEVICES),
    ("struct ibv_parent_domain_init_attr", DEVICES),
    ("struct ibv_qp_rate_limit_attr", DEVICES),
    ("struct ibv_rwq_ind_table", DEVICES),
    ("struct ibv_sa_mcmember_rec", UNUSED),
    ("struct ibv_sa_service_rec", UNUSED),
    ("struct ibv_td", DEVICES),
    ("struct ibv_tmh", UNUSED),
    ("struct ibv_rvh", UNUSED),
    ("struct ibv_wc_tm_info", DEVICES),
    ("struct ibv_wq", DEVICES),
];
const DEVICES: &str = "only devices with hardware of their own have it";
const UNUSED: &str = "no call of the libraries has it";

/// The declarations of Debian's headers.
fn declared(compiler: &Compiler, headers: &[&str]) -> Declarations {
    let lines = headers
        .iter()
        .map(|header| format!("#include <{header}>\n"));
    let path = compiler.folder().join("headers.c");
    std::fs::write(&path, lines.collect::<String>()).unwrap();
    let mut preprocessor = Command::new("cc");
    preprocessor.args(["-std=gnu11", "-E", "-dD"]).arg(&path);
    Declarations::read(&said(&mut preprocessor), headers)
}

/// The output of a C program compiled with these options.
fn printed(compiler: &Compiler, name: &str, source: &str, options: &[&str]) -> String {
    let usual = ["-O1", "-Werror=incompatible-pointer-types"];
    let program = compiler.build(name, source, &[&usual, options].concat());
    said(&mut Command::new(program))
}

#[test]
fn every_structure_is_laid_out_as_in_debians_headers_and_as_in_ours() {
    let compiler = Compiler::new("layouts");
    let headers = [&HEADERS[..], &[KERNELS]].concat();
    let structures = declared(&compiler, &headers).structures;
    let measured = Declarations {
        structures: structures.clone(),
        ..Declarations::default()
    };
    let source = program::source(&headers, &measured);
    for (name, options) in [("debian", &[][..]), ("ours", &["-I", OURS])] {
        let measured = layouts::measures(&printed(&compiler, name, &source, options));
        let found = layouts::differences(&structures, &measured);
        assert!(found.is_empty(), "{name}: {found:#?}");
    }
}

#[test]
fn every_structure_of_debians_headers_is_compared_or_left_out_for_a_reason() {
    let compiler = Compiler::new("structures");
    let declared = declared(&compiler, &HEADERS).structures;
    let known: BTreeSet<&str> = structures().iter().map(|ours| ours.name).collect();
    for (beginning, reason) in LEFT_OUT {
        let is_meant = |name: &&str| name.starts_with(beginning);
        assert!(
            declared.keys().any(|name| is_meant(&name.as_str())),
            "{beginning} is gone: {reason}"
        );
        let compared = known.iter().find(|name| is_meant(name));
        assert_eq!(compared, None, "{beginning} is compared: {reason}");
    }
    let is_left_out = |name: &str| {
        LEFT_OUT
            .iter()
            .any(|(beginning, _)| name.starts_with(beginning))
    };
    let names = declared.keys().map(String::as_str);
    let unknown: Vec<&str> = names
        .filter(|name| !known.contains(name) && !is_left_out(name))
        .collect();
    assert!(
        unknown.is_empty(),
        "neither compared nor left out: {unknown:#?}"
    );
}

#[test]
fn everything_that_debians_headers_declare_is_in_our_headers_and_the_same() {
    let compiler = Compiler::new("headers");
    let mut declared = declared(&compiler, &HEADERS);
    assert!(declared.macros.remove(INNER_MACRO).is_some());
    // A parser that overlooks declarations would compare nothing.
    assert!(declared.structures.len() > 100, "{:?}", declared.structures);
    assert!(declared.enumerators.len() > 500);
    assert!(declared.functions.len() > 200, "{:?}", declared.functions);
    assert!(declared.macros.len() > 50, "{:?}", declared.macros);
    let source = program::source(&HEADERS, &declared);
    let theirs = printed(&compiler, "theirs", &source, &[]);
    let ours = printed(&compiler, "ours", &source, &["-I", OURS]);
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
        printed(&compiler, &header.replace('/', "-"), &source, &strict);
    }
}

#[test]
fn new_declarations_can_be_added_to_debians_headers() {
    let compiler = Compiler::new("new");
    let source = "#include <portolan.h>\n\
                  int main(void) {\n\
                  return RAI_SA != 16 || RAI_DNS != 32 || RDMA_CM_EVENT_ADDRINFO_RESOLVED != 16 ||\n\
                  RDMA_CM_EVENT_ADDRINFO_ERROR != 17 || RDMA_CM_EVENT_USER != 18 ||\n\
                  sizeof(&rdma_query_addrinfo) != sizeof(&ibv_gid_reachable); }\n";
    let strict = ["-Wall", "-Wextra", "-Werror"];
    // Debian's headers are found before ours.
    let with_theirs = [&strict[..], &["-idirafter", OURS]].concat();
    printed(&compiler, "theirs", source, &with_theirs);
    printed(
        &compiler,
        "ours",
        source,
        &[&strict[..], &["-I", OURS]].concat(),
    );
}

#[test]
fn the_calls_of_the_manual_pages_are_declared_as_there_in_the_headers_that_they_name() {
    let compiler = Compiler::new("pages");
    let (cma, verbs) = ("rdma/rdma_cma.h", "infiniband/verbs.h");
    for (header, call, kind) in [
        (
            cma,
            "rdma_getaddrinfo",
            "int (*)(const char *, const char *, const struct rdma_addrinfo *, struct rdma_addrinfo **)",
        ),
        (cma, "rdma_freeaddrinfo", "void (*)(struct rdma_addrinfo *)"),
        (
            cma,
            "rdma_resolve_addrinfo",
            "int (*)(struct rdma_cm_id *, const char *, const char *, const struct rdma_addrinfo *)",
        ),
        (
            cma,
            "rdma_query_addrinfo",
            "int (*)(struct rdma_cm_id *, struct rdma_addrinfo **)",
        ),
        (
            verbs,
            "ibv_gid_reachable",
            "int (*)(struct ibv_context *, unsigned int, union ibv_gid *, int)",
        ),
        (
            cma,
            "rdma_get_cm_event",
            "int (*)(struct rdma_event_channel *, struct rdma_cm_event **)",
        ),
    ] {
        let source = format!(
            "#include <stdio.h>\n#include <{header}>\n\
             int main(void) {{ puts(_Generic(({kind})0, __typeof__(&{call}): \"same\", default: \"other\")); return 0; }}\n"
        );
        assert_eq!(
            printed(&compiler, call, &source, &["-I", OURS]),
            "same\n",
            "{call}"
        );
    }
}
