//! Packets that no stack of ours sends, but that pass a receiver's first checks.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

use portolan::wire::bth::Opcode;
use portolan::wire::cm::{CmMessage, PathMtu, PathRepr, PrivateData, ReqRepr};
use portolan::wire::cma::CmaHeader;
use portolan::wire::eth::DethRepr;
use portolan::wire::icrc::{self, Flow};
use portolan::wire::mad::MAD_LEN;
use portolan::wire::rocev2::{Headers, ICRC_LEN};
use portolan::wire::{Gid, PKey, PortSpace, Psn, QKey, Qpn, ServiceId};

/// A source of the flood: an address of this host with a port from the kernel.
pub(super) struct Source {
    socket: UdpSocket,
    address: SocketAddr,
}

impl Source {
    pub(super) fn new(ip: Ipv4Addr) -> Self {
        let socket = UdpSocket::bind((ip, 0)).unwrap();
        let address = socket.local_addr().unwrap();
        Self { socket, address }
    }

    pub(super) fn ip(&self) -> IpAddr {
        self.address.ip()
    }

    /// Sends headers and payload with a correct ICRC.
    pub(super) fn send(&self, to: SocketAddr, headers: &[u8], payload: &[u8]) {
        let mut packet = [headers, payload, &[0; ICRC_LEN]].concat();
        let flow = Flow::between(self.address, to).unwrap();
        icrc::append(&flow, 0, &mut packet).unwrap();
        self.send_raw(to, &packet);
    }

    pub(super) fn send_raw(&self, to: SocketAddr, packet: &[u8]) {
        // A full buffer is part of a flood.
        let _ = self.socket.send_to(packet, to);
    }

    /// Sends a management datagram from queue pair 1 to queue pair 1.
    pub(super) fn send_mad(&self, to: SocketAddr, mad: &[u8; MAD_LEN]) {
        let mut headers = Headers::new(Opcode::UdSendOnly, Qpn::GSI, Psn::new(0));
        headers.deth = Some(DethRepr {
            qkey: QKey::GSI,
            src_qp: Qpn::GSI,
        });
        let mut bytes = vec![0; headers.len()];
        headers.emit(&mut bytes).unwrap();
        self.send(to, &bytes, mad);
    }

    /// Sends a message of the connection manager.
    pub(super) fn send_message(&self, to: SocketAddr, tid: u64, message: &CmMessage) {
        let mut mad = [0; MAD_LEN];
        message.emit(tid, &mut mad).unwrap();
        self.send_mad(to, &mad);
    }
}

/// A connection request that a listener accepts. `number` makes each one different.
pub(super) fn request(from: IpAddr, listener: SocketAddr, number: u64) -> ReqRepr {
    let header = CmaHeader::new(from, number as u16, listener.ip()).unwrap();
    let mut private_data = [0; PrivateData::<92>::LEN];
    header.emit(&mut private_data).unwrap();
    ReqRepr {
        local_comm_id: number as u32,
        service_id: ServiceId::from_port(PortSpace::Tcp, listener.port()),
        local_ca_guid: number,
        local_qpn: Qpn::new(2 + number as u32 % 0xff_0000),
        remote_cm_response_timeout: 20,
        local_cm_response_timeout: 20,
        max_cm_retries: 15,
        retry_count: 7,
        rnr_retry_count: 7,
        pkey: PKey::DEFAULT,
        // 1024 bytes, which every device supports.
        path_mtu: PathMtu(3),
        primary: PathRepr {
            local_gid: Gid::from(from),
            remote_gid: Gid::from(listener.ip()),
            hop_limit: 64,
            local_ack_timeout: 17,
            ..PathRepr::default()
        },
        private_data: PrivateData::new(private_data),
        ..ReqRepr::default()
    }
}
