//! Two of our hosts on a network that loses and reorders packets.
//!
//! The network is a veth pair between two namespaces with Linux's `tc netem` on both ends. It runs
//! in a kernel machine, because the host's kernel may lack netem.

use std::io;
use std::path::Path;
use std::time::Duration;

use super::{LIBRARY, LIBRARY_PATH, Report, processors};
use crate::machine::{Cache, Job, Machine, MachineError, OnFailure, Step, Suite};

const NETWORK: &str = include_str!("guest/bad_network.sh");
/// Guest path of [`NETWORK`].
const NETWORK_PATH: &str = "/job/bad_network.sh";
/// Ways to address the other host.
const KINDS: [(&str, &str); 3] = [
    ("4", "IPv4"),
    ("6", "IPv6"),
    ("local", "IPv6 link-local with zone"),
];
const KINDS_NAMED: &str = "IPv4, IPv6 and IPv6 link-local with zone";
/// Pings over each kind of address.
const PINGS: u32 = 1000;
/// MiB moved by RDMA write.
const WRITTEN_MIB: u32 = 64;
/// Longer than the time limits of a step's programs. The pings' limit is in the script.
const STEP_LIMIT: Duration = Duration::from_secs(1300);
/// Far longer than all steps take on a slow host.
const DEADLINE: Duration = Duration::from_secs(7200);

/// Two hosts ping each other over connections and with datagrams, and write by RDMA. The network
/// between them loses 5 % of the packets each way and reorders others. The programs are `portolan`
/// and `rdma_write` (built beside the command).
///
/// # Errors
/// [`MachineError::Unavailable`] if this host cannot provide the machine; other variants if the
/// machine failed. Errors of the programs are in the [`Report`].
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
            format!("{PINGS} pings with datagrams, losses reported, over {KINDS_NAMED}"),
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
