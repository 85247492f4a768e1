//! The contents of every machine: a shell, the modules in load order, and the RDMA programs.

use std::path::{Path, PathBuf};

use super::candidate::Candidate;
use super::kernel::Kernel;
use super::lists::Lists;
use super::packages::unpack;
use super::tree::Tree;
use super::{Cache, MachineError, Package};

/// The machine's first process.
const INIT: &str = include_str!("guest/init.sh");

/// Packages installed on the host: the emulator, unpackers of kernels, and the guest's programs.
pub(crate) const PACKAGES: &[Package] = &[
    Package {
        name: "ethtool",
        purpose: "offload settings in the machine",
    },
    Package {
        name: "ibverbs-providers",
        purpose: "the drivers rxe and siw of libibverbs",
    },
    Package {
        name: "ibverbs-utils",
        purpose: "ibv_devinfo and the pingpongs",
    },
    Package {
        name: "iproute2",
        purpose: "ip, rdma and tc in the machine",
    },
    Package {
        name: "iputils-ping",
        purpose: "ping in the machine",
    },
    Package {
        name: "kmod",
        purpose: "the load order of kernel modules",
    },
    Package {
        name: "rdmacm-utils",
        purpose: "rping and its kin",
    },
    Package {
        name: "strace",
        purpose: "programs that must not leave so soon",
    },
    Package {
        name: "tcpdump",
        purpose: "captures in the machine",
    },
    Package {
        name: "xz-utils",
        purpose: "packed kernels and modules",
    },
    Package {
        name: "zstd",
        purpose: "packed kernels",
    },
];

/// Unpacked, not installed: it would replace the host's `busybox` package.
const BUSYBOX_PACKAGE: &str = "busybox-static";

/// The host's programs that the machine has in `/usr/bin`. They include `timeout`, because
/// busybox's prefers busybox's own programs to those in `PATH`.
const PROGRAMS: &[&str] = &[
    "/bin/dash",
    "/bin/ip",
    "/bin/ping",
    "/sbin/tc",
    "/usr/bin/cmtime",
    "/usr/bin/ibv_devices",
    "/usr/bin/ibv_devinfo",
    "/usr/bin/ibv_rc_pingpong",
    "/usr/bin/ibv_srq_pingpong",
    "/usr/bin/ibv_uc_pingpong",
    "/usr/bin/ibv_ud_pingpong",
    "/usr/bin/mckey",
    "/usr/bin/rcopy",
    "/usr/bin/rdma",
    "/usr/bin/rdma_client",
    "/usr/bin/rdma_server",
    "/usr/bin/riostream",
    "/usr/bin/rping",
    "/usr/bin/rstream",
    "/usr/bin/strace",
    "/usr/bin/tcpdump",
    "/usr/bin/timeout",
    "/usr/bin/udpong",
    "/usr/bin/ucmatose",
    "/usr/bin/udaddy",
    "/usr/sbin/ethtool",
];

/// Drivers of libibverbs, for the kernel's soft devices.
const DRIVERS: [&str; 2] = ["rxe", "siw"];

/// Where Debian keeps shared libraries.
const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";

/// The file tree that every job starts from.
pub(crate) fn base(cache: &Cache, kernel: &Kernel) -> Result<Tree, MachineError> {
    let mut tree = Tree::new();
    for folder in ["dev", "etc", "proc", "results", "root", "run", "sys", "tmp"] {
        tree.directory(folder);
    }
    tree.executable_text("init", INIT);
    tree.text("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n");
    tree.text("etc/group", "root:x:0:\n");
    tree.text("etc/hosts", "127.0.0.1 localhost\n::1 localhost\n");
    add_programs(cache, &mut tree)?;
    add_verbs_drivers(&mut tree)?;
    add_modules(kernel, &mut tree)?;
    Ok(tree)
}

fn add_programs(cache: &Cache, tree: &mut Tree) -> Result<(), MachineError> {
    tree.static_program("busybox/busybox", &busybox(cache)?);
    for program in PROGRAMS {
        let path = Path::new(program);
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        tree.program(&format!("usr/bin/{name}"), path)?;
    }
    // Not busybox's shell, which prefers its own small `ip` to the real one in PATH.
    tree.program("usr/bin/sh", Path::new("/bin/dash"))?;
    // In no program's list of libraries: glibc opens it when a thread ends.
    tree.host_library(&Path::new(LIBRARIES).join("libgcc_s.so.1"));
    Ok(())
}

fn busybox(cache: &Cache) -> Result<PathBuf, MachineError> {
    let newest = |candidate: &Candidate| Ok(vec![candidate.version.clone()]);
    let unpacked = unpack(cache, &Lists::of_host(), BUSYBOX_PACKAGE, newest, |_, _| {
        Ok(())
    })?;
    Ok(unpacked.root.join("bin/busybox"))
}

/// libibverbs finds its drivers by the names in this folder and opens them at this path.
fn add_verbs_drivers(tree: &mut Tree) -> Result<(), MachineError> {
    for name in DRIVERS {
        let path = format!("etc/libibverbs.d/{name}.driver");
        tree.host_file(&path, &Path::new("/").join(&path));
    }
    let folder = Path::new(LIBRARIES).join("libibverbs");
    let entries = std::fs::read_dir(&folder).map_err(MachineError::io("list", &folder))?;
    for entry in entries {
        let path = entry.map_err(MachineError::io("list", &folder))?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let is_of = |driver: &&str| name.starts_with(&format!("lib{driver}-"));
        if DRIVERS.iter().any(is_of) {
            tree.program(&path.to_string_lossy(), &path)?;
        }
    }
    Ok(())
}

/// Adds the modules and `modules/order`, which has a line `FILE [PARAMETER]…` for each in load
/// order.
fn add_modules(kernel: &Kernel, tree: &mut Tree) -> Result<(), MachineError> {
    let mut order = String::new();
    for module in kernel.load_order()? {
        let name = module
            .file
            .file_name()
            .unwrap_or_default()
            .to_string_lossy();
        tree.host_file(&format!("modules/{name}"), &module.file);
        order.push_str(&format!("/modules/{name} {}\n", module.parameters));
    }
    tree.text("modules/order", order);
    Ok(())
}
