//! Arguments of `events`.

use std::time::Duration;

use clap::{Args, Subcommand};

use super::values::{endpoint, private_data, seconds};
use super::{GroupArgs, MAX_REPLY_DATA, MAX_REQUEST_DATA};

#[derive(Debug, Clone, Args)]
pub(crate) struct EventsArgs {
    #[command(subcommand)]
    pub(crate) whose: Whose,
}

/// The side whose events are followed.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Whose {
    /// Listen, and print the events of the listener and its connections
    ///
    /// A request is left unanswered, as by a busy program, unless --accept or --reject is given. Data is not received.
    Listen(EventsListenArgs),
    /// Connect, and print each step
    ///
    /// Resolves address and route, connects, and follows the connection to its end. Data is neither sent
    /// nor received.
    Connect(EventsConnectArgs),
    /// Join a multicast group, and print the events of the membership
    ///
    /// Resolves the group's address, joins, and follows the membership until it ends with an error.
    /// Datagrams are neither sent nor received.
    Join(EventsJoinArgs),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct EventsListenArgs {
    // As an attribute, because rustdoc would read the brackets as a link.
    #[arg(value_name = "ADDR:PORT", value_parser = endpoint,
          help = "Where to listen: 127.0.0.1:7471, [::1]:7471, or :7471 for every address")]
    pub(crate) address: String,
    /// Accept every request
    #[arg(long, conflicts_with = "reject")]
    pub(crate) accept: bool,
    /// Reject every request
    #[arg(long)]
    pub(crate) reject: bool,
    /// Private data for connecting peers, at most 196 bytes; with --reject 148, with --ud 136
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true,
          value_parser = private_data::<MAX_REPLY_DATA>)]
    pub(crate) private_data: String,
    /// Use the datagram service (UD, port space UDP) instead of connections
    #[arg(long)]
    pub(crate) ud: bool,
    #[command(flatten)]
    pub(crate) follow: FollowArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct EventsConnectArgs {
    /// Address to connect to: 192.168.7.1:7471, [fe80::1%eth0]:7471, or host:7471
    #[arg(value_name = "ADDR:PORT", value_parser = endpoint)]
    pub(crate) address: String,
    /// Private data for the listener, at most 56 bytes
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true,
          value_parser = private_data::<MAX_REQUEST_DATA>)]
    pub(crate) private_data: String,
    /// Use the datagram service (UD, port space UDP) instead of connections
    #[arg(long)]
    pub(crate) ud: bool,
    #[command(flatten)]
    pub(crate) follow: FollowArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct EventsJoinArgs {
    #[command(flatten)]
    pub(crate) group: GroupArgs,
    /// Join as a send-only member
    #[arg(long)]
    pub(crate) send_only: bool,
    #[command(flatten)]
    pub(crate) follow: FollowArgs,
}

/// How long events are followed.
#[derive(Debug, Clone, Args)]
pub(crate) struct FollowArgs {
    /// End after this many events
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// End after this many seconds
    #[arg(long, short = 'W', value_name = "SECONDS", value_parser = seconds)]
    pub(crate) timeout: Option<Duration>,
}
