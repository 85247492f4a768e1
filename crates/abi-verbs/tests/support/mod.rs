//! Structures as a C compiler lays them out.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use ibverbs::layout::{Field, Structure, nested, structures};

/// Holds every structure of the library against the headers found with `options` of the compiler; `name` is theirs.
pub(crate) fn compare_layouts(name: &str, options: &[&str]) {
    let ours = structures();
    let printed = run_c(name, &program(&ours), options);
    let mut theirs = printed.lines().map(|line| {
        let numbers = line.split(' ').map(|number| number.parse().unwrap());
        numbers.collect::<Vec<usize>>()
    });
    for structure in &ours {
        assert_no_field_is_missing(structure);
        let name = structure.name;
        let [size, align] = theirs.next().unwrap()[..] else {
            panic!("{name}: {printed}");
        };
        assert_eq!((structure.size, structure.align), (size, align), "{name}");
        for field in &structure.fields {
            let found = theirs.next().unwrap();
            let field_name = field.name;
            assert_eq!(
                vec![field.offset, field.size],
                found,
                "{name}, {field_name}: ours, then the header's"
            );
        }
    }
    for (structure, field) in nested() {
        let (found, name) = (theirs.next().unwrap(), field.name);
        assert_eq!(vec![field.offset, field.size], found, "{structure}, {name}");
    }
    assert_eq!(theirs.next(), None);
}

/// Between two fields is only what the alignment of a structure can want.
fn assert_no_field_is_missing(structure: &Structure) {
    let ends = structure
        .fields
        .iter()
        .map(|field| field.offset + field.size);
    let begins = structure.fields.iter().map(|field| field.offset);
    let begins = begins.skip(1).chain([structure.size]);
    for (end, begin) in ends.zip(begins) {
        let name = structure.name;
        assert!(begin >= end && begin - end < 8, "{name}: {end} to {begin}");
    }
}

/// A program that prints size and alignment of each structure, then place and size of each field. What lies in
/// `struct verbs_context` is counted from its end, where it is fixed.
fn program(structures: &[Structure]) -> String {
    let mut text = String::from(
        "#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/sa.h>\n\
         #include <infiniband/verbs.h>\n#include <rdma/ib_user_sa.h>\n\
         #include <rdma/ib_user_verbs.h>\n\
         int main(void) {\n",
    );
    for Structure { name, fields, .. } in structures {
        // It grows at its beginning: as long as ours, counted from its end.
        let base = if *name == "struct verbs_context" {
            format!("offsetof({name}, {})", fields[0].name)
        } else {
            "0".to_owned()
        };
        writeln!(
            text,
            "printf(\"%zu %zu\\n\", sizeof({name}) - {base}, _Alignof({name}));"
        )
        .unwrap();
        for Field { name: field, .. } in fields {
            writeln!(
                text,
                "printf(\"%zu %zu\\n\", offsetof({name}, {field}) - {base}, \
                 sizeof((({name} *)0)->{field}));"
            )
            .unwrap();
        }
    }
    for (name, Field { name: field, .. }) in nested() {
        writeln!(
            text,
            "printf(\"%zu %zu\\n\", offsetof({name}, {field}), \
             sizeof((({name} *)0)->{field}));"
        )
        .unwrap();
    }
    text.push_str("return 0; }\n");
    text
}

/// What a C program prints.
fn run_c(name: &str, source: &str, options: &[&str]) -> String {
    Built::new(name, source, options).run(None)
}

/// A C program, built.
pub(crate) struct Built {
    folder: Folder,
    program: PathBuf,
}

impl Built {
    /// Builds one with `options` of the compiler.
    pub(crate) fn new(name: &str, source: &str, options: &[&str]) -> Self {
        let folder = Folder::new(name);
        let (from, program) = (folder.0.join("program.c"), folder.0.join("program"));
        std::fs::write(&from, source).unwrap();
        let mut compiler = Command::new("cc");
        let compiler = compiler
            .args(["-std=gnu11", "-Wall", "-Werror", "-o"])
            .args([&program, &from])
            .args(options);
        let compiled = compiler.output().unwrap();
        let said = String::from_utf8_lossy(&compiled.stderr);
        assert!(compiled.status.success(), "{said}\n{source}");
        Self { folder, program }
    }

    /// What it prints, on the system's libibverbs or another.
    pub(crate) fn run(&self, library: Option<&Path>) -> String {
        let mut command = Command::new(&self.program);
        if let Some(library) = library {
            std::os::unix::fs::symlink(library, self.folder.0.join("libibverbs.so.1")).unwrap();
            command.env("LD_LIBRARY_PATH", &self.folder.0);
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

/// A folder of its own, gone when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("portolan-verbs-layout-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
