//! A host of a simulated fabric: what a test has done at one of its ports, in a process of its own, for the
//! simulator's library takes the place of the user MAD devices process by process.
//!
//! | arguments | what is done |
//! |---|---|
//! | `listen SERVICE rc\|ud accept\|reject` | waits for one request, answers it, sees the connection to its end |
//! | `connect SERVICE rc\|ud RECORD` | asks for one over a path, a record in hexadecimal, and ends it |
//! | `reach GID…` | each with 0 or its errno |
//! | `paths` | reads lines `SGID DGID`, writes each path's record in hexadecimal, or its errno |
//! | `flood COUNT IN_FLIGHT GID…` | so many questions for paths between them, so many at once |
//! | `register NAME SERVICE LEASE_S` | keeps a service registered until its input ends |
//! | `offer NAME SERVICE LEASE_S` | listens for a service that is registered until its input ends |
//! | `set NAME SERVICE LEASE_S` | registers it once |
//! | `service NAME\|SERVICE` | the GID that offers it, or the errno |

#![forbid(unsafe_code)]

mod administrator;
mod connections;

use std::io::Write;

use anyhow::{Context, Result, bail};
use portolan_sa::umad;
use portolan_wire::ServiceId;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["listen", service, kind, answer] => connections::listen(service, kind, answer),
        ["connect", service, kind, record] => connections::connect(service, kind, record),
        ["reach", gids @ ..] => administrator::reach(gids),
        ["paths"] => administrator::paths(),
        ["flood", count, in_flight, gids @ ..] => {
            administrator::flood(count.parse()?, in_flight.parse()?, gids)
        }
        ["register", name, service, lease_s] => {
            administrator::register(name, service_id(service)?, lease_s.parse()?)
        }
        ["offer", name, service, lease_s] => {
            administrator::offer(name, service_id(service)?, lease_s.parse()?)
        }
        ["set", name, service, lease_s] => {
            administrator::set(name, service_id(service)?, lease_s.parse()?)
        }
        ["service", what] => administrator::service(what),
        _ => bail!("see the top of this program's source for its arguments"),
    }
}

/// The one port of this host.
fn device() -> Result<umad::Device> {
    let devices = umad::devices()?;
    devices.into_iter().next().context("no user MAD device")
}

fn service_id(text: &str) -> Result<ServiceId> {
    let digits = text.strip_prefix("0x").context("a service id is 0x…")?;
    Ok(ServiceId(u64::from_str_radix(digits, 16)?))
}

fn say(line: &str) -> Result<()> {
    let mut output = std::io::stdout();
    writeln!(output, "{line}")?;
    Ok(output.flush()?)
}
