//! The kernel's RDMA support: modules, device files, devices with their ports and GIDs (sysfs, class `infiniband`), and
//! libibverbs.

use std::os::unix::fs::PermissionsExt;

use portolan::provider::{check_verbs_library, kernel_offers};
use rustix::fs::Access;

use super::super::facts::{Kernel, KernelDevice, Module, ModuleState, Node, Port, PortGid};
use super::Root;

/// The modules that the kernel provider needs, and those of software devices.
const MODULES: [&str; 7] = [
    "ib_core",
    "ib_uverbs",
    "rdma_cm",
    "rdma_ucm",
    "ib_umad",
    "rdma_rxe",
    "siw",
];
const CLASS: &str = "/sys/class/infiniband";
const NODES: &str = "/dev/infiniband";
/// Maximum number of a port's GIDs to read; drivers have a few hundred.
const GIDS_MAX: usize = 1024;
const UNSET_GID: &str = "0000:0000:0000:0000:0000:0000:0000:0000";

pub(super) fn look(root: &Root) -> Kernel {
    Kernel {
        modules: modules(root),
        rdma_cm_abi: ["misc/rdma_cm", "infiniband_ucma"]
            .iter()
            .find_map(|class| root.number(&format!("/sys/class/{class}/abi_version"))),
        verbs_abi: root.number("/sys/class/infiniband_verbs/abi_version"),
        offers: Some(kernel_offers().map_err(|error| error.cause.to_string())),
        nodes: nodes(root),
        library: Some(match check_verbs_library() {
            Ok(()) => Ok(library_path(root).unwrap_or_else(|| "libibverbs.so.1".into())),
            Err(error) => Err(error.cause.to_string()),
        }),
        drivers: drivers(root),
        devices: devices(root),
    }
}

fn modules(root: &Root) -> Vec<Module> {
    let release = root.line("/proc/sys/kernel/osrelease").unwrap_or_default();
    let folder = format!("/lib/modules/{release}");
    let lists = ["modules.builtin", "modules.dep"]
        .map(|name| root.read(&format!("{folder}/{name}")).unwrap_or_default());
    let loaded = root.read("/proc/modules").unwrap_or_default();
    let state = |name: &str| {
        let is_loaded = |line: &str| line.split(' ').next() == Some(name);
        // A built-in module with parameters appears here even if no list of modules is installed.
        let shows = root.has(&format!("/sys/module/{name}"));
        let [is_built_in, is_there] = [&lists[0], &lists[1]].map(|list| has_module(list, name));
        match () {
            () if loaded.lines().any(is_loaded) => ModuleState::Loaded,
            () if is_built_in || shows => ModuleState::BuiltIn,
            () if is_there => ModuleState::Available,
            () => ModuleState::Absent,
        }
    };
    let modules = MODULES.map(|name| Module {
        name,
        state: state(name),
    });
    modules.into()
}

/// Whether depmod's list (`kernel/…/name.ko.xz: …`) contains a module; names may use `-` or `_`.
fn has_module(list: &str, name: &str) -> bool {
    list.lines().any(|line| {
        let path = line.split(':').next().unwrap_or_default();
        let file = path.rsplit('/').next().unwrap_or_default();
        let stem = file.split(".ko").next().unwrap_or_default();
        file.contains(".ko") && stem.replace('-', "_") == name
    })
}

fn nodes(root: &Root) -> Vec<Node> {
    let names = root.names(NODES).into_iter();
    names
        .filter_map(|name| {
            let path = format!("{NODES}/{name}");
            let file = root.path(&path);
            let metadata = std::fs::metadata(&file).ok()?;
            let is_usable = rustix::fs::access(&file, Access::READ_OK | Access::WRITE_OK).is_ok();
            (!metadata.is_dir()).then(|| Node {
                path,
                mode: metadata.permissions().mode() & 0o777,
                is_usable,
            })
        })
        .collect()
}

/// The path from which this process has loaded the library.
fn library_path(root: &Root) -> Option<String> {
    let maps = root.read("/proc/self/maps")?;
    maps.lines().find_map(|line| {
        let path = line.get(line.find('/')?..)?;
        path.contains("/libibverbs.so").then(|| path.to_owned())
    })
}

/// The names of libibverbs' drivers, from their configuration files.
fn drivers(root: &Root) -> Vec<String> {
    let files = root.names("/etc/libibverbs.d").into_iter();
    let stem = |file: String| Some(file.strip_suffix(".driver")?.to_owned());
    files.filter_map(stem).collect()
}

fn devices(root: &Root) -> Vec<KernelDevice> {
    let names = root.names(CLASS).into_iter();
    names
        .map(|name| {
            let folder = format!("{CLASS}/{name}");
            let text = |file: &str| root.line(&format!("{folder}/{file}"));
            let ports = root.names(&format!("{folder}/ports"));
            let ports = ports.iter().filter_map(|port| port.parse().ok());
            KernelDevice {
                node_guid: text("node_guid").unwrap_or_default(),
                firmware: text("fw_ver").filter(|version| !version.is_empty()),
                driver: root
                    .link_name(&format!("{folder}/device/driver"))
                    .or_else(|| {
                        // Hardware, even if its driver is unknown.
                        root.has(&format!("{folder}/device"))
                            .then(|| "unknown".into())
                    }),
                ports: ports.map(|number| port(root, &folder, number)).collect(),
                name,
            }
        })
        .collect()
}

