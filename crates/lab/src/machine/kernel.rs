//! The kernel of a Debian suite, unpacked into the cache instead of installed.

use std::fs;
use std::path::{Path, PathBuf};

use super::candidate::Version;
use super::command::{command, output};
use super::image;
use super::lists::Lists;
use super::packages::unpack;
use super::{Cache, MachineError, Unavailable};

/// Kernel modules to load besides their dependencies: the results disk and the machine link;
/// virtual links, bonding and network emulation; RDMA over Ethernet and its user interfaces.
/// Modules of a single kernel are listed with its suite.
const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_blk",
    "virtio_net", // the emulated devices
    "veth",
    "bonding",
    "sch_netem", // hosts in one machine, and bad networks
    "rdma_rxe",
    "ib_uverbs",
    "rdma_ucm",
    "ib_umad",
];

/// The Debian suite whose kernel a machine boots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suite {
    /// Debian 12: Linux 6.1. Its rdma_rxe owns UDP 4791 of the initial network namespace only.
    Bookworm,
    /// Debian 13's backports: the newest kernel that Debian has for a stable release, Linux 7. Its
    /// rdma_rxe owns UDP 4791 of each namespace that has an rxe link.
    TrixieBackports,
}

impl Suite {
    /// The suite's code name, as in `/etc/os-release`.
    #[must_use]
    pub fn codename(self) -> &'static str {
        match self {
            Self::Bookworm => "bookworm",
            Self::TrixieBackports => "trixie-backports",
        }
    }

    /// Where its packages are found. The host's lists may be of another suite.
    fn lists(self, cache: &Cache) -> Result<Lists, MachineError> {
        match self {
            Self::Bookworm => require_host_suite(self).map(|()| Lists::of_host()),
            Self::TrixieBackports => Lists::of_suite(cache, self.codename()),
        }
    }

    /// Modules that are not found as dependencies. The rdma_rxe of Linux 6.1 requests `crc32` by
    /// name from the crypto layer (for the ICRC); later kernels have it built in.
    fn own_modules(self) -> &'static [&'static str] {
        match self {
            Self::Bookworm => &["crc32_generic"],
            Self::TrixieBackports => &[],
        }
    }

    /// The package that depends on the suite's current kernel image.
    fn kernel_package(self) -> &'static str {
        match self {
            Self::Bookworm | Self::TrixieBackports => "linux-image-amd64",
        }
    }
}

/// An unpacked kernel package with its module index.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// Release, as `uname -r` prints it.
    pub(crate) release: String,
    /// Version of the package.
    pub(super) version: String,
    pub(super) suite: Suite,
    /// Modules to load after [`MODULES`].
    further_modules: &'static [&'static str],
    /// Folder the package was unpacked into.
    root: PathBuf,
}

/// One `insmod` of a load order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Module {
    /// The module's file on this host.
    pub(crate) file: PathBuf,
    /// Parameters, possibly empty.
    pub(crate) parameters: String,
}

impl Kernel {
    /// Returns the kernel of `suite` from the cache, or unpacks the newest in the package lists.
    pub(crate) fn unpack(cache: &Cache, suite: Suite) -> Result<Self, MachineError> {
        let lists = suite.lists(cache)?;
        let package = suite.kernel_package();
        let unpacked = unpack(
            cache,
            &lists,
            package,
            |meta| packages_of(&lists, &meta.depends, package),
            |image, root| Self::at(root.to_owned(), image, suite)?.finish(),
        )?;
        Self::at(unpacked.root, &unpacked.version, suite)
    }

    fn at(root: PathBuf, image: &Version, suite: Suite) -> Result<Self, MachineError> {
        Ok(Self {
            release: release_of(&image.package)?.to_owned(),
            version: image.version.clone(),
            suite,
            further_modules: &[],
            root,
        })
    }

