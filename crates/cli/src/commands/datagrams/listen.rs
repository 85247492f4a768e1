//! `listen --ud`: answers service requests with the queue pair, and echoes each datagram.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::Result;
use portolan::Cause;
use portolan::datagram::{Arrival, Datagram, Destination, Options, Service};
use portolan::wire::addr::Qpn;

use super::{immediate, report};
use crate::args::values::private_data_with;
use crate::args::{ListenArgs, MAX_SERVICE_REPLY_DATA};
use crate::commands::loopback;
use crate::decode::trace::Side;
use crate::exit::Outcome;
use crate::interrupt::Interrupt;
use crate::output::{self, Output};
use crate::record::{self, Recorder};

/// Maximum delay until Ctrl-C is noticed.
const INTERRUPT_CHECK: Duration = Duration::from_millis(100);
/// Maximum number of received datagrams, and of answers, that are queued.
const DEPTH: u32 = 512;
/// Maximum number of remembered senders; beyond it all are forgotten and resolved again.
const MAX_SENDERS: usize = 1024;

/// Answers until interrupted, or until the requested number of datagrams is answered.
///
/// # Errors
///
/// The address cannot be listened on; the output or the recording cannot be written.
pub(crate) fn run(args: &ListenArgs, output: &mut Output) -> Result<Outcome> {
    record::during(&args.record, args.trace, output, |recorder, output| {
        serve(args, recorder, output)
    })
}

fn serve(args: &ListenArgs, recorder: &Recorder, output: &mut Output) -> Result<Outcome> {
    let private_data = private_data_with(&args.private_data, "--ud", MAX_SERVICE_REPLY_DATA)?;
    let options = Options::default()
        .send_depth(DEPTH)
        .receive_depth(DEPTH)
        .private_data(private_data);
    let mut service = Service::bind(&args.address, &options)?;
    let interrupt = Interrupt::install()?;
    let local = service.local_addr()?;
    output.listening(local)?;
    loopback::warn_listener(local);
    let wanted = if args.once { Some(1) } else { args.count };
    let (mut received, mut answered) = (0_u64, 0_u64);
    let mut senders = Senders::default();
    while wanted.is_none_or(|wanted| answered < wanted) && !interrupt.is_raised() {
        match service.next_within(INTERRUPT_CHECK) {
            Ok(Arrival::Asked { peer, private_data }) => {
                if let Some(peer) = peer {
                    let label = format!("asked by {peer}");
                    recorder.event(Side::Passive, local.ip(), peer.ip(), label);
                }
                report::asked(peer, &private_data, output)?;
            }
            Ok(Arrival::Failed(error)) => output::complain(&error),
            Ok(Arrival::Datagram { datagram, qpn }) => {
                received += 1;
                match answer(&mut service, &mut senders, &datagram, qpn) {
                    Ok(()) => answered += 1,
                    // A failure to answer one sender must not affect the others.
                    Err(error) => output::complain(&error),
                }
            }
            Ok(_) => {}
            Err(error) if matches!(error.cause, Cause::TimedOut { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    report::served(received, answered, output)?;
    Ok(match received == answered {
        true => Outcome::Good,
        false => Outcome::CheckFailed,
    })
}

fn answer(
    service: &mut Service,
    senders: &mut Senders,
    datagram: &Datagram,
    qpn: Qpn,
) -> portolan::Result<()> {
    let sender = senders.find(service, datagram, qpn)?;
    service.send(qpn, sender, &datagram.data, Some(immediate(qpn)))
}

/// The address handles of senders, each created once.
#[derive(Debug, Default)]
struct Senders {
    known: HashMap<(IpAddr, Qpn, Qpn), Destination>,
}

impl Senders {
    fn find(
        &mut self,
        service: &Service,
        datagram: &Datagram,
        qpn: Qpn,
    ) -> portolan::Result<&Destination> {
        let key = (datagram.source, datagram.source_qpn, qpn);
        if self.known.len() >= MAX_SENDERS && !self.known.contains_key(&key) {
            self.known.clear();
        }
        Ok(match self.known.entry(key) {
            std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::hash_map::Entry::Vacant(new) => {
                new.insert(service.sender(datagram, qpn)?)
            }
        })
    }
}