fn port(root: &Root, device: &str, number: u32) -> Port {
    let folder = format!("{device}/ports/{number}");
    let text = |file: &str| root.line(&format!("{folder}/{file}")).unwrap_or_default();
    // `4: ACTIVE`
    let state = text("state");
    let mut indices: Vec<u32> = root
        .names(&format!("{folder}/gids"))
        .iter()
        .take(GIDS_MAX)
        .filter_map(|index| index.parse().ok())
        .collect();
    indices.sort_unstable();
    // `4: RNIC`, that is, an iWARP device
    let node_type = root.line(&format!("{device}/node_type"));
    let is_iwarp = node_type.is_some_and(|line| line.ends_with("RNIC"));
    let gids = indices.into_iter().filter_map(|index| {
        let gid = root.line(&format!("{folder}/gids/{index}"))?;
        let of = |kind: &str| root.line(&format!("{folder}/gid_attrs/{kind}/{index}"));
        (gid != UNSET_GID).then(|| PortGid {
            index,
            gid,
            kind: match is_iwarp {
                true => Some("iWARP".to_owned()),
                false => of("types"),
            },
            interface: of("ndevs"),
        })
    });
    Port {
        number,
        state: state.rsplit(' ').next().unwrap_or_default().to_owned(),
        link_layer: text("link_layer"),
        rate: text("rate"),
        gids: gids.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Tree;
    use super::*;

    #[test]
    fn a_port_of_hardware_is_read_with_its_state_and_gids() {
        let port = "/sys/class/infiniband/mlx5_0/ports/1";
        let file = |name: &str| format!("{port}/{name}");
        let files = [
            (file("state"), "4: ACTIVE\n"),
            (file("link_layer"), "Ethernet\n"),
            (file("rate"), "100 Gb/sec (4X EDR)\n"),
            (file("gids/0"), "fe80:0000:0000:0000:0000:00ff:fe00:0001\n"),
            (file("gids/1"), "0000:0000:0000:0000:0000:0000:0000:0000\n"),
            (file("gids/10"), "0000:0000:0000:0000:0000:ffff:0a00:0001\n"),
            (file("gid_attrs/types/10"), "RoCE v2\n"),
            (file("gid_attrs/ndevs/10"), "eth0\n"),
            (
                "/sys/class/infiniband/mlx5_0/node_guid".into(),
                "0011:2233:4455:6677\n",
            ),
            (
                "/sys/class/infiniband/mlx5_0/device/driver".into(),
                "-> ../drivers/mlx5_core",
            ),
            ("/sys/class/infiniband/rxe0/node_guid".into(), "1\n"),
        ];
        let files: Vec<(&str, &str)> = files
            .iter()
            .map(|(path, text)| (path.as_str(), *text))
            .collect();
        let tree = Tree::of("sysfs", &files);
        let devices = devices(&tree.0);
        let [hardware, soft] = devices.as_slice() else {
            panic!("{devices:?}")
        };
        assert_eq!((soft.name.as_str(), &soft.driver), ("rxe0", &None));
        assert_eq!(hardware.driver.as_deref(), Some("mlx5_core"));
        let port = &hardware.ports[0];
        assert!(port.is_active() && port.is_ethernet(), "{port:?}");
        let found: Vec<_> = port
            .gids
            .iter()
            .map(|gid| (gid.index, gid.interface.as_deref()))
            .collect();
        assert_eq!(found, [(0, None), (10, Some("eth0"))]);
        assert_eq!(port.gids[1].kind.as_deref(), Some("RoCE v2"));
    }

    #[test]
    fn modules_are_loaded_built_in_available_or_absent() {
        let tree = Tree::of(
            "modules",
            &[
                ("/proc/sys/kernel/osrelease", "6.1.0\n"),
                (
                    "/proc/modules",
                    "rdma_cm 1 2 rdma_ucm, Live 0x0\nrdma_cm_not 1\n",
                ),
                (
                    "/lib/modules/6.1.0/modules.dep",
                    "kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko.xz: kernel/x/ib_uverbs.ko\nkernel/ib-umad.ko:\n",
                ),
                (
                    "/lib/modules/6.1.0/modules.builtin",
                    "kernel/core/ib_core.ko\n",
                ),
            ],
        );
        let states: Vec<_> = modules(&tree.0)
            .iter()
            .map(|m| (m.name, m.state.name()))
            .collect();
        let expected = [
            ("ib_core", "built in"),
            ("ib_uverbs", "absent"),
            ("rdma_cm", "loaded"),
            ("rdma_ucm", "absent"),
            ("ib_umad", "available"),
            ("rdma_rxe", "available"),
            ("siw", "absent"),
        ];
        assert_eq!(states, expected);
    }

    #[test]
    fn files_of_devices_are_listed_with_their_permissions() {
        let tree = Tree::of("nodes", &[("/dev/infiniband/rdma_cm", "")]);
        let file = tree.0.path("/dev/infiniband/rdma_cm");
        std::fs::set_permissions(file, PermissionsExt::from_mode(0o600)).unwrap();
        let expected = Node {
            path: "/dev/infiniband/rdma_cm".into(),
            mode: 0o600,
            is_usable: true,
        };
        assert_eq!(nodes(&tree.0), [expected]);
    }
}
