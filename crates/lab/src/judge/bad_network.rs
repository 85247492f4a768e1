//! Two hosts of ours on a network that loses and reorders packets.
//!
//! The network is Linux's `tc netem` on both ends of a veth pair between two namespaces, in a kernel
//! machine, since the host's kernel need not have netem.

use std::io;
use std::path::Path;
use std::time::Duration;

use super::{LIBRARY, LIBRARY_PATH, Report, processors};
use crate::machine::{Cache, Job, Machine, MachineError, OnFailure, Step, Suite};

const NETWORK: &str = include_str!("guest/bad_network.sh");
/// Where the steps find [`NETWORK`].
const NETWORK_PATH: &str = "/job/bad_network.sh";
/// How the hosts name each other.
const KINDS: [(&str, &str); 3] = [
    ("4", "IPv4"),
    ("6", "IPv6"),
    ("local", "IPv6 link-local with zone"),
];
const KINDS_NAMED: &str = "IPv4, IPv6 and IPv6 link-local with zone";
/// Pings of each kind.
const PINGS: u32 = 1000;
/// MiB moved by RDMA write.
const WRITTEN_MIB: u32 = 64;
/// Above what each program of a step has; the pings have their own limit in the script.
const STEP_LIMIT: Duration = Duration::from_secs(1300);
/// Far above what all steps take on a slow host.
const DEADLINE: Duration = Duration::from_secs(7200);

/// Has two hosts ping each other over connections and by datagrams and write by RDMA, while the network
/// between them loses one packet in twenty each way and has others overtake each other: with the
/// programs `portolan` and `rdma_write` (an example beside the command).
///
/// # Errors
/// [`MachineError::Unavailable`] if this host cannot provide the machine; other variants if the
/// machine could not do its work. What the programs get wrong is in the [`Report`].
pub fn bad_network(
    cache: &Cache,
    portolan: &Path,
    rdma_write: &Path,
) -> Result<Report, MachineError> {
    let machine = Machine::prepare(cache, Suite::Bookworm)?;
    let job = steps()
        .into_iter()
        .fold(topology(), Job::step)
        .processors(processors(Suite::Bookworm))
        .program("portolan", portolan)
        .program("rdma_write", rdma_write);
    let outcome = machine.run(&job, &mut io::sink())?;
    let report = Report::new(machine.kernel_release(), &outcome, job.step_names());
    Ok(report.keep_if_failed(outcome))
}

fn topology() -> Job {
    Job::new()
        .deadline(DEADLINE)
        .file(LIBRARY_PATH, LIBRARY)
        .file(NETWORK_PATH, NETWORK)
        .step(Step::new(
            "two hosts, 5 % loss and reordering between them",
            script("two_hosts"),
        ))
}

fn steps() -> Vec<Step> {
    let step = |name: String, command: String| {
        Step::new(name, script(&format!("on_a_bad_network {command}")))
            .limit(STEP_LIMIT)
            .on_failure(OnFailure::Continue)
    };
    let mut steps = vec![
        step(
            format!("{PINGS} pings, none lost, over {KINDS_NAMED}"),
            format!("pings {PINGS}"),
        ),
        step(
            format!("{PINGS} pings by datagrams, the loss told, over {KINDS_NAMED}"),
            format!("datagrams {PINGS}"),
        ),
    ];
    steps.extend(KINDS.map(|(kind, name)| {
        step(
            format!("{WRITTEN_MIB} MiB by RDMA write, verified, {name}"),
            format!("writes {kind} {WRITTEN_MIB}"),
        )
    }));
    steps
}

fn script(command: &str) -> String {
    format!(". {LIBRARY_PATH}\n. {NETWORK_PATH}\n{command}\n")
}
