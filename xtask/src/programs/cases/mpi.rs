//! MPI over UCX and over libfabric: a program that checks data moved around a ring, from all to all and
//! one-sided (crates/lab/c/mpi.c). All processes are on this host; shared memory between them is disabled.

use super::super::case::{Case, Data, Expected, Saying, c};
use super::ETHERNET_DEVICE;

const GROUP: &str = "MPI on verbs";
const RIGHT: &[Saying] = &[
    ("ring: right", 1),
    ("all to all: right", 1),
    ("sum: right", 1),
    ("put and get: right", 1),
    ("atomics: right", 1),
];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for processes in [2, 4] {
        for transport in ["rc", "ud"] {
            cases.push(open_mpi_on_ucx(processes, transport));
        }
        for layer in ["ofi_rxm", "ofi_rxd"] {
            cases.push(open_mpi_on_libfabric(processes, layer));
        }
        for transport in ["rc", "ud"] {
            cases.push(mpich(processes, transport));
        }
    }
    cases.push(openib());
    cases
}

fn open_mpi_on_ucx(processes: u32, transport: &str) -> Case {
    let case = run(&format!(
        "openmpi -np {processes} --mca pml ucx --mca osc ucx --mca pml_ucx_tls any --mca pml_ucx_devices any \
         -x UCX_NET_DEVICES={ETHERNET_DEVICE}:1 -x UCX_TLS={transport},self"
    ));
    match processes {
        2 => case.quick(),
        _ => case,
    }
}

fn open_mpi_on_libfabric(processes: u32, layer: &str) -> Case {
    run(&format!(
        "openmpi -np {processes} --mca pml cm --mca mtl ofi --mca osc ^sm,ucx \
         --mca mtl_ofi_provider_include verbs;{layer}"
    ))
}

fn mpich(processes: u32, transport: &str) -> Case {
    run(&format!(
        "mpich -np {processes} -genv MPIR_CVAR_NOLOCAL 1 -genv UCX_NET_DEVICES {ETHERNET_DEVICE}:1 \
         -genv UCX_TLS {transport},self"
    ))
}

/// Debian's openib can only connect in a way that RoCE does not support.
fn openib() -> Case {
    let case = run(&format!(
        "openmpi -np 2 --mca pml ob1 --mca btl openib,self --mca btl_openib_allow_ib 1 \
         --mca btl_openib_if_include {ETHERNET_DEVICE} --mca btl_openib_cpc_include rdmacm"
    ));
    case.data(Data::None).client(Expected::refused(&[(
        "All possible valid names:     udcm",
        1,
    )]))
}

fn run(arguments: &str) -> Case {
    Case::alone(
        GROUP,
        c(&format!("sh xtask/src/programs/mpi.sh {arguments}")),
    )
    .client_says(RIGHT)
    .data(Data::ComparedByBoth)
    .on_ethernet()
}
