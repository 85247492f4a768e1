//! The other users whose processes may share the UDP port, from the environment.

use portolan_provider::{Error, Result, Step};
use rustix::process::{getegid, geteuid, getgid, getuid};

use crate::software::Trust;

/// The environment variable that lists additional trusted users: user ids separated by commas, or
/// `anyone`.
pub const TRUST_ENV: &str = "PORTOLAN_TRUST";

/// The trust that [`TRUST_ENV`] configures; without it only processes of the same user and of root
/// are trusted. Set-user-ID and set-group-ID programs ignore the variable, because another user
/// controls their environment. [`configure_software`](super::configure_software) shows its use.
///
/// # Errors
/// `InvalidArgument` if the variable is malformed.
pub fn trust() -> Result<Trust> {
    let is_lent = getuid() != geteuid() || getgid() != getegid();
    let said = std::env::var_os(TRUST_ENV).filter(|_| !is_lent);
    of_text(&said.unwrap_or_default().to_string_lossy())
}

fn of_text(text: &str) -> Result<Trust> {
    match text {
        "" => Ok(Trust::SameUser),
        "anyone" => Ok(Trust::Anyone),
        users => {
            let users = users.split(',').map(|user| user.trim().parse().ok());
            let users: Option<Vec<u32>> = users.collect();
            let expected = "numbers of users, parted by commas, or anyone";
            let refused = || Error::invalid(Step::OpenDevice, TRUST_ENV, expected, text);
            users.map(Trust::Users).ok_or_else(refused)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_trusted_by_number_or_all_and_other_text_is_refused() {
        assert_eq!(of_text("").unwrap(), Trust::SameUser);
        assert_eq!(of_text("anyone").unwrap(), Trust::Anyone);
        assert_eq!(of_text("1001").unwrap(), Trust::Users(vec![1001]));
        assert_eq!(of_text("1001, 7").unwrap(), Trust::Users(vec![1001, 7]));
        for wrong in ["alice", "1001,", ",", "-1", "4294967296", "Anyone"] {
            let refused = of_text(wrong).unwrap_err().to_string();
            assert!(refused.contains(TRUST_ENV), "{refused}");
        }
    }
}
