//! `siw`, the kernel's iWARP driver, which Debian's kernels lack. It is built from the source
//! package of the same kernel version, with Debian's compiler and headers for that kernel.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::command::{command, output};
use super::kernel::{Kernel, Suite};
use super::lists::Lists;
use super::packages::unpack;
use super::{Cache, MachineError, Unavailable};

/// Programs that the kernel's build needs besides compiler, headers and source.
const TOOLS: [&str; 8] = [
    "make",
    "dash",
    "coreutils",
    "sed",
    "grep",
    "findutils",
    "mawk",
    "tar",
];
/// The driver's folder, both in the kernel's source and in the build folder.
const SOURCE: &str = "drivers/infiniband/sw/siw";
const FOLDER: &str = "siw";
/// The only file kept of the build.
const MODULE: &str = "siw.ko";

/// The driver for a kernel, from the cache or newly built.
pub(super) fn build(cache: &Cache, kernel: &Kernel) -> Result<PathBuf, MachineError> {
    let lists = match kernel.suite {
        Suite::Bookworm => Lists::of_host(),
        // A backport is built with the stable suite's compiler.
        Suite::TrixieBackports => Lists::of_suites(cache, &["trixie", "trixie-backports"])?,
    };
    let headers = format!("linux-headers-{}", kernel.release);
    let source = source_package(&kernel.version)?;
    let of_kernel = |package: &str| format!("{package}={}", kernel.version);
    let select = |_: &_| {
        require_root()?;
        let mut packages = vec![of_kernel(&headers), of_kernel(&source)];
        packages.extend(TOOLS.map(str::to_owned));
        lists.with_dependencies(&packages)
    };
    let unpacked = unpack(cache, &lists, &headers, select, |_, root| {
        complete(root)?;
        let archive = root.join(format!("usr/src/{source}.tar.xz"));
        let of_driver = format!("{source}/{SOURCE}");
        let mut extract = command("tar");
        extract.arg("-xJf").arg(&archive).arg("-C").arg(root);
        output(extract.args([
            "--transform",
            &format!("s,^{of_driver},{FOLDER},"),
            &of_driver,
        ]))?;
        let (headers, driver) = (format!("/usr/src/{headers}"), format!("M=/{FOLDER}"));
        let make = ["make", "-C", &headers, &driver, "CONFIG_RDMA_SIW=m"];
        run_inside(root, &[&make[..], &["modules"]].concat())?;
        let module = format!("{FOLDER}/{MODULE}");
        run_inside(root, &["strip", "--strip-debug", &format!("/{module}")])?;
        keep_only(root, &module)
    })?;
    Ok(unpacked.root.join(MODULE))
}

/// The kernel's source package, for example `linux-source-7.3` for 7.3.4-1~bpo13+1.
fn source_package(version: &str) -> Result<String, MachineError> {
    let mut numbers = version.split('.');
    match (numbers.next(), numbers.next(), numbers.next()) {
        (Some(major), Some(minor), Some(_)) => Ok(format!("linux-source-{major}.{minor}")),
        _ => {
            let why = format!("expected MAJOR.MINOR.PATCH, found `{version}`");
            Err(MachineError::unexpected("version of the kernel", why))
        }
    }
}

/// Does what the packages' install scripts would do, as far as the build needs it.
fn complete(root: &Path) -> Result<(), MachineError> {
    for (link, to) in [
        ("bin", "usr/bin"),
        ("sbin", "usr/sbin"),
        ("lib", "usr/lib"),
        ("lib64", "usr/lib64"),
        ("bin/sh", "dash"),
        ("usr/bin/awk", "mawk"),
    ] {
        let link = root.join(link);
        if link.symlink_metadata().is_err() {
            symlink(to, &link).map_err(MachineError::io("link", &link))?;
        }
    }
    for folder in ["dev", "proc", "tmp"] {
        let folder = root.join(folder);
        fs::create_dir_all(&folder).map_err(MachineError::io("create", &folder))?;
    }
    let null = root.join("dev/null");
    output(command("mknod").arg(&null).args(["c", "1", "3"])).map(drop)
}

/// Runs one of the folder's programs with the folder as its root.
fn run_inside(root: &Path, program: &[&str]) -> Result<(), MachineError> {
    let mut run = command("unshare");
    run.args(["--mount", "--pid", "--fork", "--mount-proc"]);
    run.arg(format!("--root={}", root.display()));
    output(run.args(program)).map(drop)
}

/// Keeps only the module, at the top of the folder.
fn keep_only(root: &Path, module: &str) -> Result<(), MachineError> {
    let aside = root.with_extension("ko");
    let module = root.join(module);
    fs::rename(&module, &aside).map_err(MachineError::io("rename", &module))?;
    fs::remove_dir_all(root).map_err(MachineError::io("remove", root))?;
    fs::create_dir(root).map_err(MachineError::io("create", root))?;
    fs::rename(&aside, root.join(MODULE)).map_err(MachineError::io("rename", &aside))
}

fn require_root() -> Result<(), MachineError> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(MachineError::Unavailable(Unavailable {
        what: "the kernel's iWARP driver".to_owned(),
        why: "building it needs root, because the build runs in a chroot".to_owned(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_package_is_that_of_the_kernels_first_two_numbers() {
        assert_eq!(source_package("6.1.192-2").unwrap(), "linux-source-6.1");
        let backport = source_package("7.3.4-1~bpo13+1").unwrap();
        assert_eq!(backport, "linux-source-7.3");
        assert!(source_package("7").is_err());
    }
}
