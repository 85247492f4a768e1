//! Plays a connection management scenario through the library, over the provider that the
//! environment names. Prints what every call returned and what every event carried, one JSON object
//! per line.
//!
//! Its twin over librdmacm is `c/play.c`. Both read the same commands and print the same objects,
//! so that their output can be compared. The argument is the time limit for an event, in seconds.
//! Each line of standard input is one command:
//!
//! | command | what it does |
//! |---|---|
//! | `channel C` | opens an event channel |
//! | `id C NAME rc\|ud` | creates an id on it |
//! | `bind NAME ADDRESS PORT`, `listen NAME BACKLOG` | as the calls |
//! | `resolve NAME SOURCE PORT DESTINATION PORT`, `route NAME` | as the calls; source `-` means none |
//! | `qp NAME [srq]` | a queue pair, with a shared receive queue |
//! | `connect NAME DATA RESPONDER INITIATOR FLOW RETRY RNR [QPN SRQ]`, `accept` with the same | data `-`, `word` or `word:LENGTH` |
//! | `reject NAME DATA`, `reject-ece NAME DATA`, `establish NAME`, `disconnect NAME` | as the calls |
//! | `join NAME GROUP full\|send-only CONTEXT`, `leave NAME GROUP` | as the calls |
//! | `migrate NAME C`, `ece NAME VENDOR OPTIONS`, `destroy NAME` | as the calls |
//! | `event C [NAME]` | prints the channel's next event; NAME names the id of a request |
//! | `until C EVENT` | prints the next event with that name and skips the events before it |
//! | `silent C MS` | prints the next event within MS milliseconds, or that there was none |
//! | `paths NAME` | prints the resolved paths |
//! | `sh COMMAND` | runs COMMAND in the shell |

#![forbid(unsafe_code)]

mod print;

use std::collections::BTreeMap;
use std::io::BufRead;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use portolan::Cause;
use portolan::cm::{CmId, Event, EventChannel, NewQueuePair};
use portolan::provider::cm::{ConnParam, Ece, EventType, JoinKind, Service};
use portolan::provider::traits::{Cq, Pd, Srq};
use portolan::provider::verbs::{QpCap, QpInit, QpType, SrqAttr};
use portolan::wire::addr::{PortSpace, Qpn};
use serde_json::json;

/// The same as in `c/play.c`.
const RESOLVE_TIMEOUT: Duration = Duration::from_millis(5000);
/// Time limit for acknowledging events at the end; none are outstanding.
const END_TIMEOUT: Duration = Duration::from_secs(10);

fn main() -> Result<()> {
    let seconds = std::env::args()
        .nth(1)
        .context("usage: play SECONDS < SCENARIO")?;
    let patience = Duration::from_secs(seconds.parse()?);
    let mut play = Play {
        patience,
        ..Play::default()
    };
    for (at, line) in std::io::stdin().lock().lines().enumerate() {
        play.line = at + 1;
        let line = line?;
        play.perform(&line)
            .with_context(|| format!("line {}: {line}", at + 1))?;
    }
    Ok(())
}

#[derive(Default)]
struct Play {
    line: usize,
    /// Time limit of an event.
    patience: Duration,
    channels: BTreeMap<String, EventChannel>,
    roles: BTreeMap<String, Role>,
}

/// An id, under its name in the scenario.
struct Role {
    id: CmId,
    qp_num: Option<Qpn>,
    #[allow(dead_code, reason = "held for as long as the queue pair is")]
    queues: Option<Queues>,
}

#[allow(dead_code, reason = "held for as long as the queue pair is")]
struct Queues {
    srq: Option<Arc<dyn Srq>>,
    cq: Arc<dyn Cq>,
    pd: Arc<dyn Pd>,
}

