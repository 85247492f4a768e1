//! Three pairs of `listen` and `ping` in six processes at once, all on one UDP port.

use std::thread;

use anyhow::{Context, Result};
use portolan_lab::own_network;

use crate::processes::{Listener, ping};
use crate::test::{Outcome, Workspace};

const ADDRESSES: [&str; 3] = ["127.0.0.1:7471", "127.0.0.1:7472", "127.0.0.1:7473"];

pub(crate) fn run(workspace: &Workspace) -> Result<Outcome> {
    own_network::enter();
    let summaries = thread::scope(|scope| {
        let pairs = ADDRESSES.map(|address| scope.spawn(move || pair(workspace, address)));
        let join = |pair: thread::ScopedJoinHandle<'_, Result<String>>| {
            pair.join()
                .unwrap_or_else(|_| Err(anyhow::anyhow!("a pair panicked")))
        };
        pairs.map(join).into_iter().collect::<Result<Vec<String>>>()
    })?;
    summaries.iter().for_each(|summary| println!("{summary}"));
    Ok(Outcome::Passed("3 × 1000 pings".into()))
}

/// Returns the ping's summary.
fn pair(workspace: &Workspace, address: &str) -> Result<String> {
    let listener = Listener::start(&workspace.portolan, address, None)?;
    let arguments = ["--count", "1000", "--interval", "0", "--quiet"].map(AsRef::as_ref);
    let output = ping(&workspace.portolan, address, &arguments)?;
    listener.finish()?;
    let text = String::from_utf8(output.stdout).context("the ping printed no text")?;
    Ok(format!("{address}:\n{}", text.trim_end()))
}
