//! GET_EVENT, TAKE_EVENT and WRITE_CM_EVENT.

use portolan_kernel::raw::{
    self, EVENT_INTERNAL, EventResp, Fields, GetEvent, PRIVATE_DATA_LEN, WriteCmEvent,
};
use portolan_provider::cm::{CmEvent, EventParam, EventType, UdParam};
use rustix::io::Errno;

use crate::channel::{Channel, Command};
use crate::errno::errno;
use crate::query::ah_attr;

type Result<T> = std::result::Result<T, Errno>;

/// Internal events are for the library itself: the low byte of the argument holds the represented event, the rest is
/// the library's own.
const STANDS_FOR_BITS: u32 = 8;

impl Channel {
    pub(crate) fn get_event(&self, command: &Command<'_>) -> Result<()> {
        let get: GetEvent = command.read()?;
        command.expect_room::<EventResp>()?;
        let event = loop {
            match self.take() {
                Err(Errno::AGAIN) => self.commands().await_event().map_err(errno)?,
                taken => break taken?,
            }
        };
        command.answer(get.response, &encode(&event))
    }

    /// As GET_EVENT, but it never waits.
    pub(crate) fn take_event(&self, command: &Command<'_>) -> Result<()> {
        let get: GetEvent = command.read()?;
        command.expect_room::<EventResp>()?;
        command.answer(get.response, &encode(&self.take()?))
    }

    /// Takes an event and counts it.
    fn take(&self) -> Result<CmEvent> {
        let _taking = self.taking();
        self.check_open()?;
        let event = self.commands().take_event().map_err(errno)?;
        match event.event {
            EventType::ConnectRequest => {
                // The taker owns the new id; the event counts for the listener.
                self.device().ids().add(event.id, None, self.number());
                self.device().ids().count_request(event.uid);
            }
            _ => self.device().ids().count(event.id),
        }
        Ok(event)
    }

    /// Queues an event that the id's owner writes: the program's, or an internal one of the library.
    pub(crate) fn write_event(&self, command: &Command<'_>) -> Result<()> {
        let write: WriteCmEvent = command.read()?;
        let (event, arg) = match write.event {
            EVENT_INTERNAL => {
                let stands_for = (write.arg & ((1 << STANDS_FOR_BITS) - 1)) as u32;
                let event = EventType::from_number(stands_for).ok_or(Errno::INVAL)?;
                (event, write.arg >> STANDS_FOR_BITS)
            }
            number if number == EventType::User as u32 => (EventType::User, write.arg),
            _ => return Err(Errno::INVAL),
        };
        let is_internal = write.event == EVENT_INTERNAL;
        if is_internal && event == EventType::User {
            return Err(Errno::INVAL);
        }
        let id = self.own(write.id)?;
        let status = write.status.cast_signed();
        let written = self.commands().write_event(id, event, status, arg);
        written.map_err(errno)
    }
}

fn encode(event: &CmEvent) -> EventResp {
    let mut answer = EventResp {
        uid: event.uid.0,
        id: event.id.0,
        event: event.event as u32,
        status: event.status.cast_unsigned(),
        ..EventResp::zeroed()
    };
    answer.ece.vendor_id = event.ece.vendor_id;
    answer.ece.attr_mod = event.ece.options;
    let place = &mut &mut answer.param[..];
    match &event.param {
        EventParam::None => {}
        EventParam::Conn(param) => {
            let data = private_data(&param.private_data);
            raw::ConnParam::of(param, data, 0).put(place);
        }
        EventParam::Ud(param) => ud_param(param).put(place),
        EventParam::Arg(arg) if event.event == EventType::User => arg.put(place),
        EventParam::Arg(arg) => {
            let stands_for = u64::from(event.event as u32);
            (arg << STANDS_FOR_BITS | stands_for).put(place);
            answer.event = EVENT_INTERNAL;
        }
    }
    answer
}

/// Private data in the ABI's field, which fits that of any message.
fn private_data(data: &[u8]) -> ([u8; PRIVATE_DATA_LEN], u8) {
    let data = &data[..data.len().min(u8::MAX.into())];
    raw::padded(data).unwrap_or(([0; PRIVATE_DATA_LEN], 0))
}

fn ud_param(param: &UdParam) -> raw::UdParam {
    let (private_data, private_data_len) = private_data(&param.private_data);
    raw::UdParam {
        qp_num: param.qp_num.value(),
        qkey: param.qkey.0,
        ah_attr: ah_attr(&param.ah_attr),
        private_data,
        private_data_len,
        ..raw::UdParam::zeroed()
    }
}

#[cfg(test)]
mod tests {
    use portolan_provider::cm::{Ece, IdNumber, UserId};

    use super::*;

    fn event(event: EventType, param: EventParam) -> CmEvent {
        CmEvent {
            uid: UserId(7),
            id: IdNumber(3),
            event,
            status: -110,
            param,
            ece: Ece {
                vendor_id: 1,
                options: 2,
            },
        }
    }

    #[test]
    fn an_event_keeps_its_name_number_status_and_options() {
        let raw = encode(&event(EventType::Unreachable, EventParam::None));
        assert_eq!((raw.uid, raw.id, raw.event), (7, 3, 7));
        assert_eq!(raw.status.cast_signed(), -110);
        assert_eq!((raw.ece.vendor_id, raw.ece.attr_mod), (1, 2));
        assert!(raw.param.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn private_data_longer_than_its_length_field_is_truncated() {
        let (field, length) = private_data(&[9; 300]);
        assert_eq!((length, field[254], field[255]), (255, 9, 0));
    }

    #[test]
    fn a_library_internal_event_is_decoded_as_internal() {
        let raw = encode(&event(EventType::AddrinfoResolved, EventParam::Arg(5)));
        assert_eq!(raw.event, EVENT_INTERNAL);
        assert_eq!(u64::from_bytes(&raw.param), 5 << 8 | 16);
        let raw = encode(&event(EventType::User, EventParam::Arg(u64::MAX)));
        assert_eq!((raw.event, u64::from_bytes(&raw.param)), (18, u64::MAX));
    }
}
