//! A flood: strangers send connection requests that they never confirm, while honest clients
//! connect. The listener closes and reopens during the flood. It is part of every fourth seed, with
//! its own engines.
//!
//! Checks:
//!
//! - At most the configured number of connections is half-open.
//! - A displaced request is never reported to the server's program.
//! - Each honest client gets its connection.
//! - Nothing is left at the end.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use portolan_cm::{BoundDevice, Cm, Config, MadPath, Query, ResolvedAddress, State, TableSizes};
use portolan_provider::cm::{
    CmEvent, ConnParam, Ece, EventParam, EventType, IdNumber, Service, UserId,
};
use portolan_provider::verbs::{Mtu, QpType};
use portolan_wire::cm::{CmMessage, PathMtu, PathRepr, PrivateData, ReqRepr};
use portolan_wire::cma::CmaHeader;
use portolan_wire::mad::MAD_LEN;
use portolan_wire::{Gid, PKey, PortSpace, Qpn, ServiceId};

use super::failure::{Violation, ensure, violation};
use super::plan::Class;
use super::report::Tally;
use super::rng::Rng;

const SERVICE: Service = Service {
    port_space: PortSpace::Tcp,
    qp_type: QpType::Rc,
};
const LISTENER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 9, 0, 1)), 7471);
const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 0, 2));
/// Start of the private data of honest clients.
const HONEST: &[u8] = b"honest ";
/// Longer than any handshake here.
const GRACE: Duration = Duration::from_millis(40);
/// How long the server's program takes no events at the start: requests are displaced before it
/// takes them.
const STALL: Duration = Duration::from_millis(150);
/// A client repeats its REQ within this time.
const FIRST_REPEAT: Duration = Duration::from_secs(1);
/// Limit on steps, to detect a flood that does not end.
const STEPS_MAX: u32 = 200_000;
/// Start time of the clock.
const BEGAN: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(2);
/// User id of the server's listener.
const LISTENER_UID: UserId = UserId(1);

#[derive(Debug)]
struct Plan {
    config: Config,
    places: usize,
    /// Time between forged requests.
    interval: Duration,
    /// Number of forged source hosts.
    strangers: u64,
    ends_at: Duration,
    /// When the listener closes, and when it reopens.
    closed: (Duration, Duration),
    latency_us_max: u64,
    reaction_us_max: u64,
    /// Lost REQs and REPs, per thousand.
    lost_permille: u64,
}

impl Plan {
    fn draw(rng: &mut Rng, class: Class) -> Self {
        // Fewer than ten honest clients connect at a time: less than half of the places.
        let places = rng.between(20, 40) as usize;
        let config = Config {
            max_half_open_per_listener: places,
            max_half_open: rng.pick(&[places, 4096]),
            half_open_grace: GRACE,
            ..Config::default()
        };
        let closes_at = rng.millis(2000, 3000);
        Self {
            places,
            // At this rate some half-open connections are always older than the grace period.
            interval: GRACE * 2 / places as u32 + rng.micros(0, 4000),
            strangers: rng.pick(&[1, 2, 1000]),
            ends_at: closes_at + rng.millis(1000, 2000),
            closed: (closes_at, closes_at + rng.millis(1, 900)),
            latency_us_max: rng.pick(&[10, 1000, 4000]),
            reaction_us_max: rng.pick(&[0, 100, 4000]),
            lost_permille: match class {
                Class::Calm => 0,
                Class::Lossy | Class::Chaos => rng.pick(&[0, 20, 200]),
            },
            config,
        }
    }
}

#[derive(Debug)]
enum Task {
    /// A message arrives at the server or at the client.
    Arrive(Side, IpAddr, Box<[u8; MAD_LEN]>),
    Forge(u32),
    Connect(u64),
    Close,
    Open,
    /// The server's program takes an event.
    Take,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Server,
    Client,
}

#[derive(Debug)]
pub(super) struct Flood {
    now: Duration,
    rng: Rng,
    plan: Plan,
    agenda: BTreeMap<(Duration, u64), Task>,
    next_task: u64,
    server: Cm,
    client: Cm,
    listener: Option<IdNumber>,
    /// Events that the server's program has not taken.
    waiting: VecDeque<CmEvent>,
    next_uid: u64,
    attempts: u64,
    /// Attempts that are connected at the client and at the server.
    connected: [BTreeSet<u64>; 2],
    /// The attempts of honest clients, by the server's child id.
    honest: BTreeMap<IdNumber, u64>,
}

fn device(ip: IpAddr) -> BoundDevice {
    BoundDevice {
        device_index: 0,
        port_num: 1,
        sgid_index: 0,
        sgid: Gid::from(ip),
        node_guid: if ip == CLIENT { 2 } else { 1 },
        mtu: Mtu::Mtu1024,
        ack_delay_exp: 15,
    }
}

