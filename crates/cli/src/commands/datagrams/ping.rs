//! `ping --ud`: sends datagrams and counts the echoes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Result, ensure};
use portolan::Cause;
use portolan::datagram::{Options, Reached, Socket};

use super::tally::{Answer, Tally};
use super::{immediate, message, report};
use crate::args::PingArgs;
use crate::commands::failure::explain;
use crate::commands::loopback;
use crate::commands::ping::{DEFAULT_INTERVAL, NOT_CONNECTED, is_peers};
use crate::decode::trace::Side;
use crate::exit::Outcome;
use crate::interrupt::Interrupt;
use crate::output::Output;
use crate::record::{self, Recorder};

/// Maximum delay until Ctrl-C is noticed.
const INTERRUPT_CHECK: Duration = Duration::from_millis(100);
/// Without an interval, the next datagram is sent when the last one is answered or after this time: the answer may be
/// lost, or the peer may answer all datagrams at the end.
const ANSWER_GRACE: Duration = Duration::from_millis(20);
/// Maximum number of unanswered pings; beyond it the oldest is given up.
const MAX_OUTSTANDING: usize = 65_536;
/// After the last ping, wait for answers for this many times the longest round trip, as ping(8) does.
const FINAL_WAIT_ROUND_TRIPS: u32 = 2;
/// Minimum of that wait.
const MIN_FINAL_WAIT: Duration = Duration::from_secs(1);

/// Pings until interrupted, or the requested number of times.
///
/// # Errors
///
/// The service cannot be resolved for a local reason; the output or the recording cannot be written.
pub(crate) fn run(args: &PingArgs, output: &mut Output) -> Result<Outcome> {
    record::during(&args.record, args.trace, output, |recorder, output| {
        ask_and_ping(args, recorder, output)
    })
}

fn ask_and_ping(args: &PingArgs, recorder: &Recorder, output: &mut Output) -> Result<Outcome> {
    let size = args.size as usize;
    ensure!(
        size >= message::MIN_LEN,
        "--size {size}: a ping by datagram has {} bytes at least",
        message::MIN_LEN
    );
    let interrupt = Interrupt::install()?;
    let options = Options::default()
        .private_data(args.private_data.as_bytes().to_vec())
        .timeout(args.timeout);
    let asked = SystemTime::now();
    let address = args.address.clone();
    let asking = move || Socket::connect(&address, &options);
    let Some(reached) = interrupt.unless_raised(asking)? else {
        report::summary(args, &Tally::new(), Some(&NOT_CONNECTED), output)?;
        return Ok(Outcome::CheckFailed);
    };
    let (socket, service) = match reached {
        Ok(reached) => reached,
        Err(error) if is_peers(&error.cause) => {
            note_failure(recorder, asked, &args.address, &error);
            let error = explain(error);
            loopback::complain(&error);
            if output.json {
                report::summary(
                    args,
                    &Tally::new(),
                    Some(&format_args!("{error:#}")),
                    output,
                )?;
            }
            return Ok(Outcome::CheckFailed);
        }
        Err(error) => return Err(explain(error)),
    };
    ensure!(
        size <= socket.mtu(),
        "--size {size}: a datagram to {} holds {} bytes at most",
        service.address,
        socket.mtu()
    );
    if let Some(local) = socket.local_addr() {
        let (local, peer) = (local.ip(), service.address.ip());
        let label = format!("ask {}", args.address);
        recorder.event_at(asked, Side::Active, local, peer, label);
        recorder.event(Side::Active, local, peer, "ESTABLISHED");
    }
    report::reached(&socket, &service, args, output)?;
    let mut pinger = Pinger {
        socket,
        service,
        args,
        outstanding: BTreeMap::new(),
        longest: Duration::ZERO,
        tally: Tally::new(),
    };
    let ended = pinger.ping_all(&interrupt, output);
    let broken = match ended {
        Ok(()) => None,
        Err(Broken::Socket(error)) => Some(error),
        Err(Broken::Output(error)) => return Err(error),
    };
    let error = broken.as_ref().map(|error| error as &dyn std::fmt::Display);
    report::summary(args, &pinger.tally, error, output)?;
    Ok(match pinger.tally.is_good() && broken.is_none() {
        true => Outcome::Good,
        false => Outcome::CheckFailed,
    })
}

