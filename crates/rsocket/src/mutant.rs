//! Planted defects, which the simulator must find to show that its checks work.

portolan_provider::mutants! {
    /// A defect of the endpoints of streams.
    pub enum Mutant {
        /// Numbers in the peer's memory are written in this side's byte order.
        ByteOrderIgnored,
        /// Ending this side's direction also ends the peer's.
        CloseEndsBoth,
        /// More control messages are in flight than have slots.
        ControlUnbounded,
        /// The peer's credits are not respected.
        CreditsIgnored,
        /// Credits are granted only with half of the buffer.
        CreditsOnlyWithRoom,
        /// A write to mapped memory may go past its end.
        DirectPassesEnd,
        /// The stream stays open after its message that ends both directions completed.
        DisconnectNotNoted,
        /// The end of a direction is lost if its message finds no free slot.
        EndForgotten,
        /// More entries of the peer's table are in use than it has.
        EntriesExceeded,
        /// Each write to the peer's table uses the same entry.
        EntryRepeated,
        /// A broken connection counts as an orderly end.
        FailureIsEnd,
        /// A stream that ended in order fails when its connection closes.
        EndIsFailure,
        /// Work in flight is ignored by [`Endpoint::is_flushed`](crate::Endpoint::is_flushed).
        FlushedEarly,
        /// Work is posted on a broken connection.
        GoesOnAfterFailure,
        /// The larger receive buffer is read before the first one is.
        GrownReadEarly,
        /// Half of the buffer is granted when only a part of it has been read.
        HalfGrantedUnread,
        /// Data of any length is sent inline.
        InlineUnlimited,
        /// Iomap entries overwrite the target table.
        IomapOverTable,
        /// The message of a write is sent before the write.
        MessageFirst,
        /// The slot of a completed write stays reserved.
        PlaceLeaks,
        /// Slots of the send queue are not reserved.
        PlaceNotReserved,
        /// A side that has ended its own direction ignores the end of the peer's.
        PeerEndIgnored,
        /// Data in the first send buffer counts as data in the larger one.
        RetiringForgotten,
        /// Sent data may be overwritten before it has arrived.
        SendBufferNotReserved,
        /// An entry of the target table is used again and again.
        TableEntryStays,
        /// Unread data is dropped when both directions have ended.
        UnreadDropped,
    }
}
