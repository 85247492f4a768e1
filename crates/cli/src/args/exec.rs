//! Arguments of `exec` and `cc-env`.

use std::ffi::OsString;

use clap::{Args, ValueEnum};

/// The Portolan libraries that a C program gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LibrarySet {
    /// librdmacm.so.1 and libibverbs.so.1: the software devices
    Full,
    /// only librdmacm.so.1, over the machine's own libibverbs and RDMA devices
    Rdmacm,
}

impl LibrarySet {
    /// Its folder's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            LibrarySet::Full => "full",
            LibrarySet::Rdmacm => "rdmacm",
        }
    }

    /// The libraries that the program gets, without `.so.1`.
    pub(crate) fn libraries(self) -> &'static [&'static str] {
        match self {
            LibrarySet::Full => &["libibverbs", "librdmacm"],
            LibrarySet::Rdmacm => &["librdmacm"],
        }
    }
}

/// Text after the help of `exec`.
pub(crate) const EXEC_AFTER_HELP: &str = "\
Environment of the program:
  PORTOLAN_HOLD_REQUESTS_MS=N       hold back connection requests, for C servers with room for one
  PORTOLAN_SOCKETS_PORTS=80,443     with --sockets: ports that become rsockets; !22,53 for all but these
  PORTOLAN_SOCKETS_CONFIG=FILE      with --sockets: rules to read instead of /etc/rdma/rsocket/preload_config
  PORTOLAN_SOCKETS_TIMEOUT_MS=2000  with --sockets: how long a connect waits for an rsocket before it uses TCP
  PORTOLAN_SOCKETS_REPORT=FILE|-    with --sockets: append how many connections were rsockets and TCP
docs/c-programs.md and docs/sockets.md explain them";

#[derive(Debug, Clone, Args)]
pub(crate) struct ExecArgs {
    /// Which libraries the program gets
    #[arg(long, value_enum, value_name = "SET", default_value = "full")]
    pub(crate) libraries: LibrarySet,
    /// Turn the program's TCP sockets into rsockets; peers without rsockets get TCP
    #[arg(long)]
    pub(crate) sockets: bool,
    /// Leave /sys/class/infiniband and /dev/infiniband as they are, and make no namespaces
    #[arg(long)]
    pub(crate) no_sysfs: bool,
    /// Print what would be set, without running the program
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// The program and its arguments
    // Its name does not begin with a hyphen (unless `--` precedes it), so that a misspelt option is not taken for it.
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct CcEnvArgs {
    /// Which libraries to link to
    #[arg(long, value_enum, value_name = "SET", default_value = "full")]
    pub(crate) libraries: LibrarySet,
    /// Print options for the compiler; with --libs, both
    #[arg(long, conflicts_with = "shell")]
    pub(crate) cflags: bool,
    /// Print options for the linker
    #[arg(long, conflicts_with = "shell")]
    pub(crate) libs: bool,
    /// Print commands for a shell, as without options
    #[arg(long)]
    pub(crate) shell: bool,
}
