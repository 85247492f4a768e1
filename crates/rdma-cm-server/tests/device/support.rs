//! A program that writes commands, with memory for the addresses in them.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::{Arc, LazyLock, Mutex};

use portolan::provider::Address;
use portolan::software::{SoftwareConfig, SoftwareProvider};
use portolan_kernel::raw::*;
use portolan_rdma_cm_server::{Channel, Memory, RdmaCm};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// `RDMA_PS_TCP`.
pub(crate) const TCP: u16 = 0x0106;
/// `RDMA_PS_UDP`.
pub(crate) const UDP: u16 = 0x0111;

const PATIENCE: Timespec = Timespec {
    tv_sec: 60,
    tv_nsec: 0,
};

/// Its software device is in a group of its own.
static DEVICE: LazyLock<Arc<RdmaCm>> = LazyLock::new(|| {
    let mut config = SoftwareConfig::default();
    portolan::doc_group(&mut config);
    RdmaCm::new(SoftwareProvider::start(config).unwrap())
});

/// Memory that begins at [`Arena::BASE`].
pub(crate) struct Arena(Mutex<Vec<u8>>);

impl Arena {
    const BASE: u64 = 0x10_0000;

    fn range(&self, address: u64, length: usize) -> Result<std::ops::Range<usize>, Errno> {
        let from = address.checked_sub(Self::BASE).ok_or(Errno::FAULT)? as usize;
        let to = from.checked_add(length).ok_or(Errno::FAULT)?;
        match to <= self.0.lock().unwrap().len() {
            true => Ok(from..to),
            false => Err(Errno::FAULT),
        }
    }
}

impl Memory for Arena {
    fn read(&self, address: u64, length: usize) -> Result<Vec<u8>, Errno> {
        let range = self.range(address, length)?;
        Ok(self.0.lock().unwrap()[range].to_vec())
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Errno> {
        let range = self.range(address, bytes.len())?;
        self.0.lock().unwrap()[range].copy_from_slice(bytes);
        Ok(())
    }
}

/// An open channel of the device.
pub(crate) struct Opened {
    pub(crate) channel: Arc<Channel>,
}

/// Opens a channel.
pub(crate) fn open_channel() -> Opened {
    Opened {
        channel: DEVICE.open().unwrap(),
    }
}

impl Opened {
    /// Writes a command. Memory is one page, with `value` at its beginning.
    pub(crate) fn write(
        &self,
        number: u32,
        command: &[u8],
        out_len: usize,
        value: &[u8],
    ) -> Result<Vec<u8>, Errno> {
        let header = Header {
            cmd: number,
            in_len: command.len() as u16,
            out_len: out_len as u16,
        };
        let mut page = value.to_vec();
        page.resize(4096, 0);
        let memory = Arena(Mutex::new(page));
        let bytes = [&header.to_bytes()[..], command].concat();
        let written = self.channel.write(&bytes, &memory)?;
        assert_eq!(written, bytes.len());
        Ok(memory.0.into_inner().unwrap())
    }

    pub(crate) fn command<C: Command>(&self, command: &C) -> Result<(), Errno> {
        self.write(C::NUMBER, &command.to_bytes(), 0, &[]).map(drop)
    }

    pub(crate) fn ask<Q: Question, A: Fields>(
        &self,
        number: u32,
        mut question: Q,
    ) -> Result<A, Errno> {
        question.set_response(Arena::BASE);
        let answered = self.write(number, &question.to_bytes(), A::SIZE, &[])?;
        Ok(A::from_bytes(&answered))
    }

    pub(crate) fn set_option(
        &self,
        id: u32,
        level: u32,
        optname: u32,
        value: &[u8],
    ) -> Result<(), Errno> {
        let option = SetOption {
            optval: Arena::BASE,
            id,
            level,
            optname,
            optlen: value.len() as u32,
        };
        let written = self.write(number::SET_OPTION, &option.to_bytes(), 0, value);
        written.map(drop)
    }

    pub(crate) fn create(&self, uid: u64, ps: u16) -> u32 {
        let create = CreateId {
            uid,
            ps,
            ..CreateId::zeroed()
        };
        let answer: CreateIdResp = self.ask(number::CREATE_ID, create).unwrap();
        answer.id
    }

    pub(crate) fn destroy(&self, id: u32) -> Result<u32, Errno> {
        let destroy = DestroyId {
            id,
            ..DestroyId::zeroed()
        };
        let answer = self.ask(number::DESTROY_ID, destroy);
        answer.map(|answer: EventsReported| answer.events_reported)
    }

