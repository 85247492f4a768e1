//! The command line of `bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// The benchmark to run.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum BenchCommand {
    /// Connect one after another, compared with TCP's connect
    Connect(ConnectArgs),
    /// Round trips of polled sends, compared with polled UDP datagrams
    Latency(LatencyArgs),
    /// Streams of RDMA writes, compared with a UDP stream that the kernel segments
    Bandwidth(BandwidthArgs),
    /// Many connects at once, many idle connections, many senders to one receiver
    Storm(StormArgs),
    /// Resolve numbers and names, compared with libc's getaddrinfo and bare route lookups
    Resolve(ResolveArgs),
}

/// Number of rounds, and the file for the plot.
#[derive(Debug, Clone, Args)]
pub(crate) struct RoundArgs {
    /// Rounds; in each, yardstick and subject are measured one after the other
    #[arg(long, value_name = "N", default_value_t = 10,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Write a plot to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ConnectArgs {
    #[command(flatten)]
    pub(crate) rounds: RoundArgs,
    /// Connections of each kind in a round
    #[arg(long, value_name = "N", default_value_t = 100,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) count: u32,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct LatencyArgs {
    #[command(flatten)]
    pub(crate) rounds: RoundArgs,
    /// Round trips of each kind in a round
    #[arg(long, value_name = "N", default_value_t = 5000,
          value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    pub(crate) count: u32,
    /// Bytes of a message
    #[arg(long, value_name = "BYTES", default_value_t = 64,
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) size: u32,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct BandwidthArgs {
    #[command(flatten)]
    pub(crate) rounds: RoundArgs,
    /// Milliseconds of each stream in a round
    #[arg(long, value_name = "MS", default_value_t = 250,
          value_parser = clap::value_parser!(u32).range(10..=60_000))]
    pub(crate) time: u32,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ResolveArgs {
    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 10,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Resolutions of a numeric address per round; a tenth as many of a name
    #[arg(long, value_name = "N", default_value_t = 5000,
          value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    pub(crate) count: u32,
    /// Another name to resolve, for example one from a nearby name server
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct StormArgs {
    /// Simultaneous connects to one listener
    #[arg(long, value_name = "N", default_value_t = 1000,
          value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub(crate) connects: u32,
    /// Number of idle connections; more than 28,000 need an IPv6 loopback address
    #[arg(long, value_name = "N", default_value_t = 10_000,
          value_parser = clap::value_parser!(u32).range(1..=56_000))]
    pub(crate) hold: u32,
    /// Messages and replies over randomly chosen connections
    #[arg(long, value_name = "N", default_value_t = 1000,
          value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub(crate) messages: u32,
    /// Senders to one receiver, each a separate process
    #[arg(long, value_name = "N", default_value_t = 16,
          value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) senders: u32,
    /// Rounds of the senders
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Milliseconds of each round of the senders
    #[arg(long, value_name = "MS", default_value_t = 400,
          value_parser = clap::value_parser!(u32).range(10..=60_000))]
    pub(crate) time: u32,
}
