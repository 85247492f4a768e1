//! Compiles C programs against Debian's libibverbs and librdmacm, for use in machines.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::machine::{Cache, MachineError, Package, ensure_installed, tool_output};

/// Packages needed to compile them.
const PACKAGES: &[Package] = &[
    Package {
        name: "gcc",
        purpose: "the C compiler",
    },
    Package {
        name: "libc6-dev",
        purpose: "the C library's headers",
    },
    Package {
        name: "libibverbs-dev",
        purpose: "the headers of libibverbs",
    },
    Package {
        name: "librdmacm-dev",
        purpose: "the headers of librdmacm",
    },
];

/// Compiles the C file `source` without output. The kernel's headers in `headers` come before the
/// machine's.
pub(super) fn check(headers: &Path, source: &str) -> Result<(), MachineError> {
    ensure_installed(PACKAGES)?;
    let own = headers.join("x86_64-linux-gnu");
    let arguments = [
        OsStr::new("-fsyntax-only"),
        OsStr::new("-Werror"),
        OsStr::new("-I"),
        headers.as_os_str(),
        OsStr::new("-I"),
        own.as_os_str(),
        OsStr::new(source),
    ];
    tool_output("cc", &arguments).map(drop)
}

/// Compiles the C file `source` to a program in the cache, called `name`.
pub(super) fn compile(cache: &Cache, name: &str, source: &str) -> Result<PathBuf, MachineError> {
    ensure_installed(PACKAGES)?;
    let program = cache.folder("programs")?.join(name);
    let mut arguments: Vec<&OsStr> = ["-Wall", "-Wextra", "-Werror", "-O2", "-g", "-o"]
        .map(OsStr::new)
        .into();
    arguments.extend([program.as_os_str(), OsStr::new(source)]);
    arguments.extend(["-lrdmacm", "-libverbs"].map(OsStr::new));
    tool_output("cc", &arguments)?;
    Ok(program)
}
