//! Benchmarks of MPI that Debian lacks, from Python packages. Intel's (IMB) are in the package of its MPI, built for the
//! binary interface that MPICH shares with it. Those of Ohio State University (OSU), translated to Python, are in
//! mpi4py's source.

use std::fs;
use std::process::Command;

use anyhow::{Result, ensure};
use portolan_lab::machine::{Package, ensure_installed};

use crate::test::Workspace;

const PACKAGES: [Package; 4] = [
    Package {
        name: "python3-pip",
        purpose: "fetching benchmarks of MPI",
    },
    Package {
        name: "unzip",
        purpose: "the same",
    },
    Package {
        name: "python3-mpi4py",
        purpose: "benchmarks of MPI in Python",
    },
    Package {
        name: "libmpich12",
        purpose: "the MPI of Intel's benchmarks",
    },
];

/// A Python package, what to unpack of it, and where.
struct Source {
    /// Relative to the workspace. It is complete if it has the file `ready`.
    folder: &'static str,
    /// A line of pip's requirements.
    package: &'static str,
    /// How pip fetches it.
    kind: &'static str,
    /// A shell script that unpacks the file that pip has fetched.
    unpack: &'static str,
}

const SOURCES: [Source; 2] = [
    Source {
        folder: "target/programs/imb",
        package: "impi-rt==2021.19.0 --hash=sha256:708b4336c9d303a3d807b58054c502ed4f716dfb074dfa48904180b46d14bb40",
        kind: "--only-binary=:all:",
        // MPICH gets the name by which the benchmarks load it.
        unpack: "unzip -q -o -j impi_rt-*.whl '*/bin/IMB-MPI1' '*/bin/IMB-RMA' '*/licensing/*'
            rm impi_rt-*.whl
            chmod +x IMB-MPI1 IMB-RMA
            mkdir -p lib
            ln -sf /usr/lib/*/libmpich.so.12 lib/libmpi.so.12",
    },
    Source {
        folder: "target/programs/osu",
        package: "mpi4py==4.1.2 --hash=sha256:56860286dc45f20e8821e93cb06669e30462348bf866f685553fa4b712d58d02",
        kind: "--no-binary=mpi4py",
        unpack: "tar xzf mpi4py-*.tar.gz --strip-components=2 --wildcards '*/demo/osu_*.py'
            rm mpi4py-*.tar.gz",
    },
];

/// Fetches the benchmarks that are missing.
pub(super) fn ensure_there(workspace: &Workspace) -> Result<()> {
    for source in &SOURCES {
        let folder = workspace.root.join(source.folder);
        if folder.join("ready").exists() {
            continue;
        }
        ensure_installed(&PACKAGES)?;
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("requirements.txt"), source.package)?;
        let script = format!(
            "python3 -m pip download --quiet --no-deps --require-hashes {} -r requirements.txt\n{}\ntouch ready",
            source.kind, source.unpack
        );
        let status = Command::new("sh")
            .args(["-ec", &script])
            .current_dir(&folder)
            .status()?;
        ensure!(status.success(), "cannot fetch {}", source.package);
    }
    Ok(())
}
