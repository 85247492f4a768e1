//! The command line.

mod events;
mod exec;
mod mcast;
mod resolve;
mod service;
pub(crate) mod values;

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};

use portolan::provider::Choice;

use self::values::{endpoint, private_data, seconds};
use crate::commands::BenchCommand;
use crate::exit;
use crate::rping::{DEFAULT_SIZE, MAX_SIZE};
use crate::terminal::ColorChoice;
pub(crate) use events::{
    EventsArgs, EventsConnectArgs, EventsJoinArgs, EventsListenArgs, FollowArgs, Whose,
};
use exec::EXEC_AFTER_HELP;
pub(crate) use exec::{CcEnvArgs, ExecArgs, LibrarySet};
pub(crate) use mcast::{GroupArgs, McastArgs, McastCommand, McastJoinArgs, McastSendArgs};
pub(crate) use resolve::ResolveArgs;
pub(crate) use service::{
    PathArgs, PortArgs, ServiceArgs, ServiceCommand, ServiceListArgs, ServiceNamedArgs,
    ServiceRegisterArgs,
};

/// Maximum private data of a connection request, in addition to rdma_cm's own header, and of a reply (rdma_connect(3),
/// rdma_accept(3)).
const MAX_REQUEST_DATA: usize = 56;
const MAX_REPLY_DATA: usize = 196;
/// Maximum private data of a rejection (IBTA 12.6.7), and of a datagram service's answers (rdma_accept(3), UD).
pub(crate) const MAX_REJECT_DATA: usize = 148;
pub(crate) const MAX_SERVICE_REPLY_DATA: usize = 136;

/// Text after the help of the whole command.
const AFTER_HELP: &str = "\
Environment:
  PORTOLAN_PROVIDER=software|kernel  pin the provider, as --provider does (demo and bench always use software)
  PORTOLAN_TRUST=UID,…|anyone        other users whose processes may share UDP port 4791 with this one's
  PORTOLAN_LOCAL=memory|off          send packets to other processes of this host through memory (default), or by UDP
  NO_COLOR                           no colors, if set and not empty
`portolan exec --help` lists the variables of C and socket programs";

/// RDMA connections on any Linux machine, with or without RDMA hardware.
///
/// Connects, pings and listens over a RoCEv2 device in user space (UDP port 4791; no root, no kernel
/// module, no daemon), which Linux's rdma_rxe and RoCEv2 hardware accept as a peer.
#[derive(Debug, Parser)]
#[command(name = "portolan", version, after_help = format!("{AFTER_HELP}\n\n{}", exit::HELP))]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options of every command.
#[derive(Debug, Clone, Args)]
pub(crate) struct Global {
    /// Write one JSON object per line, for machines
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Pin the provider; otherwise the route to the destination, or the listening address, decides. demo and bench always
    /// use software
    #[arg(long, global = true, value_name = "PROVIDER", value_parser = providers())]
    pub(crate) provider: Option<Choice>,
    /// Print more details
    #[arg(long, short, global = true)]
    pub(crate) verbose: bool,
    /// Color the output
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub(crate) color: ColorChoice,
    /// Draw only with ASCII characters
    #[arg(long, global = true)]
    pub(crate) ascii: bool,
}

