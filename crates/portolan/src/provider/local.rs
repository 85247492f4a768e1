//! Whether packets to other processes of this host go through memory, from the environment.

use portolan_provider::{Error, Result, Step};

/// The environment variable that turns off links through memory between processes of a host.
pub const LOCAL_ENV: &str = "PORTOLAN_LOCAL";

/// Whether [`LOCAL_ENV`] permits links through memory: `memory` and no value do, `off` does not.
/// [`configure_software`](super::configure_software) shows its use.
///
/// # Errors
/// `InvalidArgument` if the variable is malformed.
pub fn local_memory() -> Result<bool> {
    of_text(
        &std::env::var_os(LOCAL_ENV)
            .unwrap_or_default()
            .to_string_lossy(),
    )
}

fn of_text(text: &str) -> Result<bool> {
    match text {
        "" | "memory" => Ok(true),
        "off" => Ok(false),
        _ => {
            let expected = "memory or off";
            Err(Error::invalid(Step::OpenDevice, LOCAL_ENV, expected, text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_unless_it_is_turned_off() {
        assert!(of_text("").unwrap());
        assert!(of_text("memory").unwrap());
        assert!(!of_text("off").unwrap());
        let refused = of_text("no").unwrap_err().to_string();
        assert!(refused.contains(LOCAL_ENV), "{refused}");
    }
}
