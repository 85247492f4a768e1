//! Values of options that several commands have.

use std::time::Duration;

use anyhow::ensure;
use portolan::resolve::parse_endpoint;

/// An address with a port; names are looked up later.
pub(crate) fn endpoint(text: &str) -> Result<String, String> {
    let endpoint = parse_endpoint(text).map_err(|error| error.to_string())?;
    match endpoint.service() {
        Some(_) => Ok(text.to_owned()),
        None => Err("a port is missing: write ADDR:PORT, or [ADDR]:PORT for IPv6".to_owned()),
    }
}

/// Private data that fits its message.
pub(super) fn private_data<const MAX_LEN: usize>(text: &str) -> Result<String, String> {
    match text.len() {
        len if len > MAX_LEN => Err(format!("{len} bytes; at most {MAX_LEN} fit")),
        _ => Ok(text.to_owned()),
    }
}

/// Private data whose limit depends on an option.
pub(crate) fn private_data_with(
    text: &str,
    option: &str,
    max_len: usize,
) -> anyhow::Result<Vec<u8>> {
    let len = text.len();
    ensure!(
        len <= max_len,
        "--private-data: {len} bytes; with {option} at most {max_len} fit"
    );
    Ok(text.as_bytes().to_vec())
}

/// Seconds as a decimal number.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    const MAX_SECONDS: f64 = 86_400.0;
    let seconds: f64 = text
        .parse()
        .map_err(|_| "a number of seconds expected".to_owned())?;
    if (0.0..=MAX_SECONDS).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err(format!("0 to {MAX_SECONDS} seconds expected"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_decimal_and_bounded() {
        assert_eq!(seconds("0.25"), Ok(Duration::from_millis(250)));
        for wrong in ["", "x", "-1", "1e9", "NaN", "inf"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_port_is_required_and_private_data_must_fit() {
        assert!(endpoint("127.0.0.1:7471").is_ok());
        assert!(endpoint("[fe80::1%eth0]:7471").is_ok());
        assert!(endpoint(":0").is_ok());
        for wrong in ["127.0.0.1", "::1", ""] {
            assert!(endpoint(wrong).is_err(), "{wrong}");
        }
        assert!(private_data::<56>(&"x".repeat(56)).is_ok());
        assert!(private_data::<56>(&"x".repeat(57)).is_err());
    }
}
