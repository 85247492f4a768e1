//! `reach`: whether GIDs can be reached (ibv_gid_reachable(3)).

mod ports;
mod target;
mod tell;

use std::io::{self, BufRead, BufReader};
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use portolan::reach::{Port, Unreachable, reach_many};

use super::resolve::Progress;
use crate::args::ReachArgs;
use crate::exit::Outcome;
use crate::output::Output;
use target::Target;

/// Most GIDs of one command.
const TARGETS_MAX: usize = 100_000;
/// Longest line of a file of GIDs, bytes.
const LINE_MAX: u64 = 200;

/// Asks for each GID and tells, in the order in which they were given.
///
/// # Errors
///
/// There is no such device or port, a GID is none, or one could not be asked about.
pub(crate) fn run(args: &ReachArgs, output: &mut Output) -> Result<Outcome> {
    let targets = targets(args)?;
    let ports = ports::candidates(args.device.as_deref(), args.port)?;
    let questions = targets
        .iter()
        .map(|target| (ports::choose(&ports, target), target.gid));
    let mut progress = Progress::new(targets.len(), "GIDs asked about", "not reachable");
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
            "{failed} of {} GIDs could not be asked about",
            targets.len()
        )),
    }
}

/// The outcome of a question, as the library has it.
type Answer = std::result::Result<portolan::reach::Reached, Unreachable>;

fn targets(args: &ReachArgs) -> Result<Vec<Target>> {
    let mut targets = Vec::new();
    for text in &args.gids {
        targets.push(Target::parse(text).map_err(|why| anyhow!("{text}: {why}"))?);
    }
    match args.from.as_deref() {
        None => {}
        Some(path) if path == Path::new("-") => {
            read(&mut io::stdin().lock(), &mut targets).context("standard input")?;
        }
        Some(path) => {
            let name = || path.display().to_string();
            let file = std::fs::File::open(path).with_context(name)?;
            read(&mut BufReader::new(file), &mut targets).with_context(name)?;
        }
    }
    Ok(targets)
}

/// Reads GIDs, one a line; empty lines and those that begin with `#` are passed over.
fn read(lines: &mut impl BufRead, targets: &mut Vec<Target>) -> Result<()> {
    let mut number = 0;
    let mut line = String::new();
    loop {
        line.clear();
        number += 1;
        let length = io::Read::take(&mut *lines, LINE_MAX).read_line(&mut line)?;
        if length == 0 {
            return Ok(());
        }
        let text = line.trim();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        if targets.len() == TARGETS_MAX {
            return Err(anyhow!("more than {TARGETS_MAX} GIDs"));
        }
        let target = Target::parse(text).map_err(|why| anyhow!("line {number}: {text}: {why}"))?;
        targets.push(target);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_a_gid_a_line_and_a_line_that_is_none_is_told_by_its_number() {
        let mut targets = Vec::new();
        read(
            &mut "# hosts\n10.0.0.7\n\n fe80::1%lo\n".as_bytes(),
            &mut targets,
        )
        .unwrap();
        let gids: Vec<_> = targets
            .iter()
            .map(|target| target.gid.to_string())
            .collect();
        assert_eq!(gids, ["::ffff:10.0.0.7", "fe80::1"]);
        let error = read(&mut "::1\nx\n".as_bytes(), &mut targets).unwrap_err();
        assert!(error.to_string().starts_with("line 2: x: "), "{error}");
        assert!(read(&mut "1".repeat(5000).as_bytes(), &mut targets).is_err());
    }
}
