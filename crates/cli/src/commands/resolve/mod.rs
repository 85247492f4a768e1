//! `resolve`: resolves hosts and services to addresses, sources, routes and devices (rdma_getaddrinfo(3)).

mod lookup;
mod object;
mod progress;
mod table;
mod target;

use anyhow::{Result, anyhow};
use portolan::provider::error::errno;
use portolan::resolve::{AddrInfoError, Eai, parse_endpoint};

use super::list::List;
use crate::args::ResolveArgs;
use crate::exit::Outcome;
use crate::output::{Output, complain};
pub(super) use progress::Progress;
use target::Target;

/// A file of targets; its longest line has the longest host and service.
const LIST: List = List {
    entries: "targets",
    entries_max: 100_000,
    line_max: 1100,
};

/// Resolves each target and prints the results.
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
                // An invalid query for a single target is an error of the caller.
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
                    match misplaced(target, error) {
                        Some(text) => complain(&format_args!(
                            "{error}; NODE and SERVICE are two arguments, or use --target {text}"
                        )),
                        None => complain(error),
                    }
                }
            }
            Ok(output.flush()?)
        },
    )?;
    if wrong > 0 && wrong == targets.len() {
        return Err(anyhow!("the query is invalid for every target"));
    }
    Ok(outcome)
}

/// The host that was not found, if it is an endpoint as `--target` takes one.
fn misplaced<'a>(target: &'a Target, error: &AddrInfoError) -> Option<&'a str> {
    let node = target.node.as_deref()?;
    let is_endpoint = node.contains([':', '[']) && parse_endpoint(node).is_ok();
    (is_endpoint && matches!(error.code(), Eai::NoName)).then_some(node)
}

/// Whether the query itself is invalid.
fn is_usage(error: &AddrInfoError) -> bool {
    match error.code() {
        Eai::BadFlags | Eai::Family | Eai::QpType => true,
        Eai::System(errno) => [errno::EINVAL, errno::EOPNOTSUPP].contains(&errno),
        _ => false,
    }
}

/// The targets, in the order given.
fn targets(args: &ResolveArgs) -> Result<Vec<Target>> {
    let mut targets = Vec::new();
    let has_others = !args.target.is_empty() || args.targets_from.is_some();
    if args.node.is_some() || !has_others {
        // `-` means no host.
        let node = args.node.clone().filter(|node| node != "-");
        targets.push(Target::new(node, args.service.clone()));
    }
    for text in &args.target {
        targets.push(Target::parse(text).map_err(|why| anyhow!("{text}: {why}"))?);
    }
    if let Some(path) = &args.targets_from {
        LIST.read_file(path, Target::parse, &mut targets)?;
    }
    Ok(targets)
}
