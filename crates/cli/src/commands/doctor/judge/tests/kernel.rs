//! Problems of the kernel's devices.

use super::*;

pub(super) fn cases() -> Vec<Case> {
    vec![
        case(
            ("module-missing", Problem),
            "rdma_ucm is not loaded",
            "modprobe rdma_ucm",
            healthy_kernel(),
            |f| {
                f.kernel.modules[3].state = ModuleState::Available;
            },
        ),
        case(
            ("module-missing", Problem),
            "no module rdma_ucm",
            "install a kernel",
            healthy_kernel(),
            |f| {
                f.kernel.modules[3].state = ModuleState::Absent;
            },
        ),
        case(
            ("kernel-no-device", Problem),
            "no RDMA device",
            "netdev eth0",
            healthy_kernel(),
            |f| {
                f.kernel.devices.clear();
            },
        ),
        case(
            ("kernel-no-device", Problem),
            "no RDMA device",
            "=software",
            healthy_kernel(),
            |f| {
                f.kernel.devices.clear();
                f.kernel.modules.truncate(4);
            },
        ),
        case(
            ("node-missing", Problem),
            "/dev/infiniband/rdma_cm",
            "modprobe",
            healthy_kernel(),
            |f| {
                f.kernel.nodes.remove(0);
            },
        ),
        case(
            ("node-unusable", Problem),
            "uverbs0 (mode 0600)",
            "chmod a+rw",
            healthy_kernel(),
            |f| {
                f.kernel.nodes[1].mode = 0o600;
                f.kernel.nodes[1].is_usable = false;
            },
        ),
        case(
            ("rdma-cm-unusable", Problem),
            "too old",
            "modprobe",
            healthy_kernel(),
            |f| {
                f.kernel.offers = Some(Err("too old".into()));
            },
        ),
        case(
            ("verbs-unusable", Problem),
            "not found",
            "libibverbs1",
            healthy_kernel(),
            |f| {
                f.kernel.library = Some(Err("not found".into()));
            },
        ),
        case(
            ("verbs-drivers-missing", Problem),
            "no driver",
            "ibverbs-providers",
            healthy_kernel(),
            |f| {
                f.kernel.drivers.clear();
            },
        ),
        case(
            ("kernel-port-down", Problem),
            "rxe0 port 1 is DOWN",
            "rdma link show rxe0/1",
            healthy_kernel(),
            |f| {
                f.kernel.devices[0].ports[0].state = "DOWN".into();
            },
        ),
        case(
            ("kernel-port-down", Problem),
            "INIT",
            "subnet manager",
            healthy_kernel(),
            |f| {
                f.kernel.devices[0].ports[0].state = "INIT".into();
                f.kernel.devices[0].ports[0].link_layer = "InfiniBand".into();
            },
        ),
        case(
            ("memlock-low", Problem),
            "64 KiB",
            "ulimit -l unlimited",
            healthy_kernel(),
            |f| {
                f.host.memlock.soft = Some(65536);
            },
        ),
    ]
}