fn param(qpn: u32, private_data: Vec<u8>) -> ConnParam {
    ConnParam {
        private_data: private_data.into(),
        qp_num: Qpn::new(qpn),
        ..ConnParam::default()
    }
}

impl Flood {
    pub(super) fn new(rng: &mut Rng, class: Class) -> Self {
        let plan = Plan::draw(rng, class);
        let mut engine = || Cm::new(plan.config.clone(), rng.seed_32());
        let (server, client) = (engine(), engine());
        Self {
            now: BEGAN,
            rng: rng.fork(),
            agenda: BTreeMap::new(),
            next_task: 0,
            server,
            client,
            listener: None,
            waiting: VecDeque::new(),
            next_uid: 100,
            attempts: 0,
            connected: Default::default(),
            honest: BTreeMap::new(),
            plan,
        }
    }

    /// Runs the flood, then destroys everything and checks that nothing is left.
    pub(super) fn run(&mut self, tally: &mut Tally) -> Result<(), Violation> {
        self.open()?;
        self.plan_task(Duration::ZERO, Task::Forge(0));
        let (close_at, open_at) = self.plan.closed;
        self.plan_task(close_at, Task::Close);
        self.plan_task(open_at, Task::Open);
        self.plan_connects();
        self.settle()?;
        for (side, connected) in ["client", "server"].into_iter().zip(&self.connected) {
            let lost = (0..self.attempts).find(|attempt| !connected.contains(attempt));
            ensure!(
                lost.is_none(),
                "the {side} of honest attempt {lost:?} of {} amid a flood was not connected",
                self.attempts
            );
        }
        let displaced = self
            .server
            .counters()
            .dropped(portolan_cm::DropReason::Displaced);
        tally.add("half-open connection displaced", displaced);
        tally.add("honest connection amid a flood", self.attempts);
        self.close()?;
        self.settle()?;
        for (name, cm) in [("server", &self.server), ("client", &self.client)] {
            let sizes = cm.table_sizes();
            let expected = TableSizes {
                remembered: sizes.remembered,
                rejections: sizes.rejections,
                ..TableSizes::default()
            };
            let limit = self.plan.config.max_timewait_remembered;
            ensure!(
                sizes == expected && sizes.rejections <= limit,
                "the flooded {name} still holds {sizes:?}"
            );
        }
        Ok(())
    }

    /// Schedules honest clients during the flood and while the listener is closed. None connects
    /// just before the listener closes, since it would be rejected. A client that connects together
    /// with others of its address may find no place, and needs time to repeat its REQ.
    fn plan_connects(&mut self) {
        let (close_at, open_at) = self.plan.closed;
        let tick = Duration::from_micros(1);
        // Leave time for the slowest handshake.
        let wait = self.plan.config.listener_wait - GRACE;
        let spans = [
            (STALL * 2, close_at - FIRST_REPEAT - GRACE * 2),
            (open_at.saturating_sub(wait).max(close_at + tick), open_at),
            (open_at, self.plan.ends_at),
        ];
        for (from, to) in spans {
            for _ in 0..self.rng.between(1, 4) {
                let length = (to - from).as_micros() as u64;
                let at = from + self.rng.micros(0, length);
                self.plan_task(at, Task::Connect(self.attempts));
                self.attempts += 1;
            }
        }
    }

    fn plan_task(&mut self, after: Duration, task: Task) {
        self.next_task += 1;
        self.agenda.insert((self.now + after, self.next_task), task);
    }

    fn settle(&mut self) -> Result<(), Violation> {
        for _ in 0..STEPS_MAX {
            let timers = [self.server.poll_timeout(), self.client.poll_timeout()];
            let timer = timers.into_iter().flatten().min();
            let task = self.agenda.first_key_value().map(|((at, _), _)| *at);
            let Some(next) = timer.into_iter().chain(task).min() else {
                return Ok(());
            };
            self.now = self.now.max(next);
            match self.agenda.first_entry() {
                Some(entry) if entry.key().0 <= self.now => {
                    let task = entry.remove();
                    self.carry_out(task)?;
                }
                _ => {
                    self.server.handle_timeout(self.now);
                    self.client.handle_timeout(self.now);
                }
            }
            self.drain()?;
            self.check()?;
        }
        Err(violation!("the flood does not end"))
    }