fn note_failure(recorder: &Recorder, asked: SystemTime, address: &str, error: &portolan::Error) {
    let inet = |end: Option<portolan::provider::Address>| end.and_then(|end| end.inet());
    if let (Some(local), Some(peer)) = (inet(error.context.local), inet(error.context.remote)) {
        let (local, peer) = (local.ip(), peer.ip());
        recorder.event_at(asked, Side::Active, local, peer, format!("ask {address}"));
        recorder.event(Side::Active, local, peer, format!("{} failed", error.step));
    }
}

/// Why pinging ended early.
enum Broken {
    Socket(portolan::Error),
    Output(anyhow::Error),
}

struct Pinger<'a> {
    socket: Socket,
    service: Reached,
    args: &'a PingArgs,
    /// Send times of unanswered pings.
    outstanding: BTreeMap<u64, Instant>,
    longest: Duration,
    tally: Tally,
}

impl Pinger<'_> {
    fn ping_all(&mut self, interrupt: &Interrupt, output: &mut Output) -> Result<(), Broken> {
        let interval = self.args.interval.unwrap_or(match self.args.count {
            Some(_) => Duration::ZERO,
            None => DEFAULT_INTERVAL,
        });
        let mut next = Instant::now();
        while self.args.count.is_none_or(|count| self.tally.sent < count) && !interrupt.is_raised()
        {
            let seq = self.tally.sent;
            self.send(seq)?;
            if self.args.count == Some(self.tally.sent) {
                // The wait below is for the last answers.
                break;
            }
            next += interval;
            let until = next.max(Instant::now() + ANSWER_GRACE);
            self.receive_until(until, interrupt, output, |pinger| {
                Instant::now() >= next && !pinger.outstanding.contains_key(&seq)
            })?;
        }
        let linger = match self.tally.answered {
            0 => self.args.timeout,
            _ => MIN_FINAL_WAIT.max(self.longest * FINAL_WAIT_ROUND_TRIPS),
        };
        let until = Instant::now() + linger.min(self.args.timeout);
        self.receive_until(until, interrupt, output, |pinger| {
            pinger.outstanding.is_empty()
        })
    }

    fn send(&mut self, seq: u64) -> Result<(), Broken> {
        let data = message::data(seq, self.args.size as usize);
        let imm_data = Some(immediate(self.socket.qpn()));
        if self.outstanding.len() >= MAX_OUTSTANDING {
            self.outstanding.pop_first();
        }
        self.outstanding.insert(seq, Instant::now());
        self.tally.sent += 1;
        self.socket
            .send(&self.service.destination, &data, imm_data)
            .map_err(Broken::Socket)
    }

    /// Receives answers until the time `until`, or until enough have arrived.
    fn receive_until(
        &mut self,
        until: Instant,
        interrupt: &Interrupt,
        output: &mut Output,
        is_enough: impl Fn(&Self) -> bool,
    ) -> Result<(), Broken> {
        while !is_enough(self) && !interrupt.is_raised() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            match self.socket.receive_within(left.min(INTERRUPT_CHECK)) {
                Ok(datagram) => {
                    if let Some(answer) = self.take(&datagram.data) {
                        report::answer(self.args, &self.service, &answer, output)
                            .map_err(Broken::Output)?;
                    }
                }
                Err(error) if matches!(error.cause, Cause::TimedOut { .. }) => {}
                Err(error) => return Err(Broken::Socket(error)),
            }
        }
        Ok(())
    }

    /// Counts an answer; `None` for a duplicate.
    fn take(&mut self, data: &[u8]) -> Option<Answer> {
        let Some(seq) = message::number(data).filter(|seq| *seq < self.tally.sent) else {
            let Some(_) = self.outstanding.pop_first() else {
                self.tally.duplicates += 1;
                return None;
            };
            self.tally.answered += 1;
            self.tally.untimed += 1;
            return Some(Answer::Other { bytes: data.len() });
        };
        let Some(sent) = self.outstanding.remove(&seq) else {
            self.tally.duplicates += 1;
            return None;
        };
        let time = sent.elapsed();
        let compared = message::compare(seq, self.args.size as usize, data);
        self.longest = self.longest.max(time);
        self.tally.answered += 1;
        self.tally.mismatched += u64::from(compared.is_err());
        self.tally.latencies.record(time);
        Some(Answer::Echo {
            seq,
            time,
            compared,
        })
    }
}
