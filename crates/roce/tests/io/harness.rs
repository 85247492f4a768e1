//! A stack, and one end of a connection.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use portolan_port_sharing::{
    Block, CoordinatorService, Datagram, GroupConfig, MemberService, Route,
};
use portolan_provider::address::ip_to_gid;
use portolan_provider::traits::{CompChannel, Cq, Device, HostMemory, Mr, Pd, Qp};
use portolan_provider::verbs::{
    Access, AhAttr, Mtu, QpAttr, QpAttrMask, QpCap, QpInit, QpState, QpType, RecvWr, RemoteAddr,
    SendData, SendFlags, SendOp, SendWr, Sge, WcStatus, WorkCompletion,
};
use portolan_roce::io::{Gsi, ReceivedMad, Stack, StackConfig};
use portolan_wire::{Psn, Qpn};

/// Longer than anything takes here; a test fails when it is reached.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// These tests run twice: over sockets as `io`, and over shared memory links as `io_memory`.
const BY_MEMORY: bool = env!("CARGO_CRATE_NAME").len() == "io_memory".len();

/// A configuration that no other test or program on this machine uses.
pub fn config() -> StackConfig {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    StackConfig {
        group: GroupConfig {
            port: free_port(),
            name_prefix: format!("portolan-io-{}-{number}", std::process::id()),
            ..GroupConfig::default()
        },
        local_memory: BY_MEMORY,
        ..StackConfig::default()
    }
}

/// A free UDP port below the source ports of the kernel and the stacks.
fn free_port() -> u16 {
    const PORTS: std::ops::Range<u16> = 10_000..32_000;
    static NEXT: AtomicU64 = AtomicU64::new(0);
    loop {
        // Concurrent runs of this program begin at different ports.
        let step = NEXT.fetch_add(1, Ordering::Relaxed) + u64::from(std::process::id()) * 101;
        let port = PORTS.start + (step % u64::from(PORTS.end - PORTS.start)) as u16;
        if UdpSocket::bind(("0.0.0.0", port)).is_ok() && UdpSocket::bind(("::", port)).is_ok() {
            return port;
        }
    }
}

/// Runs the ignored test with this full name in a separate process.
pub fn pass_in_own_process(test: &str) {
    let ended = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", test])
        .output()
        .unwrap();
    assert!(
        ended.status.success(),
        "{}",
        String::from_utf8_lossy(&ended.stdout)
    );
}

/// A stack without a QP1 service.
pub fn stack(config: &StackConfig) -> Arc<Stack> {
    let nobody = Arc::new(Nobody);
    Stack::start(config.clone(), nobody.clone(), Box::new(Nobody), nobody).unwrap()
}

#[derive(Debug)]
pub struct Nobody;

impl Gsi for Nobody {
    fn mad(&self, _: ReceivedMad<'_>) {}
    fn next_timeout(&self) -> Option<Duration> {
        None
    }
    fn timeout(&self) {}
}

impl CoordinatorService for Nobody {
    fn reset(&mut self) {}
    fn request(&mut self, _: Block, _: &[u8]) -> Vec<u8> {
        Vec::new()
    }
    fn member_left(&mut self, _: Block) {}
    fn route(&mut self, _: &Datagram<'_>) -> Route {
        Route::Drop
    }
}

impl MemberService for Nobody {
    fn replay(&self) -> Vec<Vec<u8>> {
        Vec::new()
    }
}

/// One end of a connection, with memory.
pub struct End {
    pub ip: IpAddr,
    pub device: Arc<dyn Device>,
    pub pd: Arc<dyn Pd>,
    pub channel: Arc<dyn CompChannel>,
    pub cq: Arc<dyn Cq>,
    pub qp: Arc<dyn Qp>,
    pub mr: Arc<dyn Mr>,
    pub memory: Memory,
}

/// Memory that a device may write to while the test reads it.
pub struct Memory {
    start: *mut u8,
    len: usize,
    /// The device's, which other processes may reach by themselves.
    pub pages: Option<Arc<dyn HostMemory>>,
}

// SAFETY: the bytes are accessed only by volatile operations and copies through the raw pointer.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub fn new(len: usize) -> Self {
        Self {
            start: Box::leak(vec![0u8; len].into_boxed_slice()).as_mut_ptr(),
            len,
            pages: None,
        }
    }

    fn in_file(pages: Arc<dyn HostMemory>) -> Self {
        Self {
            start: std::ptr::with_exposed_provenance_mut(pages.addr() as usize),
            len: pages.len(),
            pages: Some(pages),
        }
    }

    /// Registers all of it.
    pub fn register(&self, pd: &Arc<dyn Pd>, access: Access) -> Arc<dyn Mr> {
        // SAFETY: the memory outlives the region (`End` drops `mr` before `memory`).
        let registered = unsafe {
            match &self.pages {
                Some(pages) => pd.register_memory(pages, access),
                None => pd.register(self.addr(), self.len as u64, access),
            }
        };
        registered.unwrap()
    }

    #[allow(clippy::len_without_is_empty, reason = "a test")]
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn addr(&self) -> u64 {
        self.start.expose_provenance() as u64
    }

    pub fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        // SAFETY: in bounds.
        unsafe { self.start.add(at).copy_from(bytes.as_ptr(), bytes.len()) };
    }

    pub fn read(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.len);
        let mut bytes = vec![0; len];
        // SAFETY: in bounds.
        unsafe { self.start.add(at).copy_to(bytes.as_mut_ptr(), len) };
        bytes
    }

    pub fn byte(&self, at: usize) -> u8 {
        assert!(at < self.len);
        // SAFETY: in bounds.
        unsafe { self.start.add(at).read_volatile() }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.pages.is_some() {
            return;
        }
        let bytes = std::ptr::slice_from_raw_parts_mut(self.start, self.len);
        // SAFETY: leaked from a box of this length in `new`; the regions are gone, because `End` drops them
        // first.
        drop(unsafe { Box::from_raw(bytes) });
    }
}

