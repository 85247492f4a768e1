//! Planted defects, which the simulator must find to show that its checks work.

portolan_provider::mutants! {
    /// A defect of the connection manager.
    pub enum Mutant {
        /// The answer to a SIDR REQ is forgotten when its id is destroyed.
        AnswerForgotten,
        /// Communication ids outside the engine's block are used.
        BlockIgnored,
        /// A copy of a REQ is treated as new.
        CopyMakesSecondChild,
        /// A copy of a SIDR REQ is treated as new.
        CopyMakesSecondQuestion,
        /// The ports of a dead owner stay bound.
        DeadOwnersPortsKept,
        /// The event of a displaced request is still delivered.
        DisplacedStillQueued,
        /// Every sign of a connection's end is reported.
        DisconnectToldTwice,
        /// An MRA does not extend the timeout.
        GrantIgnored,
        /// The number of half-open connections is unlimited.
        HalfOpenUnbounded,
        /// A request held for a listener is not delivered to it.
        HeldForgotten,
        /// A pending join is not undone when its member leaves.
        JoinNotTakenBack,
        /// The event of a membership is delivered after the group was left.
        LeftGroupStillTold,
        /// A destroyed id stays in its groups.
        MembershipsLeak,
        /// A destroyed id leaves its peer's keys in the tables.
        NamesLeak,
        /// Any Q_Key in a SIDR REP is accepted.
        QkeyNotCompared,
        /// A lost SIDR REQ is not retransmitted.
        QuestionAskedOnce,
        /// A rejection is forgotten: a copy of the REQ is treated as new.
        RejectionForgotten,
        /// A lost REP is not retransmitted.
        RepSentOnce,
        /// A late copy of the REQ of a destroyed connection opens a new one.
        StaleRequestTaken,
        /// A message is retransmitted once, and then its timer is lost.
        TimerLost,
        /// Time-wait is over at once.
        TimewaitSkipped,
    }
}
