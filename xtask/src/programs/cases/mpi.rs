//! MPI over UCX and over libfabric. One program checks transfers around a ring, all-to-all and one-sided
//! (crates/lab/c/mpi.c). NetPIPE measures messages of every size, or compares their data. Intel's benchmarks (IMB) run on
//! MPICH, and those of Ohio State University (OSU), in Python, on Open MPI. All processes run on this host, with shared memory between them disabled.

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

/// NetPIPE's largest size.
const UP_TO_1_MIB: &[Saying] = &[(" 1048579 bytes ", 1)];
/// NetPIPE prints this for each of 36 sizes.
const COMPARED: &[Saying] = &[("Integrity check passed", 36)];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for processes in [2, 4] {
        let run = |kind: &str, arguments: &str| run(&format!("{kind} -np {processes} {arguments}"));
        for transport in ["rc", "ud"] {
            let case = run("openmpi", &open_mpi_on_ucx(transport));
            cases.push(if processes == 2 { case.quick() } else { case });
        }
        for layer in ["ofi_rxm", "ofi_rxd"] {
            cases.push(run("openmpi", &open_mpi_on_libfabric(layer)));
        }
        for transport in ["rc", "ud"] {
            cases.push(run("mpich", &mpich(transport)));
        }
    }
    cases.push(openib());
    for processes in [2, 4] {
        for transport in ["rc", "ud"] {
            cases.push(imb_messages(processes, &mpich(transport)));
        }
        cases.push(imb_memory(processes, &mpich("rc")));
        for arguments in [
            open_mpi_on_ucx("rc"),
            open_mpi_on_ucx("ud"),
            open_mpi_on_libfabric("ofi_rxm"),
        ] {
            let case = match processes {
                2 => osu("latency,bw,bibw", 2, &arguments).client_says(&[("65536 ", 3)]),
                _ => osu(
                    "allgather,alltoall,bcast,gather,scatter,barrier",
                    processes,
                    &arguments,
                )
                .client_says(&[("65536 ", 5), ("Barrier Latency", 1)]),
            };
            cases.push(case);
        }
    }
    for transport in ["rc", "ud"] {
        cases.extend(netpipe("openmpi", &open_mpi_on_ucx(transport)));
        cases.extend(netpipe("mpich", &mpich(transport)));
    }
    cases.extend(netpipe("openmpi", &open_mpi_on_libfabric("ofi_rxm")));
    cases
}

fn open_mpi_on_ucx(transport: &str) -> String {
    format!(
        "--mca pml ucx --mca osc ucx --mca pml_ucx_tls any --mca pml_ucx_devices any \
         -x UCX_NET_DEVICES={ETHERNET_DEVICE}:1 -x UCX_TLS={transport},self"
    )
}

fn open_mpi_on_libfabric(layer: &str) -> String {
    format!(
        "--mca pml cm --mca mtl ofi --mca osc ^sm,ucx \
         --mca mtl_ofi_provider_include verbs;{layer}"
    )
}

fn mpich(transport: &str) -> String {
    format!(
        "-genv MPIR_CVAR_NOLOCAL 1 -genv UCX_NET_DEVICES {ETHERNET_DEVICE}:1 \
         -genv UCX_TLS {transport},self"
    )
}

/// Debian's openib supports only a way of connecting that RoCE lacks.
fn openib() -> Case {
    let case = run(&format!(
        "openmpi -np 2 --mca pml ob1 --mca btl openib,self --mca btl_openib_allow_ib 1 \
         --mca btl_openib_if_include {ETHERNET_DEVICE} --mca btl_openib_cpc_include rdmacm"
    ));
    let refused = case.data(Data::None).client(Expected::refused(&[(
        "All possible valid names:     udcm",
        1,
    )]));
    Case {
        // mpirun ends with its first process, and may lose what the others have said.
        haste: Some("unable to reach each other"),
        ..refused
    }
}

/// Intel's benchmarks of messages. Built for the binary interface that MPICH has and Open MPI has not.
fn imb_messages(processes: u32, arguments: &str) -> Case {
    let benchmarks = "PingPong,PingPing,Sendrecv,Exchange,Allreduce,Reduce,Allgather,Gather,Scatter,Alltoall,Bcast,Barrier";
    imb("IMB-MPI1", benchmarks, processes, arguments)
        .client_says(&[("# Benchmarking ", 12), ("        65536 ", 11)])
}

/// Intel's benchmarks of one-sided operations.
fn imb_memory(processes: u32, arguments: &str) -> Case {
    let benchmarks = "Unidir_put,Unidir_get,One_put_all,All_get_all,Accumulate,Compare_and_swap";
    imb("IMB-RMA", benchmarks, processes, arguments).client_says(&[("# Benchmarking ", 6)])
}

fn imb(program: &str, benchmarks: &str, processes: u32, arguments: &str) -> Case {
    let script =
        format!("sh xtask/src/programs/imb.sh {program} {benchmarks} {processes} {arguments}");
    Case::alone(GROUP, c(&script))
        .data(Data::Unseen)
        .on_ethernet()
}

/// The benchmarks of Ohio State University (OSU), in mpi4py's translation to Python.
fn osu(benchmarks: &str, processes: u32, arguments: &str) -> Case {
    let script = format!("sh xtask/src/programs/osu.sh {benchmarks} -np {processes} {arguments}");
    Case::alone(GROUP, c(&script))
        .data(Data::Unseen)
        .on_ethernet()
}

fn netpipe(kind: &str, arguments: &str) -> [Case; 2] {
    let play = |what: &str| {
        let script = format!("sh xtask/src/programs/netpipe.sh {kind} {what} {arguments}");
        Case::alone(GROUP, c(&script)).on_ethernet()
    };
    [
        play("compare")
            .client_says(COMPARED)
            .data(Data::ComparedByBoth),
        play("measure").client_says(UP_TO_1_MIB).data(Data::Unseen),
    ]
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