impl Play {
    fn perform(&mut self, line: &str) -> Result<()> {
        if let Some(command) = line.strip_prefix("sh ") {
            let status = Command::new("/bin/sh").args(["-c", command]).status()?;
            ensure!(status.success(), "the shell ended with {status}");
            return Ok(());
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let words = Words(&words);
        match words.text(0).unwrap_or("#") {
            text if text.starts_with('#') => {}
            "event" => {
                let channel = self.channel(words.text(1)?)?.clone();
                let event = channel.next_event_within(self.patience)?;
                self.take(&event, words.text(2).ok())?;
            }
            "until" => {
                let channel = self.channel(words.text(1)?)?.clone();
                let name = words.text(2)?;
                let mut event = channel.next_event_within(self.patience)?;
                // Whether there are events before it is a matter of timing.
                while event.event_type().name() != name {
                    event = channel.next_event_within(self.patience)?;
                }
                self.take(&event, None)?;
            }
            "silent" => {
                let channel = self.channel(words.text(1)?)?.clone();
                let time = Duration::from_millis(words.number(2)?);
                match channel.next_event_within(time) {
                    Ok(event) => self.take(&event, None)?,
                    Err(error) if matches!(error.cause, Cause::TimedOut { .. }) => {
                        println!("{}", json!({ "line": self.line, "event": "none" }));
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            "paths" => print::paths(self.line, &self.role(words.text(1)?)?.id.paths()?),
            verb => {
                let errno = match self.call(verb, words)? {
                    Ok(()) => 0,
                    Err(error) => {
                        eprintln!("line {}: {error}", self.line);
                        error.errno()
                    }
                };
                let done = json!({ "line": self.line, "call": verb, "errno": errno });
                println!("{done}");
            }
        }
        Ok(())
    }

    fn take(&mut self, event: &Event, name: Option<&str>) -> Result<()> {
        if event.event_type() == EventType::ConnectRequest {
            let name = name.context("a request without a name")?;
            self.add(name, event.id().clone());
        }
        println!(
            "{}",
            print::event(self.line, event, &|id| self.name_of(id), &|qpn| {
                self.owner_of(qpn)
            })
        );
        Ok(())
    }

    /// Executes a command and returns the library's result.
    fn call(&mut self, verb: &str, words: Words<'_>) -> Result<portolan::Result<()>> {
        let name = words.text(1)?;
        match verb {
            "channel" => {
                let opened = EventChannel::open();
                return Ok(opened.map(|channel| {
                    self.channels.insert(name.to_owned(), channel);
                }));
            }
            "id" => {
                let service = service(words.text(3)?);
                let created = CmId::with_service(self.channel(name)?, service);
                let name = words.text(2)?;
                return Ok(created.map(|id| self.add(name, id)));
            }
            "destroy" => {
                let role = self.roles.remove(name);
                let role = role.with_context(|| format!("no id {name}"))?;
                return Ok(role.id.destroy(END_TIMEOUT));
            }
            "qp" => return self.create_queue_pair(name, words.text(2).is_ok()),
            _ => {}
        }
        let id = &self.role(name)?.id;
        Ok(match verb {
            "bind" => id.bind(words.address(2)?.context("an address is missing")?),
            "listen" => id.listen(words.number(2)?),
            "resolve" => {
                let to = words.address(4)?.context("a destination is missing")?;
                id.resolve_addr(words.address(2)?, to, RESOLVE_TIMEOUT)
            }
            "route" => id.resolve_route(RESOLVE_TIMEOUT),
            "connect" => id.connect(&words.param()?),
            "accept" => id.accept(&words.param()?),
            "reject" => id.reject(&words.data(2)?),
            "reject-ece" => id.reject_ece(&words.data(2)?),
            "establish" => id.establish(),
            "disconnect" => id.disconnect(),
            "join" => {
                let kind = match words.text(3)? {
                    "full" => JoinKind::FullMember,
                    _ => JoinKind::SendOnlyFullMember,
                };
                let (group, context) = (words.text(2)?.parse()?, words.number(4)?);
                id.join_multicast(group, kind, context).map(drop)
            }
            "leave" => id.leave_multicast(words.text(2)?.parse()?, END_TIMEOUT),
            "migrate" => id.migrate(self.channel(words.text(2)?)?, END_TIMEOUT),
            "ece" => {
                let (vendor_id, options) = (words.number(2)?, words.number(3)?);
                id.set_local_ece(Ece { vendor_id, options })
            }
            _ => bail!("unknown command {verb}"),
        })
    }

    fn create_queue_pair(&mut self, name: &str, shares: bool) -> Result<portolan::Result<()>> {
        let role = self.roles.get_mut(name);
        let role = role.with_context(|| format!("no id {name}"))?;
        let device = role.id.device()?;
        let pd = device.alloc_pd()?;
        let cq = device.create_cq(4, None, 0)?;
        let shared = SrqAttr {
            max_wr: 4,
            max_sge: 1,
            srq_limit: 0,
        };
        let srq = shares.then(|| pd.create_srq(&shared)).transpose()?;
        let cap = QpCap {
            max_send_wr: 1,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let created = role.id.create_queue_pair(&NewQueuePair {
            pd: &pd,
            send_cq: &cq,
            recv_cq: &cq,
            srq: srq.as_ref(),
            init: QpInit {
                qp_type: role.id.service().qp_type,
                cap,
                sq_sig_all: false,
            },
        });
        Ok(created.map(|qp| {
            role.qp_num = Some(qp.qpn());
            role.queues = Some(Queues { srq, cq, pd });
        }))
    }

    fn add(&mut self, name: &str, id: CmId) {
        let role = Role {
            id,
            qp_num: None,
            queues: None,
        };
        self.roles.insert(name.to_owned(), role);
    }

    fn channel(&self, name: &str) -> Result<&EventChannel> {
        let channel = self.channels.get(name);
        channel.with_context(|| format!("no channel {name}"))
    }

    fn role(&self, name: &str) -> Result<&Role> {
        self.roles
            .get(name)
            .with_context(|| format!("no id {name}"))
    }

    fn name_of(&self, id: &CmId) -> String {
        let mut roles = self.roles.iter();
        let found = roles.find(|(_, role)| role.id.number() == id.number());
        found.map_or("unknown".to_owned(), |(name, _)| name.clone())
    }

    /// Name of the id that owns a queue pair, or the number itself if the scenario made it up.
    fn owner_of(&self, qpn: Qpn) -> String {
        let mut roles = self.roles.iter();
        let found = roles.find(|(_, role)| role.qp_num == Some(qpn));
        found.map_or(qpn.value().to_string(), |(name, _)| format!("of {name}"))
    }
}

/// The words of a line.
#[derive(Clone, Copy)]
struct Words<'a>(&'a [&'a str]);

impl<'a> Words<'a> {
    fn text(self, at: usize) -> Result<&'a str> {
        let word = self.0.get(at).copied();
        word.with_context(|| format!("word {at} is missing"))
    }

    fn number<T: std::str::FromStr<Err: std::error::Error + Send + Sync + 'static>>(
        self,
        at: usize,
    ) -> Result<T> {
        Ok(self.text(at)?.parse()?)
    }

    /// An optional number; 0 if it is missing.
    fn optional(self, at: usize) -> Result<u32> {
        self.0.get(at).map_or(Ok(0), |word| Ok(word.parse()?))
    }

    /// An address and a port; `None` for `-`.
    fn address(self, at: usize) -> Result<Option<SocketAddr>> {
        match self.text(at)? {
            "-" => Ok(None),
            text => {
                let ip: IpAddr = text.parse()?;
                Ok(Some(SocketAddr::new(ip, self.number(at + 1)?)))
            }
        }
    }

    fn data(self, at: usize) -> Result<Box<[u8]>> {
        let text = self.text(at)?;
        let (word, length) = match text.split_once(':') {
            _ if text == "-" => return Ok([].into()),
            Some((word, length)) => (word, length.parse()?),
            None => (text, text.len()),
        };
        Ok(word.bytes().cycle().take(length).collect())
    }

    fn param(self) -> Result<ConnParam> {
        let bits = |at: usize| -> Result<u8> { Ok(self.optional(at)?.try_into()?) };
        Ok(ConnParam {
            private_data: self.data(2)?,
            responder_resources: bits(3)?,
            initiator_depth: bits(4)?,
            flow_control: bits(5)? != 0,
            retry_count: bits(6)?,
            rnr_retry_count: bits(7)?,
            qp_num: Qpn::new(self.optional(8)?),
            srq: bits(9)? != 0,
        })
    }
}

fn service(kind: &str) -> Service {
    let (port_space, qp_type) = match kind {
        "ud" => (PortSpace::Udp, QpType::Ud),
        _ => (PortSpace::Tcp, QpType::Rc),
    };
    Service {
        port_space,
        qp_type,
    }
}