    pub(crate) fn bind(&self, id: u32, address: &str) -> Result<(), Errno> {
        let (addr, addr_size) = storage(address);
        self.command(&Bind {
            id,
            addr_size,
            reserved: 0,
            addr,
        })
    }

    pub(crate) fn resolve(&self, id: u32, destination: &str) -> Result<(), Errno> {
        let (dst_addr, dst_size) = storage(destination);
        self.command(&ResolveAddr {
            id,
            timeout_ms: 2000,
            src_size: 0,
            dst_size,
            reserved: 0,
            src_addr: [0; 128],
            dst_addr,
        })
    }

    pub(crate) fn query<A: Fields>(&self, id: u32, option: u32) -> Result<A, Errno> {
        let query = Query {
            id,
            option,
            ..Query::zeroed()
        };
        self.ask(number::QUERY, query)
    }

    /// The port of a bound id.
    pub(crate) fn port(&self, id: u32) -> u16 {
        let known: QueryAddrResp = self.query(id, QUERY_ADDR).unwrap();
        u16::from_be_bytes([known.src_addr[2], known.src_addr[3]])
    }

    /// The next event, which must arrive in time.
    pub(crate) fn event(&self) -> EventResp {
        let mut fds = [PollFd::new(&self.channel, PollFlags::IN)];
        assert_eq!(poll(&mut fds, Some(&PATIENCE)), Ok(1), "no event");
        self.get_event().unwrap()
    }

    /// The next event, of this type and without error.
    pub(crate) fn expect(&self, event: u32) -> EventResp {
        let found = self.event();
        assert_eq!((found.event, found.status), (event, 0), "{found:?}");
        found
    }

    pub(crate) fn get_event(&self) -> Result<EventResp, Errno> {
        self.ask(number::GET_EVENT, GetEvent::zeroed())
    }

    pub(crate) fn is_ready(&self) -> bool {
        let mut fds = [PollFd::new(&self.channel, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())) == Ok(1)
    }

    pub(crate) fn make_nonblocking(&self) {
        let flags = rustix::fs::OFlags::NONBLOCK;
        rustix::fs::fcntl_setfl(self.channel.as_fd(), flags).unwrap();
    }

    /// A listener on loopback, and its port.
    pub(crate) fn listener(&self, uid: u64, ps: u16) -> (u32, u16) {
        let id = self.create(uid, ps);
        self.bind(id, "127.0.0.1:0").unwrap();
        self.command(&Listen { id, backlog: 4 }).unwrap();
        (id, self.port(id))
    }

    /// An id with a resolved route to a port of loopback.
    pub(crate) fn caller(&self, uid: u64, ps: u16, port: u16) -> u32 {
        let id = self.create(uid, ps);
        self.resolve(id, &format!("127.0.0.1:{port}")).unwrap();
        self.expect(ADDR_RESOLVED);
        let timeout_ms = 2000;
        self.command(&ResolveRoute { id, timeout_ms }).unwrap();
        self.expect(ROUTE_RESOLVED);
        id
    }
}

/// Numbers of `enum rdma_cm_event_type`.
pub(crate) const ADDR_RESOLVED: u32 = 0;
pub(crate) const ROUTE_RESOLVED: u32 = 2;
pub(crate) const CONNECT_REQUEST: u32 = 4;
pub(crate) const CONNECT_RESPONSE: u32 = 5;
pub(crate) const REJECTED: u32 = 8;
pub(crate) const ESTABLISHED: u32 = 9;
pub(crate) const DISCONNECTED: u32 = 10;
pub(crate) const MULTICAST_JOIN: u32 = 12;
pub(crate) const USER: u32 = 18;

pub(crate) fn storage(address: &str) -> (Storage, u16) {
    let address: SocketAddr = address.parse().unwrap();
    let bytes = Address::Inet(address).to_sockaddr();
    let mut storage = [0; 128];
    storage[..bytes.len()].copy_from_slice(&bytes);
    (storage, bytes.len() as u16)
}

/// Parameters that name a queue pair and carry private data.
pub(crate) fn param(qp_num: u32, data: &[u8]) -> ConnParam {
    let mut param = ConnParam {
        qp_num,
        private_data_len: data.len() as u8,
        responder_resources: 2,
        initiator_depth: 1,
        retry_count: 7,
        rnr_retry_count: 7,
        valid: 1,
        ..ConnParam::zeroed()
    };
    param.private_data[..data.len()].copy_from_slice(data);
    param
}
