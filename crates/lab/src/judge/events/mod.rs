//! What librdmacm reports, and what the library reports: the same scenarios in one machine, by a C program
//! over Debian's librdmacm, and by its twin over the kernel provider and over the software device.
//!
//! Both must report the same in every field. Where one rightly differs, a table says so (`compare`).

mod compare;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{LIBRARY_PATH, Part, Report, c_program, processors, topology};
use crate::machine::{Cache, Job, Machine, MachineError, Outcome, Step, Suite};
pub use compare::Difference;
use compare::{Record, Tolerated};

const GUEST: &str = include_str!("../guest/events.sh");
/// Where the steps find [`GUEST`].
pub(super) const GUEST_PATH: &str = "/job/events.sh";
const DEVICE: &str = include_str!("../guest/device.sh");
/// Where scenarios find [`DEVICE`].
const DEVICE_PATH: &str = "/job/device.sh";
/// The C program's source.
const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/c/play.c");
/// What all scenarios may take; the longest waits for a request to be given up, up to 98 s.
const SCENARIOS_LIMIT: Duration = Duration::from_secs(900);
/// The scenario that takes so long; it is played beside the others.
const LONG: &str = "unreachable";

macro_rules! scenarios {
    ($($name:literal)*) => {
        &[$(($name, include_str!(concat!("scenarios/", $name, ".txt")))),*]
    };
}

/// The scenarios, in the order of play: at the end those that take something away.
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

/// Who plays: the model, and who is compared with it.
const MODEL: &str = "librdmacm";
const PROVIDERS: [&str; 2] = ["kernel", "software"];

/// Has librdmacm and `play`, the program of this package, play the scenarios on the kernel of `debian`; what
/// differs is for [`documented`] to judge.
///
/// # Errors
/// [`MachineError::Unavailable`] if this host cannot provide the machine; other variants if the
/// machine could not do its work. A scenario that was not played to its end is in the [`Report`].
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

/// That all that differs, on whatever kernels, is what the table in `text` says, and nothing in it is idle.
///
/// # Errors
/// What is not in the table, or only there, in words.
pub fn documented(text: &str, found: &[Difference]) -> Result<String, String> {
    Tolerated::parse(text)?.check(found)
}

/// The player over Debian's librdmacm, compiled.
pub(super) fn play_librdmacm(cache: &Cache) -> Result<PathBuf, MachineError> {
    c_program::compile(cache, "play-librdmacm", SOURCE)
}

/// The job with what plays the scenarios: `play`, and its model.
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

/// That the kernel provider reported what librdmacm did, in every field of a scenario that was played.
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
            let what = format!("{name}: the {provider} provider beside librdmacm");
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

/// What a player printed for a scenario.
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
