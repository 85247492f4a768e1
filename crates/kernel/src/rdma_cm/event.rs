//! Converts the kernel's events to the provider's.

use portolan_provider::cm::{CmEvent, Ece, EventParam, EventType, IdNumber, UdParam, UserId};
use portolan_provider::verbs::QpType;
use portolan_provider::{Error, Result, Step};
use portolan_wire::addr::{QKey, Qpn};

use super::abi::{self, EVENT_INTERNAL, EventResp};
use super::attr;
use super::fields::Fields;
use super::param::INTERNAL_EVENT_BITS;

/// Decodes an event. `qp_type` is that of the id's service and determines the parameters' type.
///
/// # Errors
/// `InvalidArgument` for an unknown event.
pub(super) fn decode(raw: &EventResp, qp_type: QpType) -> Result<CmEvent> {
    let (event, status) = (event_type(raw)?, raw.status.cast_signed());
    Ok(CmEvent {
        uid: UserId(raw.uid),
        id: IdNumber(raw.id),
        event,
        status,
        param: param(raw, event, qp_type),
        ece: Ece {
            vendor_id: raw.ece.vendor_id,
            options: raw.ece.attr_mod,
        },
    })
}

/// The event's type; an internal event becomes the type that it represents.
fn event_type(raw: &EventResp) -> Result<EventType> {
    let known = match raw.event {
        EVENT_INTERNAL => EventType::from_number(stands_for(raw)).filter(|event| {
            matches!(
                event,
                EventType::AddrinfoResolved | EventType::AddrinfoError
            )
        }),
        number => EventType::from_number(number),
    };
    let last = EventType::ALL.len() - 1;
    known.ok_or_else(|| {
        let expected = format_args!("0 to {last}");
        Error::invalid(Step::Event, "event number", expected, raw.event)
    })
}

fn param(raw: &EventResp, event: EventType, qp_type: QpType) -> EventParam {
    let is_datagram = qp_type == QpType::Ud;
    match event {
        EventType::MulticastJoin | EventType::MulticastError => ud_param(raw),
        EventType::User => EventParam::Arg(argument(raw)),
        EventType::AddrinfoResolved | EventType::AddrinfoError if raw.event == EVENT_INTERNAL => {
            EventParam::Arg(argument(raw) >> INTERNAL_EVENT_BITS)
        }
        EventType::ConnectRequest
        | EventType::ConnectResponse
        | EventType::Established
        | EventType::Rejected
        | EventType::Disconnected => match is_datagram {
            true => ud_param(raw),
            false => EventParam::Conn((&abi::ConnParam::from_bytes(&raw.param)).into()),
        },
        // A refused service id resolution.
        EventType::Unreachable if is_datagram && raw.status.cast_signed() > 0 => ud_param(raw),
        _ => EventParam::None,
    }
}

fn ud_param(raw: &EventResp) -> EventParam {
    let ud = abi::UdParam::from_bytes(&raw.param);
    let private_data = &ud.private_data[..usize::from(ud.private_data_len)];
    EventParam::Ud(UdParam {
        private_data: private_data.into(),
        ah_attr: attr::ah_attr(&ud.ah_attr),
        qp_num: Qpn::new(ud.qp_num),
        qkey: QKey(ud.qkey),
    })
}

/// The number of the event that an internal event represents.
fn stands_for(raw: &EventResp) -> u32 {
    (argument(raw) & ((1 << INTERNAL_EVENT_BITS) - 1)) as u32
}

/// The argument of a written event: two 32-bit words, because the union has only 4-byte alignment.
fn argument(raw: &EventResp) -> u64 {
    u64::from_bytes(&raw.param)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(event: u32, param: &impl Fields) -> EventResp {
        let mut raw = EventResp {
            uid: 11,
            id: 5,
            event,
            ..EventResp::zeroed()
        };
        param.put(&mut &mut raw.param[..]);
        raw
    }

    #[test]
    fn a_connection_request_has_its_whole_private_data_and_the_peers_options() {
        let mut conn = abi::ConnParam {
            qp_num: 17,
            private_data_len: 56,
            responder_resources: 3,
            initiator_depth: 5,
            retry_count: 7,
            flow_control: 1,
            ..abi::ConnParam::zeroed()
        };
        conn.private_data[..4].copy_from_slice(b"ahoy");
        let mut raw = raw(4, &conn);
        raw.ece.vendor_id = 0x15b3;
        raw.ece.attr_mod = 9;
        let event = decode(&raw, QpType::Rc).unwrap();
        assert_eq!(event.event, EventType::ConnectRequest);
        assert_eq!((event.uid, event.id), (UserId(11), IdNumber(5)));
        assert_eq!((event.ece.vendor_id, event.ece.options), (0x15b3, 9));
        let EventParam::Conn(conn) = event.param else {
            panic!("{event:?}");
        };
        assert_eq!(conn.private_data.len(), 56);
        assert!(conn.private_data.starts_with(b"ahoy\0"));
        assert_eq!((conn.responder_resources, conn.initiator_depth), (3, 5));
        assert_eq!((conn.qp_num.value(), conn.flow_control), (17, true));
    }

    #[test]
    fn the_same_event_of_a_datagram_service_has_the_peers_queue_pair_and_address() {
        let ud = abi::UdParam {
            qp_num: 18,
            qkey: 0x0123_4567,
            ah_attr: abi::AhAttr {
                dgid: [7; 16],
                port_num: 1,
                ..abi::AhAttr::zeroed()
            },
            private_data_len: 136,
            ..abi::UdParam::zeroed()
        };
        let event = decode(&raw(9, &ud), QpType::Ud).unwrap();
        let EventParam::Ud(ud) = event.param else {
            panic!("{event:?}");
        };
        assert_eq!((ud.qp_num.value(), ud.qkey), (18, QKey(0x0123_4567)));
        assert_eq!((ud.ah_attr.dgid.0, ud.private_data.len()), ([7; 16], 136));
    }

    #[test]
    fn a_status_keeps_the_kernels_negative_sign() {
        let mut raw = raw(7, &0u32);
        raw.status = (-110i32).cast_unsigned();
        let event = decode(&raw, QpType::Rc).unwrap();
        assert_eq!((event.status, event.param), (-110, EventParam::None));
    }

    #[test]
    fn a_written_event_carries_its_argument() {
        let event = decode(&raw(18, &0x0102_0304_0506_0708u64), QpType::Rc).unwrap();
        assert_eq!(event.event, EventType::User);
        assert_eq!(event.param, EventParam::Arg(0x0102_0304_0506_0708));
    }

    #[test]
    fn the_librarys_own_event_is_decoded_to_its_meaning_and_no_other() {
        let event = decode(&raw(19, &(5u64 << 8 | 16)), QpType::Rc).unwrap();
        assert_eq!(event.event, EventType::AddrinfoResolved);
        assert_eq!(event.param, EventParam::Arg(5));
        let event = decode(&raw(19, &17u64), QpType::Rc).unwrap();
        assert_eq!(event.event, EventType::AddrinfoError);
        for stands_for in [9, 18, 19, u64::MAX] {
            assert!(decode(&raw(19, &stands_for), QpType::Rc).is_err());
        }
    }

    #[test]
    fn a_number_of_a_newer_kernel_is_an_error_instead_of_a_panic() {
        for number in [20, u32::MAX] {
            let error = decode(&raw(number, &0u32), QpType::Rc).unwrap_err();
            assert!(error.to_string().contains("expected 0 to 18"), "{error}");
        }
    }
}
