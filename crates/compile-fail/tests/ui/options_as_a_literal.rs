//! Options with all their fields would not compile any more when a field is added.

use std::time::Duration;

use portolan::{ListenOptions, Options, StreamOptions};

fn main() {
    let _ = Options { receive_depth: 4, ..Options::default() };
    let _ = ListenOptions { backlog: 4, ..ListenOptions::default() };
    let _ = StreamOptions { inline: 4, ..StreamOptions::default() };
    let second = Duration::from_secs(1);
    let _ = portolan::Keepalive { interval: second, timeout: second };
}