    /// Adds a module that is not in the kernel's package, to be loaded in every machine.
    pub(super) fn add_module(
        &mut self,
        name: &'static [&'static str; 1],
        file: &Path,
    ) -> Result<(), MachineError> {
        let folder = self
            .root
            .join(format!("lib/modules/{}/extra", self.release));
        fs::create_dir_all(&folder).map_err(MachineError::io("create", &folder))?;
        let own = folder.join(format!("{}.ko", name[0]));
        fs::copy(file, &own).map_err(MachineError::io("write", &own))?;
        self.further_modules = name;
        self.index()
    }

    /// Has machines load additional modules of the kernel's package. Modules of the newer suite are compressed, which no machine
    /// can load.
    pub(super) fn load_further(&mut self, names: &'static [&'static str]) {
        self.further_modules = names;
    }

    /// The file that the emulator boots.
    pub(crate) fn image(&self) -> PathBuf {
        let unpacked = self.unpacked_image();
        if unpacked.exists() {
            return unpacked;
        }
        self.packed_image()
    }

    /// The unpacked kernel, if it could be unpacked.
    fn unpacked_image(&self) -> PathBuf {
        self.root.join(format!("vmlinux-{}", self.release))
    }

    fn packed_image(&self) -> PathBuf {
        let beside_modules = format!("lib/modules/{}/vmlinuz", self.release);
        let places = [format!("boot/vmlinuz-{}", self.release), beside_modules];
        let [first, second] = places.map(|place| self.root.join(place));
        if first.exists() { first } else { second }
    }

    /// Completes an unpacked package: unpacks its kernel, indexes its modules, and decompresses the
    /// modules that a machine loads.
    fn finish(&self) -> Result<(), MachineError> {
        let lib = self.root.join("lib");
        if !lib.exists() {
            // Packages for merged /usr have only usr/lib, where depmod does not look.
            std::os::unix::fs::symlink("usr/lib", &lib).map_err(MachineError::io("link", &lib))?;
        }
        image::unpack(&self.packed_image(), &self.unpacked_image())?;
        self.index()?;
        let compressed: Vec<_> = self
            .load_order()?
            .into_iter()
            .filter(|module| module.file.extension().is_some_and(|kind| kind == "xz"))
            .collect();
        if compressed.is_empty() {
            return Ok(());
        }
        let files = compressed.iter().map(|module| &module.file);
        output(command("xz").arg("--decompress").args(files))?;
        self.index()
    }

    fn index(&self) -> Result<(), MachineError> {
        let mut depmod = command("depmod");
        output(depmod.arg("-b").arg(&self.root).arg(&self.release)).map(drop)
    }

    /// All modules that a machine loads, with their dependencies, each once and in load order.
    pub(crate) fn load_order(&self) -> Result<Vec<Module>, MachineError> {
        let modules = self.suite.own_modules().iter();
        let modules = modules.chain(MODULES).chain(self.further_modules);
        let text = output(
            command("modprobe")
                .arg("--dirname")
                .arg(&self.root)
                .args(["--set-version", &self.release, "--show-depends", "--all"])
                // The host's own module configuration must not leak into the machine.
                .args(["--config", "/dev/null"])
                .args(modules),
        )?;
        let mut order: Vec<Module> = Vec::new();
        for module in parse_load_order(&text)? {
            if order.iter().all(|known| known.file != module.file) {
                order.push(module);
            }
        }
        Ok(order)
    }
}

/// The packages behind a kernel meta package: the image, and if that is empty the packages with its
/// files.
fn packages_of(lists: &Lists, depends: &str, origin: &str) -> Result<Vec<Version>, MachineError> {
    let image = find_exact_dependency(depends, "linux-image-", origin)?;
    let depends = lists.candidate(&image.package)?.depends;
    let parts = ["linux-base-", "linux-binary-", "linux-modules-"];
    let parts = parts.map(|prefix| find_exact_dependency(&depends, prefix, &image.package).ok());
    Ok([image]
        .into_iter()
        .chain(parts.into_iter().flatten())
        .collect())
}

/// The dependency on an exact version whose name begins with `prefix`.
fn find_exact_dependency(
    depends: &str,
    prefix: &str,
    origin: &str,
) -> Result<Version, MachineError> {
    let mut all = depends.split(',').map(str::trim);
    let found = all.find(|name| name.starts_with(prefix));
    parse_exact_dependency(found.unwrap_or(depends), origin)
}

