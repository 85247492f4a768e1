//! Planted defects, which the simulator must find to show that its checks work.

portolan_provider::mutants! {
    /// A defect of the queue pairs.
    pub enum Mutant {
        /// An acknowledgement covers one packet too many.
        AcknowledgesTooMuch,
        /// A duplicate atomic is executed again.
        AtomicExecutedAgain,
        /// A whole send in short form is executed although its PSN is not the next.
        CompactSendOutOfOrder,
        /// A whole send in short form is not acknowledged although it requests that.
        CompactSendUnacknowledged,
        /// A duplicate request is executed again.
        DuplicateExecuted,
        /// A fenced request does not wait for earlier reads.
        FenceIgnored,
        /// Flushed requests complete in the wrong order.
        FlushedBackwards,
        /// A request is executed although an earlier one is missing.
        GapUnnoticed,
        /// The data of a datagram overwrite the space of its network header.
        HeaderRoomTaken,
        /// The limit of a shared receive queue stays armed after its event.
        LimitStaysArmed,
        /// On an unreliable connection, the packet after a lost one takes its place.
        LossInMessageUnnoticed,
        /// "Receiver not ready" is ignored.
        NotReadyIgnored,
        /// "Receiver not ready" counts as an acknowledgement.
        NotReadyTakenForAck,
        /// PSNs are compared as if they never wrapped.
        PsnsComparedAsIntegers,
        /// A datagram with a wrong Q_Key is accepted.
        QKeyUnchecked,
        /// A peer may access memory beyond the end of a region.
        RangeUnchecked,
        /// Read responses have a PSN that is one too high.
        ReadNumberedFromNext,
        /// Remaining receives are not flushed.
        ReceivesNotFlushed,
        /// The timer is not rearmed after the first timeout.
        TimerLost,
        /// All posted work is sent, ignoring the window.
        WindowIgnored,
    }
}
