//! Arguments of the commands that query the subnet administrator.

use std::time::Duration;

use clap::{Args, Subcommand};

use super::values::seconds;

/// The port to query through.
#[derive(Debug, Clone, Args)]
pub(crate) struct PortArgs {
    /// Device to use; by default the first with an InfiniBand port
    #[arg(long, value_name = "DEVICE")]
    pub(crate) device: Option<String>,
    /// Its port; 0 for the first
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub(crate) port: u8,
    /// Seconds that the administrator has to answer
    #[arg(long, short = 'W', value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct PathArgs {
    /// From this GID
    #[arg(value_name = "SGID")]
    pub(crate) sgid: String,
    /// To this one
    #[arg(value_name = "DGID")]
    pub(crate) dgid: String,
    #[command(flatten)]
    pub(crate) port: PortArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ServiceArgs {
    #[command(subcommand)]
    pub(crate) command: ServiceCommand,
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum ServiceCommand {
    /// List services; exits with 1 if a requested one is not registered
    List(ServiceListArgs),
    /// Register a service of a port
    Register(ServiceRegisterArgs),
    /// Remove a service; exits with 1 if it is not registered
    Remove(ServiceNamedArgs),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ServiceListArgs {
    /// Only services with this name
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Those with this id
    #[arg(long, value_name = "ID", value_parser = number)]
    pub(crate) id: Option<u64>,
    #[command(flatten)]
    pub(crate) port: PortArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ServiceNamedArgs {
    /// Its name, 1 to 64 bytes
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Its id, such as 0x1000000000000001
    #[arg(value_name = "ID", value_parser = number)]
    pub(crate) id: u64,
    /// GID of the port that offers it; by default that of the port used
    #[arg(long, value_name = "GID")]
    pub(crate) gid: Option<String>,
    #[command(flatten)]
    pub(crate) port: PortArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ServiceRegisterArgs {
    #[command(flatten)]
    pub(crate) service: ServiceNamedArgs,
    /// Seconds that the registration lasts
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) lease: u32,
    /// Keep running, renew the registration, and remove it when interrupted
    #[arg(long)]
    pub(crate) keep: bool,
}

/// A number, decimal or hexadecimal with `0x`.
fn number(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| "a number of 64 bits expected, such as 0x1000000000000001".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_decimal_or_hexadecimal() {
        assert_eq!(number("0x1000000000000001"), Ok(0x1000_0000_0000_0001));
        assert_eq!(number("17"), Ok(17));
        for wrong in ["", "0x", "x", "-1", "0x11111111111111111"] {
            assert!(number(wrong).is_err(), "{wrong}");
        }
    }
}
