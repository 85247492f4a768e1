//! Problems of the software device.

use super::*;

pub(super) fn cases() -> Vec<Case> {
    let process = || Owner::Process {
        pid: 812,
        program: "nc".into(),
    };
    vec![
        case(
            ("provider-unknown", Problem),
            "no such",
            "unset PORTOLAN_PROVIDER",
            healthy(),
            |f| {
                f.provider = Some(Err("no such provider".into()));
            },
        ),
        case(
            ("software-no-device", Problem),
            "no network interface",
            "ip link set lo up",
            healthy(),
            |f| {
                f.software.clear();
            },
        ),
        case(
            ("port-held", Problem),
            "process 812 (nc)",
            "kill 812",
            healthy(),
            |f| {
                f.port.sockets.push(socket(process(), 1000));
            },
        ),
        case(
            ("port-held", Problem),
            "user 1000",
            "ss -ulpn",
            healthy(),
            |f| {
                f.port.sockets.push(socket(Owner::Unknown, 1000));
            },
        ),
        case(
            ("port-held", Problem),
            "process 812",
            "kill 812",
            healthy(),
            |f| {
                let group = PortGroup {
                    holder_pid: 7,
                    pids: vec![7, 8],
                };
                f.port.group = Some(Ok(group));
                f.port.sockets.push(socket(process(), 1000));
            },
        ),
        case(
            ("port-held-by-kernel", Problem),
            "rdma_rxe",
            "modprobe -r rdma_rxe",
            healthy(),
            |f| {
                f.port.sockets.push(socket(Owner::Kernel, 0));
            },
        ),
        case(
            ("port-held-by-kernel", Problem),
            "(rxe0)",
            "PORTOLAN_PROVIDER=kernel",
            healthy_kernel(),
            |f| {
                f.provider = Some(Ok(Choice::Software));
                f.pinned_by = Some(PinnedBy::Environment);
                f.port.sockets.push(socket(Owner::Unknown, 0));
            },
        ),
        case(
            ("port-held-by-kernel", Note),
            "(rxe0)",
            "rdma link delete rxe0",
            healthy_kernel(),
            |f| {
                f.provider = Some(Ok(Choice::Software));
                f.port.sockets.push(socket(Owner::Kernel, 0));
            },
        ),
        case(
            ("port-held-by-kernel", Problem),
            "(rxe0)",
            "rdma link delete rxe0",
            healthy_kernel(),
            |f| {
                f.provider = Some(Ok(Choice::Software));
                f.port.sockets.push(socket(Owner::Kernel, 0));
                f.destination = to(Ok(vec![way(None)]));
            },
        ),
        case(
            ("group-unusable", Problem),
            "user 7",
            "portolan ps",
            healthy(),
            |f| {
                f.port.group = Some(Err("user 7 does not trust user 8".into()));
                f.port.sockets.push(socket(Owner::Unknown, 7));
            },
        ),
        case(
            ("trust-unknown", Problem),
            "expected numbers of users",
            "unset PORTOLAN_TRUST",
            healthy(),
            |f| {
                f.port.trust_error = Some("expected numbers of users".into());
                f.port.sockets.push(socket(process(), 1000));
            },
        ),
        case(
            ("hardware-takes-port", Problem),
            "mlx5_0 (mlx5_core)",
            "unset",
            healthy_kernel(),
            |f| {
                f.provider = Some(Ok(Choice::Software));
                f.pinned_by = Some(PinnedBy::Environment);
                f.kernel.devices[0].name = "mlx5_0".into();
                f.kernel.devices[0].driver = Some("mlx5_core".into());
            },
        ),
        case(
            ("kernel-device-could", Note),
            "rxe0",
            "unset",
            healthy_kernel(),
            |f| {
                f.provider = Some(Ok(Choice::Software));
                f.pinned_by = Some(PinnedBy::Environment);
            },
        ),
        case(
            ("kernel-device-could", Note),
            "--provider pins",
            "omit --provider",
            healthy_kernel(),
            |f| {
                f.provider = Some(Ok(Choice::Software));
                f.pinned_by = Some(PinnedBy::Program);
            },
        ),
        case(
            ("interface-down", Note),
            "eth0",
            "ip link set eth0 up",
            healthy(),
            |f| {
                f.software[1].running = false;
            },
        ),
        case(
            ("interface-down", Problem),
            "eth0",
            "ip link set eth0 up",
            healthy(),
            |f| {
                f.software[1].running = false;
                f.destination = to(Ok(vec![way(None)]));
            },
        ),
        case(
            ("small-mtu", Note),
            "carry 1024",
            "mtu 4200",
            healthy(),
            |f| {
                f.software[1].interface_mtu = 1500;
                f.software[1].active_mtu = Mtu::Mtu1024;
            },
        ),
    ]
}