    fn check(&self) -> Result<(), Violation> {
        let half_open = |state| {
            let states = [State::ReqRcvd, State::RepSent, State::MraRepRcvd];
            states.contains(&state)
        };
        let count = self
            .server
            .ids()
            .filter(|(_, state)| half_open(*state))
            .count();
        // The closed listener's connections take no places of the next listener, but they count in
        // the total.
        let places = self.plan.config.max_half_open.min(self.plan.places * 2);
        ensure!(
            count <= places,
            "{count} connections are half-open, the limit is {places}"
        );
        Ok(())
    }

    fn carry_out(&mut self, task: Task) -> Result<(), Violation> {
        match task {
            Task::Arrive(side, from, mad) => {
                let (cm, local) = match side {
                    Side::Server => (&mut self.server, LISTENER.ip()),
                    Side::Client => (&mut self.client, CLIENT),
                };
                let path = MadPath {
                    local,
                    remote: from,
                    scope_id: 0,
                    device: device(local),
                    lids: None,
                };
                cm.handle_mad(self.now, &path, &mad[..]);
                Ok(())
            }
            Task::Forge(number) => {
                self.forge(number);
                Ok(())
            }
            Task::Connect(attempt) => self.connect(attempt),
            Task::Close => self.close(),
            Task::Open => self.open(),
            Task::Take => self.take(),
        }
    }

    fn open(&mut self) -> Result<(), Violation> {
        let failed = |error: portolan_provider::Error| violation!("no listener: {error}");
        let cm = &mut self.server;
        let id = cm.create_id(LISTENER_UID, SERVICE).map_err(failed)?;
        let bound = cm.bind(self.now, id, LISTENER, Some(device(LISTENER.ip())));
        bound.map_err(failed)?;
        cm.listen(self.now, id, 0).map_err(failed)?;
        self.listener = Some(id);
        Ok(())
    }

    /// Closes the listener. Requests that were not taken go with it.
    fn close(&mut self) -> Result<(), Violation> {
        let Some(id) = self.listener.take() else {
            return Ok(());
        };
        self.waiting
            .retain(|event| event.event != EventType::ConnectRequest);
        let destroyed = self.server.destroy_id(self.now, id);
        destroyed.map_err(|error| violation!("the listener: {error}"))
    }

    /// Sends a request that will never be confirmed.
    fn forge(&mut self, number: u32) {
        if self.now >= BEGAN + self.plan.ends_at {
            return;
        }
        let interval = self.plan.interval;
        self.plan_task(interval, Task::Forge(number + 1));
        // Without a listener, the few places for requests that wait for one are left to the
        // clients.
        if self.listener.is_none() {
            return;
        }
        let [a, b] = (self.rng.below(self.plan.strangers) as u16).to_be_bytes();
        let from = IpAddr::from([10, 66, a, b]);
        let mut private_data = [0; 92];
        if let Some(header) = CmaHeader::new(from, 1, LISTENER.ip()) {
            // The buffer has exactly the field's length.
            let _ = header.emit(&mut private_data);
        }
        let req = ReqRepr {
            local_comm_id: number,
            service_id: ServiceId::from_port(SERVICE.port_space, LISTENER.port()),
            local_ca_guid: 66,
            local_qpn: Qpn::new(0x100 + number),
            local_cm_response_timeout: self.rng.between(0, 20) as u8,
            max_cm_retries: self.rng.between(0, 15) as u8,
            pkey: PKey::DEFAULT,
            path_mtu: PathMtu(3),
            primary: PathRepr {
                local_gid: Gid::from(from),
                remote_gid: Gid::from(LISTENER.ip()),
                hop_limit: 64,
                ..PathRepr::default()
            },
            private_data: PrivateData::new(private_data),
            ..ReqRepr::default()
        };
        let mut mad = Box::new([0; MAD_LEN]);
        if CmMessage::from(req).emit(number.into(), &mut mad).is_ok() {
            self.plan_task(Duration::ZERO, Task::Arrive(Side::Server, from, mad));
        }
    }

    fn connect(&mut self, attempt: u64) -> Result<(), Violation> {
        let failed = |error: portolan_provider::Error| violation!("attempt {attempt}: {error}");
        let id = self
            .client
            .create_id(UserId(attempt), SERVICE)
            .map_err(failed)?;
        let resolving = self
            .client
            .resolve_addr(self.now, id, None, LISTENER, TIMEOUT);
        resolving.map_err(failed)
    }