/// Parses `NAME (= VERSION)`, the form in which a kernel meta package names its image.
fn parse_exact_dependency(text: &str, origin: &str) -> Result<Version, MachineError> {
    let first = text.split(',').next().unwrap_or_default();
    let parsed = first.split_once('(').and_then(|(name, version)| {
        let version = version.trim().strip_suffix(')')?.strip_prefix('=')?.trim();
        let name = name.trim();
        let usable = |text: &str| !text.is_empty() && !text.contains(['/', '_', ' ']);
        (usable(name) && usable(version)).then(|| Version {
            package: name.to_owned(),
            version: version.to_owned(),
        })
    });
    parsed.ok_or_else(|| {
        MachineError::unexpected(
            origin,
            format!("expected `NAME (= VERSION)`, found `{first}`"),
        )
    })
}

fn release_of(image_package: &str) -> Result<&str, MachineError> {
    image_package.strip_prefix("linux-image-").ok_or_else(|| {
        let why = format!("expected linux-image-RELEASE, found `{image_package}`");
        MachineError::unexpected("kernel package", why)
    })
}

/// Parses the output of `modprobe --show-depends`: `insmod FILE [PARAMETER]…`, and `builtin NAME`
/// for modules that need no loading.
fn parse_load_order(text: &str) -> Result<Vec<Module>, MachineError> {
    let mut modules = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        match line.split_once(' ') {
            Some(("insmod", rest)) => {
                let (file, parameters) = rest.split_once(' ').unwrap_or((rest, ""));
                modules.push(Module {
                    file: Path::new(file).to_owned(),
                    parameters: parameters.trim().to_owned(),
                });
            }
            Some(("builtin", _)) => {}
            _ => {
                let why = format!("expected `insmod …` or `builtin …`, found `{line}`");
                return Err(MachineError::unexpected("modprobe --show-depends", why));
            }
        }
    }
    Ok(modules)
}

/// The kernel comes from the host's own package lists, so the host must run the same suite.
fn require_host_suite(suite: Suite) -> Result<(), MachineError> {
    let path = Path::new("/etc/os-release");
    let text = fs::read_to_string(path).map_err(MachineError::io("read", path))?;
    let host = text
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    if host == Some(suite.codename()) {
        return Ok(());
    }
    Err(MachineError::Unavailable(Unavailable {
        what: format!("kernel of Debian {}", suite.codename()),
        why: format!(
            "this host's package lists are for `{}`",
            host.unwrap_or("an unknown system")
        ),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_meta_package_names_its_image_and_version() {
        let parsed = parse_exact_dependency("linux-image-6.1.0-9-amd64 (= 6.1.27-1), x", "test");
        let expected = Version {
            package: "linux-image-6.1.0-9-amd64".to_owned(),
            version: "6.1.27-1".to_owned(),
        };
        assert_eq!(parsed.unwrap(), expected);
    }

    #[test]
    fn a_dependency_is_found_among_others_by_how_its_name_begins() {
        let depends = "linux-base (= 1), linux-image-7.3.4-amd64 (= 7.3.4-1~bpo13+1), x (= 2)";
        let found = find_exact_dependency(depends, "linux-image-", "test").unwrap();
        assert_eq!(found.package, "linux-image-7.3.4-amd64");
        assert_eq!(found.version, "7.3.4-1~bpo13+1");
        assert!(find_exact_dependency("dracut | x", "linux-binary-", "test").is_err());
    }

    #[test]
    fn a_dependency_without_an_exact_version_is_refused() {
        for text in [
            "",
            "linux-image",
            "linux-image (>= 6.1)",
            "a/b (= 1)",
            "a (= ../1)",
            " (= 1)",
        ] {
            assert!(parse_exact_dependency(text, "test").is_err(), "{text}");
        }
    }

    #[test]
    fn a_load_order_keeps_parameters_and_leaves_out_what_is_built_in() {
        let text = "builtin ipv6\ninsmod /m/a.ko \ninsmod /m/b.ko size=4 fast=1\n";
        let order = parse_load_order(text).unwrap();
        let module = |file: &str, parameters: &str| Module {
            file: file.into(),
            parameters: parameters.to_owned(),
        };
        assert_eq!(
            order,
            [module("/m/a.ko", ""), module("/m/b.ko", "size=4 fast=1")]
        );
    }

    #[test]
    fn a_load_order_with_an_unknown_line_is_refused() {
        assert!(parse_load_order("install /bin/sh").is_err());
    }
}
