//! Datagram service lookups: each question is reported once even if it is repeated, and the asker
//! gets an answer that the service gave.

use std::time::Duration;

use portolan_provider::cm::{CmEvent, EventParam, EventType, IdNumber};
use portolan_provider::error::errno::{EINVAL, ETIMEDOUT};
use portolan_wire::{Gid, QKey, Qpn};

use crate::simulator::failure::{Violation, ensure, violation};
use crate::simulator::plan::{InquiryPlan, STATUS_REJECT, STATUS_UNSUPPORTED};

/// The state of a question.
#[derive(Debug, Default)]
pub(in crate::simulator) struct Inquiry {
    /// The asker's machine, and the program's name for its id.
    pub(in crate::simulator) asker: Option<(usize, u64)>,
    /// Once it is answered: the machine and queue pair that send datagrams to the service.
    pub(in crate::simulator) sender: Option<(usize, Qpn)>,
    /// Its reports to services. A restarted machine has not seen it.
    pub(in crate::simulator) questions: Vec<Question>,
    /// Answers that services gave.
    pub(in crate::simulator) told: Vec<Told>,
    /// The event that ended it, and its status.
    pub(in crate::simulator) ended: Option<(EventType, i32)>,
}

/// A question that was reported to a service, and its id.
#[derive(Debug)]
pub(in crate::simulator) struct Question {
    pub(in crate::simulator) host: usize,
    pub(in crate::simulator) boot: u32,
    pub(in crate::simulator) id: IdNumber,
    /// Set once it is answered and destroyed. Until then a copy gets the same answer.
    pub(in crate::simulator) known_until: Option<Duration>,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::simulator) enum Told {
    Served {
        qpn: Qpn,
        qkey: QKey,
        private_data: Box<[u8]>,
    },
    Refused {
        private_data: Box<[u8]>,
    },
}

impl Told {
    fn private_data(&self) -> &[u8] {
        match self {
            Self::Served { private_data, .. } | Self::Refused { private_data } => private_data,
        }
    }
}

impl Inquiry {
    /// Checks that a machine reports a question for the first time. `remembers`: destroyed ids are
    /// remembered for their full time.
    pub(in crate::simulator) fn check_first_report(
        &self,
        (host, boot): (usize, u32),
        now: Duration,
        remembers: bool,
        is_alive: impl Fn(IdNumber) -> bool,
    ) -> Result<(), Violation> {
        for question in self.questions_at(host, boot) {
            ensure!(
                !is_alive(question.id),
                "a copy of a question was reported while {} still exists",
                question.id
            );
            ensure!(
                !remembers || question.known_until.is_none_or(|until| until <= now),
                "a copy of a question was reported again, but its answer is kept until {:?}",
                question.known_until
            );
        }
        Ok(())
    }

    /// Whether a copy that arrives at `now` must get the answer of a destroyed id.
    pub(in crate::simulator) fn owes_answer(&self, host: usize, boot: u32, now: Duration) -> bool {
        let mut questions = self.questions_at(host, boot);
        questions.any(|question| question.known_until.is_some_and(|until| until > now))
    }

    /// Checks that the event that ends the asker's wait carries an answer of a service. `answerer`:
    /// the address that was asked. `is_served`: a service listened there all the time.
    pub(in crate::simulator) fn check_end(
        &self,
        plan: &InquiryPlan,
        event: &CmEvent,
        answerer: std::net::IpAddr,
        is_served: bool,
    ) -> Result<(), Violation> {
        match (event.event, event.status) {
            (EventType::Established, 0) => self.check_served(plan, event, answerer),
            (EventType::AddrError, status) if status == -EINVAL => {
                let is_foreign = |told: &Told| match (told, plan.qkey) {
                    (Told::Served { qkey, .. }, Some(own)) => *qkey != own,
                    _ => false,
                };
                ensure!(
                    self.told.iter().any(is_foreign),
                    "a key was refused, but the asker may use the keys of {:?}",
                    self.told
                );
                Ok(())
            }
            (EventType::Unreachable, status) if status == -ETIMEDOUT => Ok(()),
            (EventType::Unreachable, status) if status == i32::from(STATUS_REJECT) => {
                let EventParam::Ud(param) = &event.param else {
                    return Err(violation!("a refusal without parameters"));
                };
                let same = |told: &&Told| matches!(told, Told::Refused { .. });
                let mut refusals = self.told.iter().filter(same);
                ensure!(
                    refusals.any(|told| is_padded(&param.private_data, told.private_data())),
                    "no service refused with {:02x?}; answers given: {:?}",
                    param.private_data,
                    self.told
                );
                Ok(())
            }
            (EventType::Unreachable, status) if status == i32::from(STATUS_UNSUPPORTED) => {
                ensure!(!is_served, "an existing service was not found");
                Ok(())
            }
            (event, status) => Err(violation!("a question ended in {event}, status {status}")),
        }
    }

    fn check_served(
        &self,
        plan: &InquiryPlan,
        event: &CmEvent,
        answerer: std::net::IpAddr,
    ) -> Result<(), Violation> {
        let EventParam::Ud(param) = &event.param else {
            return Err(violation!("an answer without parameters"));
        };
        let is_this = |told: &&Told| match told {
            Told::Served { qpn, qkey, .. } => (*qpn, *qkey) == (param.qp_num, param.qkey),
            Told::Refused { .. } => false,
        };
        let told = self.told.iter().find(is_this);
        let told = told.ok_or_else(|| {
            violation!(
                "the answer is {} with {}, but the service gave {:?}",
                param.qp_num,
                param.qkey,
                self.told
            )
        })?;
        ensure!(
            is_padded(&param.private_data, told.private_data()),
            "the answer's private data differ from the service's"
        );
        ensure!(
            plan.qkey.is_none_or(|own| own == param.qkey),
            "the asker has {:?} but the answer says {}",
            plan.qkey,
            param.qkey
        );
        ensure!(
            param.ah_attr.dgid == Gid::from_ip(answerer),
            "the answer points to {}, not to {answerer}",
            param.ah_attr.dgid
        );
        Ok(())
    }

    fn questions_at(&self, host: usize, boot: u32) -> impl Iterator<Item = &Question> {
        let of_machine = move |question: &&Question| (question.host, question.boot) == (host, boot);
        self.questions.iter().filter(of_machine)
    }
}

/// Whether `data` begins with `sent` and is zero after it.
fn is_padded(data: &[u8], sent: &[u8]) -> bool {
    data.split_at_checked(sent.len())
        .is_some_and(|(begin, rest)| begin == sent && rest.iter().all(|byte| *byte == 0))
}
