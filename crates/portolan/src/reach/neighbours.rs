//! Asks the next hops of a GID: it is reachable if one of them answers on its link.

use std::sync::Arc;
use std::time::Duration;

use portolan_addrinfo::{LinkAddress, Resolver, Ticket};
use portolan_provider::address::ip_to_gid;
use portolan_threads::lock::Mutex;
use portolan_wire::addr::Gid;

use super::route::Way;
use super::{Done, Method, Port, Reached, Reason};

/// A neighbour lookup, cancelled on drop.
pub(super) struct NeighbourAsked(Ticket);

impl Drop for NeighbourAsked {
    fn drop(&mut self) {
        if let Ok(resolver) = Resolver::shared() {
            // A lookup that has ended cannot be cancelled, which is harmless.
            let _ = resolver.cancel(self.0);
        }
    }
}

/// The lookups for one GID. The first next hop that answers decides; a failure needs the last outcome.
struct Race {
    port: Port,
    gid: Gid,
    done: Option<Done>,
    /// Lookups without an outcome.
    left: usize,
    why: Option<Reason>,
}

/// Asks the next hops of all ways. `done` gets the outcome, possibly before this returns.
pub(super) fn ask(
    port: &Port,
    gid: Gid,
    ways: Vec<Way>,
    within: Duration,
    done: Done,
) -> Vec<NeighbourAsked> {
    let race = Arc::new(Mutex::new(Race {
        port: port.clone(),
        gid,
        done: Some(done),
        left: ways.len(),
        why: None,
    }));
    let ask = |way: Way| {
        let Some(next_hop) = way.next_hop else {
            tell(&race, Ok(reached(&way, None)));
            return None;
        };
        let of_outcome = Arc::clone(&race);
        let told = Box::new(move |outcome: Result<LinkAddress, _>| {
            let outcome = outcome.map(|known| reached(&way, Some(known)));
            tell(&of_outcome, outcome.map_err(Reason::from));
        });
        let asked = Resolver::shared()
            .and_then(|resolver| resolver.confirm(next_hop, way.interface_index, within, told));
        match asked {
            Ok(ticket) => Some(NeighbourAsked(ticket)),
            Err(cause) => {
                tell(&race, Err(cause.into()));
                None
            }
        }
    };
    ways.into_iter().filter_map(ask).collect()
}

fn reached(way: &Way, known: Option<LinkAddress>) -> Reached {
    Reached {
        method: Method::Route,
        source: ip_to_gid(way.source),
        next_hop: way.next_hop,
        link_address: known.and_then(|known| known.ethernet()),
    }
}

fn tell(race: &Mutex<Race>, outcome: Result<Reached, Reason>) {
    let mut state = race.lock();
    state.left -= 1;
    let outcome = match outcome {
        Ok(reached) => Ok(reached),
        Err(why) => {
            // A next hop whose state is unknown may be the one that would answer.
            let is_unknown = |why: &Reason| !matches!(why, Reason::NoPath(_));
            let why = state.why.take().filter(is_unknown).unwrap_or(why);
            if state.left > 0 {
                state.why = Some(why);
                return;
            }
            Err(state.port.refuse(state.gid, why))
        }
    };
    // Call it without the lock: the callback may drop the lookups, and so this state.
    let done = state.done.take();
    drop(state);
    if let Some(done) = done {
        done(outcome);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    /// The errno that is told after these outcomes, and after how many of them.
    fn told(outcomes: Vec<Result<Reached, Reason>>) -> (Result<(), i32>, usize) {
        let (send, heard) = channel();
        let done = move |outcome: Result<Reached, super::super::Unreachable>| {
            let outcome = outcome.map(drop).map_err(|why| why.errno());
            send.send(outcome).expect("the test waits");
        };
        let race = Mutex::new(Race {
            port: Port::ethernet("sw_eth0", 1, vec![], vec![]),
            gid: Gid([1; 16]),
            done: Some(Box::new(done)),
            left: outcomes.len(),
            why: None,
        });
        let mut told = None;
        for (at, outcome) in outcomes.into_iter().enumerate() {
            tell(&race, outcome);
            if let Ok(outcome) = heard.try_recv() {
                assert_eq!(told.replace((outcome, at + 1)), None, "told once");
            }
        }
        told.expect("told")
    }

    #[test]
    fn one_next_hop_that_answers_suffices_and_an_unknown_one_is_no_answer() {
        let yes = || {
            Ok(Reached {
                method: Method::Route,
                source: Gid([2; 16]),
                next_hop: None,
                link_address: None,
            })
        };
        let no = || Err(Reason::NoPath("none".into()));
        let unknown = || Err(Reason::NoMemory("none".into()));
        assert_eq!(told(vec![no(), yes(), no()]), (Ok(()), 2));
        assert_eq!(told(vec![unknown(), yes()]), (Ok(()), 2));
        assert_eq!(told(vec![no(), no()]), (Err(6), 2));
        assert_eq!(told(vec![no(), unknown()]), (Err(12), 2));
        assert_eq!(told(vec![unknown(), no(), no()]), (Err(12), 3));
    }
}