/// Parses a provider's name.
fn providers() -> impl TypedValueParser<Value = Choice> {
    let all = [Choice::Software, Choice::Kernel];
    PossibleValuesParser::new(all.map(Choice::name)).try_map(move |text| {
        let found = all.into_iter().find(|choice| choice.name() == text);
        found.ok_or("no such provider")
    })
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Print what a compiler needs to build C programs against our headers and libraries
    ///
    /// `eval "$(portolan cc-env)"` sets the variables in a shell; --cflags and --libs print options. Run the built
    /// programs with `portolan exec`, or with rdma-core's libraries.
    CcEnv(CcEnvArgs),
    /// Show everything: resolve, connect two processes, transfer data, disconnect
    ///
    /// Resolves localhost, connects a second process of this program over the software device, transfers data by send,
    /// RDMA write and RDMA read, disconnects, and draws what happened.
    Demo(DemoArgs),
    /// The second process of `demo`
    #[command(hide = true)]
    DemoPeer,
    /// List the software devices, or the kernel's with --provider kernel: addresses, state, limits
    ///
    /// With --watch it runs until interrupted and prints changes: devices added or removed with their network
    /// interfaces, addresses, and link states.
    Devices(DevicesArgs),
    /// Check this machine: its RDMA support, what would be used and why, and what prevents it
    ///
    /// Checks the provider, UDP port 4791 and its holder, the kernel's modules and devices, permissions, limits,
    /// firewall and names, and prints a remedy for each problem. With DEST it also prints the route, source and device
    /// for that destination. It changes nothing and needs no root, and it lists what it could not see. Exits with 1 if
    /// it finds a problem, otherwise with 0.
    Doctor(DoctorArgs),
    /// Run a C program on the software devices without rebuilding it
    ///
    /// The program uses our librdmacm.so.1 and libibverbs.so.1 instead of the machine's. It sees the devices in
    /// /sys/class/infiniband if the system allows a private mount namespace. It keeps its user, its terminal, its
    /// signals and its exit code. Exits with 127 if PROGRAM does not exist, with 126 if it cannot be run.
    #[command(after_help = EXEC_AFTER_HELP)]
    Exec(ExecArgs),
    /// The trial run of `exec`
    #[command(hide = true)]
    ExecTrial,
    /// Follow an event channel: print each event with its fields
    ///
    /// Ends when interrupted, after --count events or --timeout seconds, or when no more events can arrive.
    Events(EventsArgs),
    /// Answer pings, as `rping -s -P` does
    ///
    /// Accepts connections and serves rping's protocol on each, until interrupted or until --count connections have
    /// ended. With --ud it answers datagrams, as udaddy's server does.
    Listen(ListenArgs),
    /// Send to and receive from multicast groups, as `mckey` does
    Mcast(McastArgs),
    /// Ask InfiniBand's subnet administrator for the path from one GID to another
    ///
    /// Prints the path record. Exits with 1 if there is no path.
    Path(PathArgs),
    /// Ping a listener, as `rping -c` does
    ///
    /// For each ping, the peer reads the data by RDMA READ and writes it back by RDMA WRITE, and the data is compared.
    /// The peer is `portolan listen` or `rping -s` (whose -S must be at least --size). With --ud the pings are
    /// datagrams and the peer is `portolan listen --ud` or `udaddy` (whose -C must equal --count, and whose -S must be
    /// at least --size).
    Ping(PingArgs),
    /// List the processes that share the UDP port: listeners, connections, drops
    ///
    /// Prints the holder of UDP port 4791, the processes that share it, their listeners and connections, and their
    /// problems: drops by reason, retransmissions (all counters with --verbose or --json). Exits with 1 if one of them
    /// does not answer.
    Ps(PsArgs),
    /// Check whether GIDs are reachable, as `ibv_gid_reachable` does
    ///
    /// An InfiniBand port queries the subnet administrator. On Ethernet a GID is an IP address, which is reachable if
    /// the kernel has a route and the next hop answers on its link. Exits with 0 if all GIDs are reachable, with 1 if
    /// some are not, and with 2 if some could not be checked.
    Reach(ReachArgs),
    /// Resolve hosts and services to addresses, sources, routes and devices, as `rdma_getaddrinfo` does
    ///
    /// Prints a table of the results in the order to try them. With --json it prints, for each target, a
    /// line with an array of objects whose keys are the fields of `struct rdma_addrinfo`. Exits with 1 if a
    /// target is not found.
    Resolve(ResolveArgs),
    /// List, register and remove services at InfiniBand's subnet administrator
    Service(ServiceArgs),
    /// Measure connects, latency, bandwidth and storms, compared with plain sockets
    ///
    /// Uses two processes on the loopback interface; the first starts the second. `resolve` uses one process, and `storm`
    /// one more for each of its senders. Yardstick and subject are measured in turns; the median of the rounds' ratios is
    /// printed.
    #[command(subcommand)]
    Bench(BenchCommand),
    /// The second process of `bench`
    #[command(hide = true)]
    BenchPeer,
    /// Read a capture: print each RoCEv2 packet and check its ICRC
    ///
    /// Reads pcap and pcapng with Ethernet (including VLAN tags), raw IP, BSD loopback and Linux cooked frames. Ends
    /// with a line "N packets, N ICRC valid" and exits with 1 if an ICRC is not valid.
    Decode(DecodeArgs),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct DevicesArgs {
    /// Keep running, and print changes as they happen
    #[arg(long, short)]
    pub(crate) watch: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct DoctorArgs {
    /// Destination: a host, or HOST:PORT (an IPv6 address in brackets)
    #[arg(value_name = "DEST")]
    pub(crate) destination: Option<String>,
    /// Seconds to wait for other processes that share the port, and for name servers
    #[arg(long, short = 'W', value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct DemoArgs {
    #[command(flatten)]
    pub(crate) record: RecordArgs,
}

/// How to record the packets that are sent and received.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct RecordArgs {
    /// Write every packet to a capture file that Wireshark opens
    #[arg(long, value_name = "FILE")]
    pub(crate) pcap: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ListenArgs {
    // As an attribute, because rustdoc would read the brackets as a link.
    #[arg(value_name = "ADDR:PORT", value_parser = endpoint,
          help = "Where to listen: 127.0.0.1:7471, [::1]:7471, or :7471 for every address")]
    pub(crate) address: String,
    /// End after this many connections
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// End after one connection; same as --count 1
    #[arg(long, conflicts_with = "count")]
    pub(crate) once: bool,
    /// Offer a datagram service, as `udaddy` does, instead of connections: each datagram is answered with its data.
    /// --count then counts datagrams
    #[arg(long)]
    pub(crate) ud: bool,
    /// Private data for connecting peers, at most 196 bytes; with --ud 136
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true,
          value_parser = private_data::<MAX_REPLY_DATA>)]
    pub(crate) private_data: String,
    #[command(flatten)]
    pub(crate) record: RecordArgs,
    /// Draw handshake, data and events as a ladder at the end
    #[arg(long, conflicts_with = "json")]
    pub(crate) trace: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct PingArgs {
    /// Listener to ping: 192.168.7.1:7471, [fe80::1%eth0]:7471, or host:7471
    #[arg(value_name = "ADDR:PORT", value_parser = endpoint)]
    pub(crate) address: String,
    /// End after this many pings; without it, run until interrupted
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Bytes of data
    #[arg(long, short, value_name = "BYTES", default_value_t = DEFAULT_SIZE,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_SIZE)))]
    pub(crate) size: u32,
    /// Seconds between the starts of two pings; 0 for no pause. Default: 1 s, or no pause with --count
    #[arg(long, short, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) interval: Option<Duration>,
    /// Seconds to wait for the connection, and for each ping
    #[arg(long, short = 'W', value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub(crate) timeout: Duration,
    /// Ping a datagram service, as `udaddy -s` does, instead of a connection. Datagrams may be lost, and the loss is
    /// printed. --size must be at least 16, and fit into one packet
    #[arg(long)]
    pub(crate) ud: bool,
    /// Private data for the listener, at most 56 bytes
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true,
          value_parser = private_data::<MAX_REQUEST_DATA>)]
    pub(crate) private_data: String,
    /// Print only the summary
    #[arg(long, short)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) record: RecordArgs,
    /// Draw handshake, data and events as a ladder at the end
    #[arg(long, conflicts_with = "json")]
    pub(crate) trace: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct PsArgs {
    /// Seconds that the processes have to answer
    #[arg(long, short = 'W', value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ReachArgs {
    /// GIDs: IPv6 addresses, with %INTERFACE if link-local, or IPv4 addresses
    #[arg(value_name = "GID", required_unless_present = "from")]
    pub(crate) gids: Vec<String>,
    /// Device to use; by default the one that routing selects
    #[arg(long, value_name = "DEVICE")]
    pub(crate) device: Option<String>,
    /// Its port; 0 for the first active one
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub(crate) port: u8,
    /// A file with more GIDs, one per line; - for standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) from: Option<PathBuf>,
    /// Seconds to wait for each answer
    ///
    /// Linux takes up to 8 s to confirm that a neighbour still answers.
    #[arg(long, short = 'W', value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub(crate) timeout: Duration,
    /// Maximum number of GIDs checked at a time
    #[arg(long, value_name = "COUNT", default_value_t = 256)]
    pub(crate) at_once: usize,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct DecodeArgs {
    /// The capture file, pcap or pcapng; - for standard input
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Draw the packets as a ladder instead
    #[arg(long, conflicts_with = "json")]
    pub(crate) trace: bool,
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_help_lists_the_exit_codes() {
        let help = Cli::command().render_long_help().to_string();
        assert!(help.contains("Exit codes:"), "{help}");
    }

    /// The help page of a command.
    fn help(path: &[&str]) -> String {
        let args = std::iter::once("portolan").chain(path.iter().copied());
        let shown = Cli::try_parse_from(args.chain(["--help"])).unwrap_err();
        shown.to_string()
    }

    #[test]
    fn the_help_of_each_command_lists_the_providers() {
        for path in [&[][..], &["ping"], &["mcast", "join"]] {
            let help = help(path);
            assert!(
                help.contains("[possible values: software, kernel]"),
                "{help}"
            );
        }
        assert!(Cli::try_parse_from(["portolan", "--provider", "hardware", "ps"]).is_err());
    }

    #[test]
    fn removing_a_service_has_no_options_of_a_registration() {
        let service = ["portolan", "service", "remove", "NAME", "1"];
        assert!(Cli::try_parse_from(service).is_ok());
        for option in [&["--keep"][..], &["--lease", "10"]] {
            let args = service.iter().chain(option);
            assert!(Cli::try_parse_from(args).is_err(), "{option:?}");
            let mut register = service.to_vec();
            register[2] = "register";
            assert!(Cli::try_parse_from(register.iter().chain(option)).is_ok());
        }
    }

    #[test]
    fn the_help_of_exec_names_the_variables_for_programs() {
        let help = help(&["exec"]);
        for name in ["PORTOLAN_HOLD_REQUESTS_MS", "PORTOLAN_SOCKETS_PORTS"] {
            assert!(help.contains(name), "{help}");
        }
    }

    #[test]
    fn absurd_sizes_and_counts_are_refused() {
        for args in [
            ["ping", "a:1", "--size", "0"],
            ["ping", "a:1", "--size", "999999999"],
            ["ping", "a:1", "--count", "0"],
            ["listen", "a:1", "--count", "0"],
        ] {
            let args = std::iter::once("portolan").chain(args);
            assert!(Cli::try_parse_from(args).is_err());
        }
    }
}
