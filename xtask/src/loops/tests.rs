use std::path::Path;

use super::loops_of;

/// The loops of a crate with these files. Each is a list of file names with the used items.
fn loops(files: &[(&str, &str)]) -> Vec<String> {
    let read = |path: &Path| {
        let (_, text) = files.iter().find(|(name, _)| Path::new(name) == path)?;
        Some((*text).to_owned())
    };
    let found = loops_of(Path::new(files[0].0), &read).unwrap();
    let line = |found: &super::Loop| {
        let steps = found.steps.iter().map(|step| {
            let file = step.from.file_stem().unwrap().to_str().unwrap();
            format!("{file}: {}", step.names.join(" "))
        });
        steps.collect::<Vec<_>>().join(", ")
    };
    found.iter().map(line).collect()
}

const NONE: [&str; 0] = [];

#[test]
fn two_siblings_that_use_each_other_are_a_loop() {
    let files = [
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "use crate::b::B; pub struct A(B);"),
        ("b.rs", "pub struct B; impl B { fn of(a: super::a::A) {} }"),
    ];
    assert_eq!(loops(&files), ["a: B, b: A"]);
}

#[test]
fn a_loop_of_three_is_found_once() {
    let files = [
        ("lib.rs", "mod a; mod b; mod c;"),
        ("a.rs", "use crate::b::B; pub struct A;"),
        ("b.rs", "use crate::c::C; pub struct B;"),
        ("c.rs", "use crate::a::A; pub struct C;"),
    ];
    assert_eq!(loops(&files), ["a: B, b: C, c: A"]);
}

#[test]
fn a_parent_and_its_child_may_use_each_other() {
    let files = [
        ("lib.rs", "mod a; use a::inner::C; pub struct Root;"),
        (
            "a/mod.rs",
            "pub mod inner; pub use inner::C; use crate::Root; pub struct A;",
        ),
        ("a/inner.rs", "use super::A; use crate::Root; pub struct C;"),
    ];
    assert_eq!(loops(&files), NONE);
}

#[test]
fn an_uncle_that_uses_his_nephew_back_is_a_loop() {
    let files = [
        ("lib.rs", "mod a; mod b;"),
        ("a/mod.rs", "pub mod inner;"),
        ("a/inner.rs", "use crate::b::B; pub struct C;"),
        ("b.rs", "use crate::a::inner::C; pub struct B;"),
    ];
    assert_eq!(loops(&files), ["inner: B, b: C"]);
}

#[test]
fn a_re_export_leads_to_the_file_that_defines() {
    let files = [
        (
            "lib.rs",
            "mod a; mod b; pub use a::A as Named; pub use b::*;",
        ),
        ("a.rs", "use crate::B; pub struct A;"),
        ("b.rs", "use super::Named; pub struct B;"),
    ];
    assert_eq!(loops(&files), ["a: B, b: Named"]);
}

#[test]
fn paths_in_code_and_in_arguments_of_macros_count() {
    let files = [
        ("lib.rs", "mod a; mod b; mod c;"),
        (
            "a.rs",
            "use super::{b, c}; fn f() { b::g(); c::h() } pub const A: u8 = 1;",
        ),
        ("b.rs", "pub fn g() { assert_eq!(crate::a::A, 1); }"),
        ("c.rs", "pub fn h() { use super::{a::A}; drop(A) }"),
    ];
    assert_eq!(loops(&files), ["a: b g, b: A", "a: c h, c: A"]);
}

#[test]
fn modules_inside_a_file_are_that_file() {
    let files = [
        ("lib.rs", "mod a; mod b;"),
        (
            "a.rs",
            "pub mod x { pub struct X; } mod y { use super::x::X; use crate::b::B; }",
        ),
        ("b.rs", "use crate::a::x::X; pub struct B;"),
    ];
    assert_eq!(loops(&files), ["a: B, b: X"]);
}

#[test]
fn code_built_only_for_tests_does_not_count() {
    let files = [
        ("lib.rs", "mod a; mod b;"),
        (
            "a.rs",
            "use crate::b::B; pub struct A; #[cfg(test)] mod tests;",
        ),
        (
            "b.rs",
            "pub struct B; #[cfg(test)] mod tests { use crate::a::A; }",
        ),
    ];
    assert_eq!(loops(&files), NONE);
}

#[test]
fn other_crates_and_re_exports_in_a_circle_lead_nowhere() {
    let files = [
        ("lib.rs", "mod a; mod b;"),
        (
            "a.rs",
            "pub use crate::b::*; use std::fmt; use ::b::B; fn f() -> fmt::Result { b::g() }",
        ),
        (
            "b.rs",
            "pub use super::super::nothing; pub use self::nothing::x; use a::Other;",
        ),
    ];
    assert_eq!(loops(&files), NONE);
    let circle = [
        ("lib.rs", "mod a; mod b; use a::Lost;"),
        ("a.rs", "pub use crate::b::Lost;"),
        ("b.rs", "pub use crate::a::Lost;"),
    ];
    assert_eq!(loops(&circle), NONE);
}

#[test]
fn a_file_that_an_attribute_names_is_read() {
    let files = [
        (
            "tests/main.rs",
            "#[path = \"../common/a.rs\"] mod a; mod b;",
        ),
        ("common/a.rs", "use crate::b::B; pub struct A;"),
        ("tests/b.rs", "use crate::a::A; pub struct B;"),
    ];
    assert_eq!(loops(&files), ["a: B, b: A"]);
}

#[test]
fn a_missing_file_is_an_error_that_names_it() {
    let error = loops_of(Path::new("lib.rs"), &|path| {
        (path == Path::new("lib.rs")).then(|| "mod lost;".into())
    });
    assert!(error.unwrap_err().to_string().contains("lost/mod.rs"));
}
