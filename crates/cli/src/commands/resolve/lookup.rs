//! Resolves many targets at once, each with its own time limit, and prints them in the order given.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use portolan::resolve::{AddrInfo, AddrInfoError, Hints, Request};
use tokio::task::JoinSet;

use super::progress::Progress;
use super::target::Target;

/// Maximum number of targets in progress: the library's number of threads for names. A target that waits for a thread
/// would use up its time.
const UNDER_WAY_MAX: usize = 8;

/// The result for a target.
pub(super) type Found = std::result::Result<Vec<AddrInfo>, AddrInfoError>;

/// Resolves all targets and prints the results in order.
///
/// # Errors
/// A lookup cannot start, or `tell` fails.
pub(super) fn resolve_all(
    targets: &[Target],
    hints: Option<&Hints>,
    timeout: Duration,
    progress: &mut Progress,
    tell: impl FnMut(&Target, Found) -> Result<()>,
) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()?;
    runtime.block_on(resolve_each(targets, hints, timeout, progress, tell))
}

async fn resolve_each(
    targets: &[Target],
    hints: Option<&Hints>,
    timeout: Duration,
    progress: &mut Progress,
    mut tell: impl FnMut(&Target, Found) -> Result<()>,
) -> Result<()> {
    let mut waiting = targets.iter().enumerate();
    let mut under_way = JoinSet::new();
    let mut found = BTreeMap::new();
    let mut unprinted = targets.iter().enumerate();
    let mut next = unprinted.next();
    while next.is_some() {
        while under_way.len() < UNDER_WAY_MAX
            && let Some((number, target)) = waiting.next()
        {
            let resolving = request(target, hints).start(timeout)?;
            under_way.spawn(async move { (number, resolving.await) });
        }
        let ended = tokio::time::timeout(progress.interval(), under_way.join_next());
        if let Ok(Some(ended)) = ended.await {
            let (number, outcome) = ended?;
            progress.count(outcome.is_ok());
            found.insert(number, outcome.map(Iterator::collect));
        }
        while let Some((number, target)) = next
            && let Some(outcome) = found.remove(&number)
        {
            progress.clear();
            tell(target, outcome)?;
            next = unprinted.next();
        }
        progress.tell();
    }
    Ok(())
}

fn request(target: &Target, hints: Option<&Hints>) -> Request {
    let request = Request::new(target.node.as_deref(), target.service.as_deref());
    match hints {
        Some(hints) => request.hints(hints.clone()),
        None => request,
    }
}