    /// Takes the outputs of both engines.
    fn drain(&mut self) -> Result<(), Violation> {
        while let Some(Query::Address { id, query, .. }) = self.client.poll_query() {
            let answer = ResolvedAddress {
                source: SocketAddr::new(CLIENT, 40_000),
                destination: LISTENER,
                device: device(CLIENT),
                dgid: Gid::from(LISTENER.ip()),
                hop_limit: 64,
                neighbour: None,
            };
            let answered = self
                .client
                .address_resolved(self.now, id, query, Ok(answer));
            answered.map_err(|error| violation!("{error}"))?;
        }
        while let Some(event) = self.client.poll_event() {
            self.client_hears(&event)?;
        }
        while let Some(event) = self.server.poll_event() {
            self.waiting.push_back(event);
            let reaction = self.rng.micros(0, self.plan.reaction_us_max);
            let stalled = (BEGAN + STALL).saturating_sub(self.now);
            self.plan_task(stalled + reaction, Task::Take);
        }
        while let Some(displaced) = self.server.poll_displaced() {
            self.waiting.retain(|event| event.id != displaced);
        }
        for side in [Side::Server, Side::Client] {
            self.transmit(side);
        }
        Ok(())
    }

    fn transmit(&mut self, from: Side) {
        let (cm, to) = match from {
            Side::Server => (&mut self.server, Side::Client),
            Side::Client => (&mut self.client, Side::Server),
        };
        let mut sent = Vec::new();
        while let Some(transmit) = cm.poll_transmit() {
            sent.push(transmit);
        }
        for transmit in sent {
            // The forged hosts do not exist. Only REQs and REPs are lost: a client whose RTU is
            // lost may be displaced, and learns that only when it sends data.
            let is_known = [CLIENT, LISTENER.ip()].contains(&transmit.path.remote);
            let message = CmMessage::parse(&transmit.mad);
            let may_be_lost = matches!(message, Ok((_, CmMessage::Req(_) | CmMessage::Rep(_))));
            let is_lost = self.rng.below(1000) < self.plan.lost_permille;
            if is_known && !(may_be_lost && is_lost) {
                let latency = self.rng.micros(1, self.plan.latency_us_max);
                let mad = Box::new(transmit.mad);
                self.plan_task(latency, Task::Arrive(to, transmit.path.local, mad));
            }
        }
    }

    fn client_hears(&mut self, event: &CmEvent) -> Result<(), Violation> {
        let (id, attempt, now) = (event.id, event.uid.0, self.now);
        let cm = &mut self.client;
        let done = match event.event {
            EventType::AddrResolved => cm.resolve_route(now, id, TIMEOUT),
            EventType::RouteResolved => {
                let name = [HONEST, &attempt.to_be_bytes()].concat();
                let param = param(0x1000 + attempt as u32, name);
                cm.connect(now, id, &param, Ece::default())
            }
            EventType::ConnectResponse => {
                self.connected[0].insert(attempt);
                cm.establish(now, id)
            }
            // Its REP was lost and it was displaced before the next one: retry.
            EventType::Rejected if self.plan.lost_permille > 0 => {
                self.plan_task(TIMEOUT, Task::Connect(attempt));
                self.client.destroy_id(now, id)
            }
            EventType::Disconnected => {
                let ended = cm.disconnect(now, id);
                ended.and_then(|()| cm.destroy_id(now, id))
            }
            other => Err(violation!(
                "honest attempt {attempt} amid a flood ended in {other}, status {}",
                event.status
            ))?,
        };
        done.map_err(|error| violation!("attempt {attempt}, {}: {error}", event.event))
    }

    /// The server's program takes an event. It accepts every request and disconnects every
    /// established connection.
    fn take(&mut self) -> Result<(), Violation> {
        let Some(event) = self.waiting.pop_front() else {
            return Ok(());
        };
        let (id, now) = (event.id, self.now);
        let cm = &mut self.server;
        let done = match event.event {
            EventType::ConnectRequest => {
                ensure!(
                    cm.state(id).is_ok(),
                    "{id} was displaced, but its request is reported"
                );
                cm.request_taken(id);
                let EventParam::Conn(conn) = &event.param else {
                    return Err(violation!("a request without parameters"));
                };
                let name = conn.private_data.strip_prefix(HONEST);
                if let Some(attempt) = name.and_then(|name| name.first_chunk()) {
                    self.honest.insert(id, u64::from_be_bytes(*attempt));
                }
                self.next_uid += 1;
                let param = param(self.next_uid as u32, Vec::new());
                cm.accept(now, id, UserId(self.next_uid), &param, Ece::default())
            }
            EventType::Established => {
                let attempt = self.honest.get(&id);
                let attempt =
                    attempt.ok_or_else(|| violation!("a stranger confirmed its connection"))?;
                self.connected[1].insert(*attempt);
                cm.disconnect(now, id)
            }
            EventType::Unreachable | EventType::Disconnected | EventType::Rejected => {
                self.honest.remove(&id);
                cm.destroy_id(now, id)
            }
            other => Err(violation!("{other} came to the server of a flood"))?,
        };
        done.map_err(|error| violation!("{id}, {}: {error}", event.event))
    }
}
