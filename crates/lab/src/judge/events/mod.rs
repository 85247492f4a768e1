//! Compares the events of librdmacm with those of the library. In one machine, a C program plays
//! scenarios over Debian's librdmacm, and its twin plays them over the kernel provider and over the
//! software device.
//!
//! Both must report the same in every field. A table in the documentation lists the permitted
//! differences (`compare`).

mod compare;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{LIBRARY_PATH, Part, Report, c_program, processors, topology};
use crate::machine::{Cache, Job, Machine, MachineError, Outcome, Step, Suite};
pub use compare::Difference;
use compare::{Record, Tolerated};

const GUEST: &str = include_str!("../guest/events.sh");
/// Guest path of [`GUEST`].
pub(super) const GUEST_PATH: &str = "/job/events.sh";
const DEVICE: &str = include_str!("../guest/device.sh");
/// Guest path of [`DEVICE`].
const DEVICE_PATH: &str = "/job/device.sh";
/// The C program's source.
const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/c/play.c");
/// Time limit for all scenarios. The longest waits up to 98 s until a request is given up.
const SCENARIOS_LIMIT: Duration = Duration::from_secs(900);
/// The longest scenario. It runs in parallel with the others.
const LONG: &str = "unreachable";

macro_rules! scenarios {
    ($($name:literal)*) => {
        &[$(($name, include_str!(concat!("scenarios/", $name, ".txt")))),*]
    };
}

/// The scenarios in the order of play. Those that remove something come last.
const SCENARIOS: &[(&str, &str)] = scenarios![
    "unreachable"
    "connection"
    "ipv6"
    "most"
    "external"
    "rejected"
    "reply-rejected"
    "withdrawn"
    "both-disconnect"
    "datagrams"
    "datagrams-ipv6"
    "groups"
    "refused"
    "unresolvable"
    "next-hop-changes"
    "address-change"
    "removal"
];

/// The players: the model, and those that are compared with it.
const MODEL: &str = "librdmacm";
const PROVIDERS: [&str; 2] = ["kernel", "software"];

/// Plays the scenarios with librdmacm and with `play`, a program of this package, on the kernel of
/// `debian`. Pass the differences to [`documented`].
///
/// # Errors
/// [`MachineError::Unavailable`] if this host cannot provide the machine; other variants if the
/// machine failed. Scenarios that were not played to their end are in the [`Report`].
pub fn events(
    cache: &Cache,
    debian: Suite,
    play: &Path,
) -> Result<(Report, Vec<Difference>), MachineError> {
    let play_librdmacm = play_librdmacm(cache)?;
    let machine = Machine::prepare(cache, debian)?;
    let others = SCENARIOS.iter().map(|(name, _)| *name);
    let others: Vec<_> = others.filter(|name| *name != LONG).collect();
    let play_all = format!("play_all {LONG} {}", others.join(" "));
    let job = with_players(topology(), [play, &play_librdmacm], SCENARIOS)
        .processors(processors(debian))
        .step(step("the same hosts twice", "scene"))
        .step(step("scenarios", &play_all).limit(SCENARIOS_LIMIT));
    let outcome = machine.run(&job, &mut io::sink())?;
    let mut report = Report::new(machine.kernel_release(), &outcome, job.step_names());
    let mut found = Vec::new();
    if outcome.step("scenarios").is_some() {
        found = compared(&mut report, &outcome.files().join("events"));
    }
    Ok((report.keep_if_failed(outcome), found))
}

/// Checks the differences of all kernels against the table in `text`: both must contain the same.
///
/// # Errors
/// A description of what is missing in the table or superfluous in it.
pub fn documented(text: &str, found: &[Difference]) -> Result<String, String> {
    Tolerated::parse(text)?.check(found)
}

/// Compiles the player over Debian's librdmacm.
pub(super) fn play_librdmacm(cache: &Cache) -> Result<PathBuf, MachineError> {
    c_program::compile(cache, "play-librdmacm", SOURCE)
}

/// Adds the players to a job: `play` and its model.
pub(super) fn with_players(job: Job, players: [&Path; 2], scenarios: &[(&str, &str)]) -> Job {
    let [play, model] = players;
    scenarios
        .iter()
        .fold(job, |job, (name, text)| {
            job.file(format!("/job/scenarios/{name}.txt"), *text)
        })
        .file(GUEST_PATH, GUEST)
        .file(DEVICE_PATH, DEVICE)
        .program("play", play)
        .program("play-librdmacm", model)
}

/// Checks that the kernel provider reported the same as librdmacm in every field of a played
/// scenario.
pub(super) fn alike(what: &str, outcome: &Outcome, (name, script): (&str, &str)) -> Part {
    let played = outcome.files().join("events");
    Part::measure(what.to_owned(), || {
        let (model, other) = (read(&played, MODEL, name)?, read(&played, "kernel", name)?);
        let differences = compare::differences("kernel", name, script, &model, &other);
        match differences.is_empty() {
            true => Ok(format!("{} lines", model.len())),
            false => Err(compare::rows(&differences)),
        }
    })
}

fn step(name: &str, script: &str) -> Step {
    let script = format!(". {LIBRARY_PATH}\n. {GUEST_PATH}\n{script}\n");
    Step::new(name, script)
}

fn compared(report: &mut Report, played: &Path) -> Vec<Difference> {
    let mut found = Vec::new();
    for (name, script) in SCENARIOS {
        let model = read(played, MODEL, name);
        for provider in PROVIDERS {
            let what = format!("{name}: the {provider} provider compared with librdmacm");
            report.add(Part::measure(what, || {
                let (model, other) = (model.clone()?, read(played, provider, name)?);
                let differences = compare::differences(provider, name, script, &model, &other);
                let note = format!("{} lines, {} differences", model.len(), differences.len());
                found.extend(differences);
                Ok(note)
            }));
        }
    }
    found
}

/// Reads a player's output for a scenario.
fn read(played: &Path, who: &str, scenario: &str) -> Result<Vec<Record>, String> {
    let file = |kind: &str| {
        let path = played.join(who).join(format!("{scenario}.{kind}"));
        std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))
    };
    let (text, status) = (file("jsonl")?, file("status")?);
    if status.trim() != "0" {
        let (why, last) = (file("err")?, text.lines().last().unwrap_or_default());
        return Err(format!(
            "{who} ended with status {}: {}\nits last word: {last}",
            status.trim(),
            why.trim()
        ));
    }
    compare::parse(&text)
}
