//! Sizes and limits of an endpoint.

/// Bytes of data that the send buffer must have free before anything is sent (`RS_SNDLOWAT`).
pub const SEND_LOW_WATER: u32 = 2048;
/// Bytes of the largest single write of data.
pub const TRANSFER_MAX_BYTES: u32 = 131_072;
/// Maximum of control messages in flight. Slots of the send queue are reserved for them.
pub const CONTROL_MESSAGES: u16 = 4;
/// Bytes reserved for each control message after the send buffer, for devices without inline data.
pub const CONTROL_BYTES: u32 = 24;
/// Minimum of work requests of each queue.
pub const QUEUE_MIN: u16 = 16;
/// Maximum of work requests of each queue: sequence numbers have 16 bits.
pub const QUEUE_MAX: u16 = 0xFFFE;
/// Bytes of the largest send or receive buffer.
pub const BUFFER_MAX_BYTES: u32 = 1 << 29;

/// How a peer is notified of writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Signalling {
    /// By the immediate data of the write.
    #[default]
    Immediate,
    /// By a send of four bytes after the write. iWARP needs this.
    Sends,
}

/// Sizes of an endpoint. Both sides choose their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Bytes of the send buffer.
    pub send_buffer: u32,
    /// Bytes of the receive buffer.
    pub receive_buffer: u32,
    /// Bytes of the larger send buffer that the endpoint wants if the first one limits the rate; 0 for never.
    pub grown_send_buffer: u32,
    /// The same for the receive buffer.
    pub grown_receive_buffer: u32,
    /// How often a buffer must have limited the rate before the endpoint wants the larger one.
    pub stalls: u32,
    /// Work requests of the send queue.
    pub send_queue: u16,
    /// Work requests of the receive queue. The owner keeps all of them posted.
    pub receive_queue: u16,
    /// Maximum of bytes that the device sends inline.
    pub inline: u32,
    /// Entries of the iomap that the peer may write.
    pub iomaps: u16,
    /// How writes are signalled. The device decides it.
    pub signalling: Signalling,
    /// Whether this machine is big-endian.
    pub big_endian: bool,
}

impl Default for Config {
    /// librdmacm's defaults.
    fn default() -> Self {
        Self {
            send_buffer: 1 << 17,
            receive_buffer: 1 << 17,
            grown_send_buffer: 0,
            grown_receive_buffer: 0,
            stalls: 8,
            send_queue: 384,
            receive_queue: 384,
            inline: 64,
            iomaps: 0,
            signalling: Signalling::Immediate,
            big_endian: cfg!(target_endian = "big"),
        }
    }
}

impl Config {
    /// The nearest valid configuration: sizes within their limits, receive buffers of two equal halves, larger buffers
    /// that are larger, and a number of iomap entries that the private data can express.
    #[must_use]
    pub fn fitted(mut self) -> Self {
        self.send_buffer = self.send_buffer.clamp(SEND_LOW_WATER, BUFFER_MAX_BYTES);
        self.receive_buffer = self.receive_buffer.clamp(2, BUFFER_MAX_BYTES) & !1;
        self.grown_send_buffer = larger(self.grown_send_buffer, self.send_buffer);
        self.grown_receive_buffer = larger(self.grown_receive_buffer & !1, self.receive_buffer);
        self.send_queue = self.send_queue.clamp(QUEUE_MIN, QUEUE_MAX);
        self.receive_queue = self.receive_queue.clamp(QUEUE_MIN, QUEUE_MAX);
        self.iomaps = crate::iomap::unscale(crate::iomap::scale(self.iomaps));
        self
    }
}

/// The size of a grown buffer; 0 if it is not larger than `first`.
fn larger(grown: u32, first: u32) -> u32 {
    match grown.min(BUFFER_MAX_BYTES) {
        grown if grown > first => grown,
        _ => 0,
    }
}

/// The addresses and keys of an endpoint's registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalMemory {
    /// Address of the target table.
    pub table: u64,
    /// Its remote key.
    pub table_key: u32,
    /// Address of the receive buffer.
    pub buffer: u64,
    /// Its remote key.
    pub buffer_key: u32,
}
