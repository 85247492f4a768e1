//! Read-only queries, and options.

use alloc::string::ToString;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::time::Duration;

use portolan_provider::cm::{IdAddresses, IdNumber, IdOption, PathRecord};
use portolan_provider::error::{Cause, Error, Result, Step};
use portolan_provider::verbs::QpType;
use portolan_wire::addr::ServiceId;
use portolan_wire::{PKey, QKey, Qpn};

use crate::engine::Cm;
use crate::state::State;
use crate::types::IdOptions;

/// Largest exponent of an ACK timeout (5 bits).
const ACK_TIMEOUT_MAX: u8 = 31;

/// Sizes of the engine's tables, to check that nothing leaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableSizes {
    /// Ids.
    pub ids: usize,
    /// Communication ids in use.
    pub comm_ids: usize,
    /// Connections known by their peer's communication id.
    pub remote_ids: usize,
    /// Connections known by their peer's queue pair.
    pub remote_qps: usize,
    /// Ids known by the SIDR request that created them.
    pub remote_requests: usize,
    /// Connections that no peer has confirmed yet.
    pub half_open: usize,
    /// Requests held for listeners that are expected.
    pub held: usize,
    /// Entries of the listener table.
    pub listeners: usize,
    /// Destroyed connections in time-wait.
    pub remembered: usize,
    /// Stored answers to rejected REQs.
    pub rejections: usize,
    /// Stored answers to SIDR requests of destroyed ids.
    pub answers: usize,
    /// Multicast memberships.
    pub memberships: usize,
    /// Neighbours whose changes are reported to ids.
    pub neighbours: usize,
}

/// An id in a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its number.
    pub id: IdNumber,
    /// Its state.
    pub state: State,
    /// Local address.
    pub local: Option<SocketAddr>,
    /// The peer's address.
    pub remote: Option<SocketAddr>,
    /// The local queue pair, once its number was sent to the peer.
    pub local_qpn: Option<Qpn>,
}

impl Cm {
    /// The queue pair of an id whose peer has disconnected, and whose owner has not answered yet.
    pub fn ended_by_peer(&self, id: IdNumber) -> Option<Qpn> {
        let id = self.ids.get(id).filter(|id| id.state == State::DreqRcvd)?;
        let connection = id.connection.as_deref()?;
        Some(connection.local_qpn)
    }

    /// Sets an option (`rdma_set_option`).
    ///
    /// # Errors
    /// `NoSuchObject`; `InvalidState` if the id is too far along for the option; `InvalidArgument`; `Unsupported`;
    /// `DeviceRemoved`.
    pub fn set_option(&mut self, id: IdNumber, option: IdOption) -> Result<()> {
        let step = Step::SetOption;
        let id = self.ids.find_mut(id, step)?;
        let too_late = |expected| {
            Err(id.fail(
                step,
                Cause::InvalidState {
                    expected,
                    found: id.state.name(),
                },
            ))
        };
        if id.state == State::DeviceRemoval {
            return Err(id.fail(step, Cause::DeviceRemoved));
        }
        match option {
            IdOption::Tos(tos) => id.options.tos = Some(tos),
            // `rdma_set_reuseaddr`: only idle ids can turn it off.
            IdOption::ReuseAddr(reuse) => match id.state {
                State::Listen => return too_late("not listening"),
                State::Idle => id.options.reuse_addr = reuse,
                _ if reuse => id.options.reuse_addr = true,
                _ => return too_late("idle"),
            },
            IdOption::AfOnly(only) => match id.state {
                State::Idle | State::AddrBound => id.options.af_only = Some(only),
                _ => return too_late("idle or bound"),
            },
            IdOption::AckTimeout(exponent) => {
                if !matches!(id.service.qp_type, QpType::Rc | QpType::XrcSend) {
                    let found = id.service.qp_type;
                    let what = "queue pair type of an ACK timeout";
                    return Err(id.locate(Error::invalid(step, what, "RC or XRC_SEND", found)));
                }
                if exponent > ACK_TIMEOUT_MAX {
                    let error = Error::invalid(step, "ACK timeout exponent", "0 to 31", exponent);
                    return Err(id.locate(error));
                }
                id.options.ack_timeout_exp = Some(exponent);
            }
            _ => return Err(id.fail(step, Cause::Unsupported("this option"))),
        }
        Ok(())
    }

    /// The current options.
    ///
    /// # Errors
    /// `NoSuchObject`.
    pub fn options(&self, id: IdNumber) -> Result<IdOptions> {
        Ok(self.ids.find(id, Step::Query)?.options)
    }