pub const ALL_RIGHTS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_ATOMIC);

/// Parameters of a connection.
#[derive(Clone, Copy)]
pub struct Shape {
    pub memory: usize,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub cqe: u32,
    pub depth: u32,
    /// Pieces of a send, at most.
    pub pieces: u32,
    /// Memory of the device's, if it has such.
    pub in_file: bool,
}

/// The usual way to connect.
pub const PATIENT: Shape = Shape {
    memory: 1 << 20,
    timeout: 17,
    retry_cnt: 7,
    rnr_retry: 7,
    cqe: 256,
    depth: 64,
    pieces: 4,
    in_file: true,
};

impl Default for Shape {
    fn default() -> Self {
        PATIENT
    }
}

impl End {
    pub fn new(stack: &Stack, ip: IpAddr, shape: Shape) -> Self {
        Self::of_type(stack, ip, shape, QpType::Rc)
    }

    /// An end whose queue pair is RC or UC.
    pub fn of_type(stack: &Stack, ip: IpAddr, shape: Shape, qp_type: QpType) -> Self {
        let (device, _) = stack.device_of(ip, 0).expect("no device has the address");
        let device: Arc<dyn Device> = device;
        let pd = device.alloc_pd().unwrap();
        let channel = device.create_comp_channel().unwrap();
        let cq = device.create_cq(shape.cqe, Some(&channel), 77).unwrap();
        let init = QpInit {
            qp_type,
            cap: QpCap {
                max_send_wr: shape.depth,
                max_recv_wr: shape.depth,
                max_send_sge: shape.pieces,
                max_recv_sge: 4,
                max_inline_data: 256,
            },
            sq_sig_all: false,
        };
        let qp = pd.create_qp(&init, &cq, &cq, None).unwrap();
        let pages = shape.in_file.then(|| pd.alloc_memory(shape.memory));
        let memory = match pages.flatten() {
            Some(pages) => Memory::in_file(pages),
            None => Memory::new(shape.memory),
        };
        let mr = memory.register(&pd, ALL_RIGHTS);
        Self {
            ip,
            device,
            pd,
            channel,
            cq,
            qp,
            mr,
            memory,
        }
    }

    /// Moves to RTS, connected to a queue pair at `to`.
    pub fn connect(&self, to: IpAddr, qpn: Qpn, shape: Shape) {
        self.connect_qp(&self.qp, to, qpn, shape);
    }

    /// Connects another queue pair of this end.
    pub fn connect_qp(&self, qp: &Arc<dyn Qp>, to: IpAddr, qpn: Qpn, shape: Shape) {
        self.connect_to(qp, to, qpn, shape, QpState::Rts);
    }

    /// Moves a queue pair through the states up to `last`.
    pub fn connect_to(&self, qp: &Arc<dyn Qp>, to: IpAddr, qpn: Qpn, shape: Shape, last: QpState) {
        let sgid = ip_to_gid(self.ip);
        let gids = self.device.gids(1).unwrap();
        let slot = gids.iter().find(|entry| entry.gid == sgid).unwrap().index;
        let attr = QpAttr {
            state: QpState::Init,
            access: ALL_RIGHTS,
            path_mtu: Mtu::Mtu4096,
            dest_qpn: qpn,
            rq_psn: Psn::new(0xff_fff0),
            sq_psn: Psn::new(0xff_fff0),
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 12,
            timeout: shape.timeout,
            retry_cnt: shape.retry_cnt,
            rnr_retry: shape.rnr_retry,
            ah_attr: AhAttr {
                dgid: ip_to_gid(to),
                sgid_index: slot as u8,
                ..QpAttr::default().ah_attr
            },
            ..QpAttr::default()
        };
        use QpAttrMask as M;
        let to_init = M::STATE | M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS;
        qp.modify(&attr, to_init).unwrap();
        let qp_type = qp.query().unwrap().1.qp_type;
        let mut to_rtr = M::STATE | M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
        let mut to_rts = M::STATE | M::SQ_PSN;
        if matches!(qp_type, QpType::Rc | QpType::XrcRecv) {
            to_rtr |= M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
        }
        if qp_type != QpType::Uc {
            to_rts |= M::TIMEOUT;
        }
        if matches!(qp_type, QpType::Rc | QpType::XrcSend) {
            to_rts |= M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
        }
        for (state, mask) in [(QpState::Rtr, to_rtr), (QpState::Rts, to_rts)] {
            if state <= last {
                qp.modify(&QpAttr { state, ..attr }, mask).unwrap();
            }
        }
    }

