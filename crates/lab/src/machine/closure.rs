//! A program and the shared libraries it needs, as the host's loader resolves them.

use std::path::{Path, PathBuf};

use super::MachineError;
use super::command::{command, failure, run};

/// The libraries that `program` (an ELF file) is linked to, directly and indirectly, and the
/// loader. Empty for a static program. Libraries opened at run time are not included.
///
/// `ldd` may execute the program's loader, so use this only for trusted programs.
pub(crate) fn libraries(program: &Path) -> Result<Vec<PathBuf>, MachineError> {
    let mut ldd = command("ldd");
    ldd.arg(program);
    let answer = run(&mut ldd)?;
    if !answer.status.success() {
        let is_static =
            String::from_utf8_lossy(&answer.stderr).contains("not a dynamic executable");
        return if is_static {
            Ok(Vec::new())
        } else {
            Err(failure(&ldd, &answer))
        };
    }
    parse(&String::from_utf8_lossy(&answer.stdout), program)
}

/// Parses lines `NAME => PATH (ADDRESS)`, `PATH (ADDRESS)` (the loader), `NAME (ADDRESS)` (the
/// kernel's vdso), `NAME => not found` and `statically linked`.
fn parse(text: &str, program: &Path) -> Result<Vec<PathBuf>, MachineError> {
    let mut libraries = Vec::new();
    for line in text.lines().map(str::trim) {
        let target = line.split_once(" => ").map_or(line, |(_, target)| target);
        if target == "not found" {
            let what = format!("libraries of {}", program.display());
            return Err(MachineError::unexpected(what, line));
        }
        let path = target.split_once(" (").map_or(target, |(path, _)| path);
        if path.starts_with('/') {
            libraries.push(PathBuf::from(path));
        }
    }
    Ok(libraries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_and_loader_are_listed_and_the_vdso_is_not() {
        let text = "\tlinux-vdso.so.1 (0x1)\n\tlibc.so.6 => /lib/libc.so.6 (0x2)\n\t/lib64/ld.so.2 (0x3)\n";
        let libraries = parse(text, Path::new("p")).unwrap();
        assert_eq!(
            libraries,
            [Path::new("/lib/libc.so.6"), Path::new("/lib64/ld.so.2")]
        );
    }

    #[test]
    fn a_static_program_needs_none() {
        assert!(
            parse("\tstatically linked\n", Path::new("p"))
                .unwrap()
                .is_empty()
        );
    }

    #[test]
    fn a_library_that_is_missing_is_an_error_that_names_it() {
        let error = parse("\tlibx.so.1 => not found\n", Path::new("p")).unwrap_err();
        assert!(error.to_string().contains("libx.so.1"), "{error}");
    }
}
