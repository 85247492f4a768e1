//! `reach`: checks whether GIDs are reachable (ibv_gid_reachable(3)).

mod ports;
mod target;
mod tell;

use anyhow::{Result, anyhow};
use portolan::reach::{Port, Unreachable, reach_many};

use super::list::List;
use super::resolve::Progress;
use crate::args::ReachArgs;
use crate::exit::Outcome;
use crate::output::Output;
use target::Target;

/// A file of GIDs.
const LIST: List = List {
    entries: "GIDs",
    entries_max: 100_000,
    line_max: 200,
};

/// Checks each GID and prints the results in the order given.
///
/// # Errors
///
/// A device or port does not exist, a GID is invalid, or one could not be checked.
pub(crate) fn run(args: &ReachArgs, output: &mut Output) -> Result<Outcome> {
    let targets = targets(args)?;
    let ports = ports::candidates(args.device.as_deref(), args.port)?;
    let questions = targets
        .iter()
        .map(|target| (ports::choose(&ports, target), target.gid));
    let mut progress = Progress::new(targets.len(), "GIDs checked", "not reachable");
    let mut found = vec![None; targets.len()];
    let (mut told, mut broken) = (0, Ok(()));
    let (mut no_path, mut failed) = (0, 0);
    reach_many(questions, args.timeout, args.at_once, |place, outcome| {
        progress.count(outcome.is_ok());
        match &outcome {
            Ok(_) => {}
            Err(unreachable) if unreachable.is_no_path() => no_path += 1,
            Err(_) => failed += 1,
        }
        if let Some(slot) = found.get_mut(place) {
            *slot = Some(outcome);
        }
        while let Some(outcome) = found.get_mut(told).and_then(Option::take) {
            progress.clear();
            if let (Some(target), true) = (targets.get(told), broken.is_ok()) {
                broken = tell::tell(target, ports::choose(&ports, target), &outcome, output);
            }
            told += 1;
        }
        progress.tell();
    });
    broken?;
    output.flush()?;
    match (no_path, failed) {
        (0, 0) => Ok(Outcome::Good),
        (_, 0) => Ok(Outcome::CheckFailed),
        _ => Err(anyhow!(
            "{failed} of {} GIDs could not be checked",
            targets.len()
        )),
    }
}

/// The library's result.
type Answer = std::result::Result<portolan::reach::Reached, Unreachable>;

fn targets(args: &ReachArgs) -> Result<Vec<Target>> {
    let mut targets = Vec::new();
    for text in &args.gids {
        targets.push(Target::parse(text).map_err(|why| anyhow!("{text}: {why}"))?);
    }
    if let Some(path) = &args.from {
        LIST.read_file(path, Target::parse, &mut targets)?;
    }
    Ok(targets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_names_gids_and_addresses() {
        let file = format!("portolan-reach-{}", std::process::id());
        let file = std::env::temp_dir().join(file);
        std::fs::write(&file, "# hosts\n10.0.0.7\n\n fe80::1%lo\n").unwrap();
        let mut targets = Vec::new();
        let read = LIST.read_file(&file, Target::parse, &mut targets);
        std::fs::remove_file(&file).unwrap();
        read.unwrap();
        let gids: Vec<_> = targets
            .iter()
            .map(|target| target.gid.to_string())
            .collect();
        assert_eq!(gids, ["::ffff:10.0.0.7", "fe80::1"]);
    }
}
