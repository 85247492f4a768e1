//! `resolve`: hosts and services to addresses, sources, routes and devices (rdma_getaddrinfo(3)).

mod lookup;
mod object;
mod progress;
mod table;
mod target;

use std::io::{self, BufRead, BufReader};

use anyhow::{Context, Result, anyhow};
use portolan::resolve::{AddrInfoError, Eai};
use portolan::seam::error::errno;

use crate::args::ResolveArgs;
use crate::exit::Outcome;
use crate::output::{Output, complain};
pub(super) use progress::Progress;
use target::Target;

/// Most targets of one command.
const TARGETS_MAX: usize = 100_000;
/// Longest line of a file of targets, bytes: the longest host and service.
const LINE_MAX: u64 = 1100;

/// Resolves each target and prints what was found.
///
/// # Errors
///
/// The arguments contradict each other, or the file of targets cannot be read.
pub(crate) fn run(args: &ResolveArgs, output: &mut Output) -> Result<Outcome> {
    let hints = args.hints.hints().map_err(|why| anyhow!(why))?;
    let targets = targets(args)?;
    let mut progress = Progress::new(targets.len(), "targets resolved", "not found");
    let mut outcome = Outcome::Good;
    let mut wrong = 0;
    let is_alone = targets.len() == 1;
    lookup::resolve_all(
        &targets,
        hints.as_ref(),
        args.timeout,
        &mut progress,
        |target, found| {
            if !is_alone && !output.json {
                table::heading(target, output)?;
            }
            match &found {
                Ok(results) if output.json => object::results(results, args.explain, output)?,
                Ok(results) => table::results(results, args.explain, output)?,
                // What makes no sense for any target is the caller's mistake.
                Err(error) if is_alone && is_usage(error) => {
                    return Err(anyhow!(error.to_string()));
                }
                Err(error) => {
                    outcome = Outcome::CheckFailed;
                    wrong += usize::from(is_usage(error));
                    if output.json {
                        object::failure(target, error, output)?;
                    } else {
                        output.flush()?;
                    }
                    complain(error);
                }
            }
            Ok(output.flush()?)
        },
    )?;
    if wrong > 0 && wrong == targets.len() {
        return Err(anyhow!("what is asked for makes no sense for any target"));
    }
    Ok(outcome)
}

/// Whether it is the question that is wrong.
fn is_usage(error: &AddrInfoError) -> bool {
    match error.code() {
        Eai::BadFlags | Eai::Family | Eai::QpType => true,
        Eai::System(errno) => [errno::EINVAL, errno::EOPNOTSUPP].contains(&errno),
        _ => false,
    }
}

/// The targets, in the order in which they were given.
fn targets(args: &ResolveArgs) -> Result<Vec<Target>> {
    let mut targets = Vec::new();
    let has_others = !args.target.is_empty() || args.targets_from.is_some();
    if args.node.is_some() || !has_others {
        // `-` stands for no host.
        let node = args.node.clone().filter(|node| node != "-");
        targets.push(Target::new(node, args.service.clone()));
    }
    for text in &args.target {
        targets.push(Target::parse(text).map_err(|why| anyhow!("{text}: {why}"))?);
    }
    match args.targets_from.as_deref() {
        None => {}
        Some(path) if path.as_os_str() == "-" => {
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

/// Reads targets, one a line; empty lines and those that begin with `#` are passed over.
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
        if length as u64 == LINE_MAX {
            return Err(anyhow!("line {number} is longer than any target"));
        }
        let text = line.trim();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        if targets.len() == TARGETS_MAX {
            return Err(anyhow!("more than {TARGETS_MAX} targets"));
        }
        let target = Target::parse(text).map_err(|why| anyhow!("line {number}: {text}: {why}"))?;
        targets.push(target);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(text: &str) -> Result<Vec<String>> {
        let mut targets = Vec::new();
        read(&mut text.as_bytes(), &mut targets)?;
        Ok(targets.iter().map(Target::to_string).collect())
    }

    #[test]
    fn a_file_has_a_target_a_line_and_comments() {
        let text = "# hosts\nlocalhost:7471\n\n  [::1]:80 \nhost\n:9";
        assert_eq!(
            read_all(text).unwrap(),
            ["localhost:7471", "[::1]:80", "host", ":9"]
        );
    }

    #[test]
    fn a_line_that_is_no_target_is_told_by_its_number() {
        let error = read_all("a:1\nb:c:d\n").unwrap_err();
        assert!(error.to_string().starts_with("line 2: b:c:d: "), "{error}");
        assert!(read_all(&"a".repeat(5000)).is_err());
    }
}