    /// Sets the Q_Key of a datagram service; the default is [`QKey::RDMA_CM`]. A listener's answer gives it to the
    /// peer, which must send it. An active side accepts no other key from its peer. Linux takes the key only from a
    /// native InfiniBand address.
    ///
    /// # Errors
    /// `NoSuchObject`; `InvalidArgument` for 0, for a key that differs from one set before
    /// (`cma_set_qkey`), and for an id that is not for datagrams.
    pub fn set_qkey(&mut self, id: IdNumber, qkey: QKey) -> Result<()> {
        let step = Step::SetOption;
        let id = self.ids.find_mut(id, step)?;
        if id.service.qp_type != QpType::Ud {
            let found = id.service.qp_type;
            return Err(id.locate(Error::invalid(step, "queue pair type", "UD", found)));
        }
        if !takes_qkey(id.qkey, qkey) {
            let expected = id.qkey.map_or_else(
                || "other than 0".to_string(),
                |set| alloc::format!("{set}, which is set"),
            );
            return Err(id.locate(Error::invalid(step, "Q_Key", expected, qkey)));
        }
        id.qkey = Some(qkey);
        Ok(())
    }

    /// Addresses, device and GIDs, if known.
    ///
    /// # Errors
    /// `NoSuchObject`.
    pub fn addresses(&self, id: IdNumber) -> Result<IdAddresses> {
        let id = self.ids.find(id, Step::Query)?;
        Ok(IdAddresses {
            local: id.local_address(),
            remote: id.remote_address(),
            device_index: id.device.map(|device| device.device_index),
            port_num: id.device.map_or(0, |device| device.port_num),
            sgid: id.device.map(|device| device.sgid),
            dgid: id.path.map(|path| path.dgid),
            pkey: id.path.map_or(PKey::DEFAULT, |path| path.pkey),
        })
    }

    /// The path; empty until the route is resolved.
    ///
    /// # Errors
    /// `NoSuchObject`.
    pub fn paths(&self, id: IdNumber) -> Result<Vec<PathRecord>> {
        let id = self.ids.find(id, Step::Query)?;
        let resolved = !matches!(
            id.state,
            State::AddrResolved | State::AddrQuery | State::AddrBound
        );
        Ok(id.path.filter(|_| resolved).into_iter().collect())
    }

    /// The state of an id.
    ///
    /// # Errors
    /// `NoSuchObject`.
    pub fn state(&self, id: IdNumber) -> Result<State> {
        Ok(self.ids.find(id, Step::Query)?.state)
    }

    /// Every id with its state, for listings. It scans all ids.
    pub fn ids(&self) -> impl Iterator<Item = (IdNumber, State)> {
        self.ids.iter().map(|(number, id)| (number, id.state))
    }

    /// Every id that has or has named a peer, for listings. It scans all ids.
    pub fn listing(&self) -> impl Iterator<Item = Listed> {
        self.ids.iter().filter_map(|(number, id)| {
            let remote = id.remote?;
            let qpn = id
                .connection
                .as_deref()
                .map(|connection| connection.local_qpn);
            Some(Listed {
                id: number,
                state: id.state,
                local: id.local,
                remote: Some(remote),
                local_qpn: qpn.filter(|qpn| qpn.value() != 0),
            })
        })
    }

    /// The services that ids listen on, for listings. A wildcard of both families occurs twice.
    pub fn services(&self) -> impl Iterator<Item = ServiceId> {
        self.listeners.services()
    }

    /// The id's deadline, if any.
    ///
    /// # Errors
    /// `NoSuchObject`.
    pub fn deadline(&self, id: IdNumber) -> Result<Option<Duration>> {
        Ok(self.ids.find(id, Step::Query)?.deadline)
    }

    /// Sizes of the engine's tables.
    pub fn table_sizes(&self) -> TableSizes {
        let [comm_ids, remote_ids, remote_qps, remote_requests] = self.ids.index_sizes();
        TableSizes {
            ids: self.ids.len(),
            comm_ids,
            remote_ids,
            remote_qps,
            remote_requests,
            half_open: self.half_open.len(),
            held: self.held.len(),
            listeners: self.listeners.len(),
            remembered: self.remembered.len(),
            rejections: self.rejections.len(),
            answers: self.answers.len(),
            memberships: self.groups.len(),
            neighbours: self.neighbours.len(),
        }
    }
}

/// Whether an id whose Q_Key is `set` may use `qkey` (`cma_set_qkey`).
pub(crate) fn takes_qkey(set: Option<QKey>, qkey: QKey) -> bool {
    qkey != QKey(0) && set.is_none_or(|set| set == qkey)
}
