//! The low layer in a runtime: a thousand connects, all with one event channel and one task.
//!
//! `cargo run -p portolan --example connect_many --features tokio`
//!
//! Each id goes through the steps of `rdma_cm(7)`: its address is resolved, its route, and it connects. An event ends each
//! step and says which id's. A queue pair of one's own, of any kind, belongs between route and connect
//! ([`CmId::create_queue_pair`]); these ids name one that they do not have, which suffices to be rejected.

use std::collections::HashMap;
use std::time::Duration;

use portolan::cm::{CmId, EventChannel};
use portolan::provider::cm::{ConnParam, EventType};
use portolan::tasks::{AsyncEventChannel, AsyncListener};
use portolan::wire::addr::Qpn;
use portolan::{Error, Step};

const IDS: u32 = 1000;
const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let listener = AsyncListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let events = AsyncEventChannel::new(EventChannel::open()?)?;
    let mut ids = HashMap::new();
    for number in 0..IDS {
        let id = CmId::new(events.get_ref())?;
        id.resolve_addr(None, address, PATIENCE)?;
        ids.insert(id.number(), (number, id));
    }
    let mut rejected = 0;
    while !ids.is_empty() {
        tokio::select! {
            incoming = listener.accept() => incoming?.reject(b"full")?,
            event = events.next() => {
                let event = event?;
                let number = event.id().number();
                match (event.event_type(), event.failure()) {
                    (EventType::AddrResolved, _) => event.id().resolve_route(PATIENCE)?,
                    (EventType::RouteResolved, _) => {
                        let at = ids.get(&number).map_or(0, |(at, _)| *at);
                        event.id().connect(&ConnParam {
                            qp_num: Qpn::new(0x10_0000 + at),
                            ..ConnParam::default()
                        })?;
                    }
                    (_, Some(error)) => {
                        assert!(error.is_refused() && error.step == Step::Connect, "{error}");
                        assert_eq!(&event.private_data()[..4], b"full");
                        rejected += 1;
                        ids.remove(&number);
                    }
                    _ => {}
                }
            }
        }
    }
    println!("{rejected} connects were rejected, as they should be");
    Ok(())
}