    pub fn sge(&self, at: usize, len: usize) -> Sge {
        let addr = self.memory.addr() + at as u64;
        Sge {
            addr,
            length: len as u32,
            lkey: self.mr.lkey(),
        }
    }

    pub fn remote(&self, at: usize) -> RemoteAddr {
        RemoteAddr {
            addr: self.memory.addr() + at as u64,
            rkey: self.mr.rkey(),
        }
    }

    pub fn post(&self, wr_id: u64, op: SendOp, sge: Sge) {
        self.post_pieces(wr_id, op, &[sge]);
    }

    pub fn post_pieces(&self, wr_id: u64, op: SendOp, pieces: &[Sge]) {
        self.qp
            .post_send(&SendWr {
                wr_id,
                op,
                data: SendData::Sges(pieces),
                flags: SendFlags::SIGNALED,
                ud: None,
                srq: None,
            })
            .unwrap();
    }

    pub fn receive(&self, wr_id: u64, sge: Sge) {
        self.qp
            .post_recv(&RecvWr {
                wr_id,
                sges: &[sge],
            })
            .unwrap();
    }

    /// The next completion, by polling.
    pub fn poll(&self) -> WorkCompletion {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(wc) = self.try_poll() {
                return wc;
            }
        }
        panic!("no completion within {PATIENCE:?}");
    }

    pub fn try_poll(&self) -> Option<WorkCompletion> {
        let mut out = [WorkCompletion::EMPTY];
        (self.cq.poll(&mut out).unwrap() == 1).then(|| out[0])
    }

    /// The next completion, asleep until the channel has an event.
    pub fn wait(&self) -> WorkCompletion {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(wc) = self.try_poll() {
                return wc;
            }
            self.cq.arm(false).unwrap();
            if let Some(wc) = self.try_poll() {
                return wc;
            }
            // The poll after arming counts as polling, so the thread must take over by itself.
            self.sleep(deadline);
        }
    }

    pub fn sleep(&self, deadline: Instant) {
        use rustix::event::{PollFd, PollFlags, poll};
        let left = deadline.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::from_borrowed_fd(
            self.channel.as_fd(),
            PollFlags::IN,
        )];
        let ready = poll(&mut fds, Some(&left.try_into().unwrap())).unwrap();
        assert_eq!(ready, 1, "no event within {PATIENCE:?}");
        assert_eq!(self.channel.take_event().unwrap(), Some(77));
    }

    pub fn expect(&self, wr_id: u64) -> WorkCompletion {
        expect(self.poll(), wr_id)
    }
}

pub fn expect(wc: WorkCompletion, wr_id: u64) -> WorkCompletion {
    assert_eq!((wc.status, wc.wr_id), (WcStatus::Success, wr_id), "{wc:?}");
    wc
}

/// Two connected ends on separate stacks.
pub struct Pair {
    pub a: End,
    pub b: End,
    pub stacks: [Arc<Stack>; 2],
    pub config: StackConfig,
}

impl Pair {
    pub fn new(ip: &str, shape: Shape) -> Self {
        Self::with(config(), ip, shape)
    }

    pub fn with(config: StackConfig, ip: &str, shape: Shape) -> Self {
        Self::of([config.clone(), config], ip, shape)
    }

    /// A pair of stacks of different configurations.
    pub fn of(configs: [StackConfig; 2], ip: &str, shape: Shape) -> Self {
        let stacks = configs.each_ref().map(stack);
        let [config, _] = configs;
        let ip = ip.parse().unwrap();
        let (a, b) = (
            End::new(&stacks[0], ip, shape),
            End::new(&stacks[1], ip, shape),
        );
        a.connect(ip, b.qp.qpn(), shape);
        b.connect(ip, a.qp.qpn(), shape);
        Self {
            a,
            b,
            stacks,
            config,
        }
    }
}

/// Spins until `is_so` returns true.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        std::hint::spin_loop();
    }
}

/// Bytes that depend on their offset.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 56) as u8
        })
        .collect()
}

/// The destination address of a packet.
pub fn target(config: &StackConfig, ip: IpAddr) -> SocketAddr {
    SocketAddr::new(ip, config.group.port)
}
