//! A host of a simulated fabric. Tests run it as a separate process, since the simulator's library
//! emulates the user MAD devices per process.
//!
//! | arguments | action |
//! |---|---|
//! | `listen SERVICE rc\|ud accept\|reject` | answers one request and waits for the end of the connection |
//! | `connect SERVICE rc\|ud RECORD` | connects over a path (a record in hexadecimal) and disconnects |
//! | `reach GID…` | prints for each GID 0 or its errno |
//! | `paths` | reads lines `SGID DGID` and prints each path's record in hexadecimal, or its errno |
//! | `flood COUNT IN_FLIGHT GID…` | sends COUNT path queries between the GIDs, IN_FLIGHT at a time |
//! | `register NAME SERVICE LEASE_S` | keeps a service registered until end of input |
//! | `offer NAME SERVICE LEASE_S` | listens with a registered service until end of input |
//! | `set NAME SERVICE LEASE_S` | registers a service once |
//! | `service NAME\|SERVICE` | prints the GID that offers the service, or the errno |

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

/// The only port of this host.
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
