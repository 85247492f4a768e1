//! Messages of 32 bits, which immediate data or small sends carry.

/// Width of the argument. The bits above it are the kind.
const ARGUMENT_BITS: u32 = 29;
const ARGUMENT_MASK: u32 = (1 << ARGUMENT_BITS) - 1;

const DATA: u32 = 0;
const CREDITS: u32 = 4;
const IOMAP: u32 = 6;
const CONTROL: u32 = 7;

/// A message between two endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// This many bytes were written to the receive buffer.
    Data(u32),
    /// The peer may send messages up to this number. The target table may also have a new entry.
    Credits(u16),
    /// This entry of the iomap was written.
    Iomap(u32),
    /// The state of the connection changes.
    Control(Control),
}

/// The meaning of a control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Control {
    /// Both directions have ended.
    Disconnect = 0,
    /// The sender is alive.
    Keepalive = 1,
    /// The sender sends no more data.
    Shutdown = 2,
}

impl Message {
    /// The message as a number, which travels in network byte order as immediate data.
    pub fn encode(self) -> u32 {
        let (kind, argument) = match self {
            Self::Data(bytes) => (DATA, bytes),
            Self::Credits(number) => (CREDITS, number.into()),
            Self::Iomap(index) => (IOMAP, index),
            Self::Control(control) => (CONTROL, control as u32),
        };
        kind << ARGUMENT_BITS | argument & ARGUMENT_MASK
    }

    /// Parses a message; `None` if it is invalid.
    pub fn decode(number: u32) -> Option<Self> {
        let argument = number & ARGUMENT_MASK;
        match number >> ARGUMENT_BITS {
            DATA => Some(Self::Data(argument)),
            // The sequence number has 16 bits; librdmacm sends a sum that may exceed them.
            CREDITS => Some(Self::Credits(argument as u16)),
            IOMAP => Some(Self::Iomap(argument)),
            CONTROL => match argument {
                0 => Some(Self::Control(Control::Disconnect)),
                1 => Some(Self::Control(Control::Keepalive)),
                2 => Some(Self::Control(Control::Shutdown)),
                _ => None,
            },
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_the_numbers_of_the_documented_format() {
        for (message, number) in [
            (Message::Data(4096), 0x0000_1000),
            (Message::Credits(384), 0x8000_0180),
            (Message::Iomap(3), 0xC000_0003),
            (Message::Control(Control::Disconnect), 0xE000_0000),
            (Message::Control(Control::Keepalive), 0xE000_0001),
            (Message::Control(Control::Shutdown), 0xE000_0002),
        ] {
            assert_eq!(message.encode(), number, "{message:?}");
            assert_eq!(Message::decode(number), Some(message));
        }
    }

    #[test]
    fn a_credit_number_wraps_at_16_bits() {
        assert_eq!(Message::decode(0x8001_0005), Some(Message::Credits(5)));
    }

    #[test]
    fn reserved_kinds_and_unknown_control_messages_have_no_meaning() {
        for number in [
            0x2000_0000,
            0x4000_0001,
            0x6000_0000,
            0xA000_0000,
            0xE000_0003,
        ] {
            assert_eq!(Message::decode(number), None, "{number:#x}");
        }
    }
}
