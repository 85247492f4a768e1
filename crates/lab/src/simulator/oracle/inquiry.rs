//! Questions for datagram services: each is reported once, however often it comes, and its answer is
//! one that the service gave.

use std::time::Duration;

use portolan_provider::cm::{CmEvent, EventParam, EventType, IdNumber};
use portolan_provider::error::errno::{EINVAL, ETIMEDOUT};
use portolan_wire::{Gid, QKey, Qpn};

use crate::simulator::failure::{Violation, ensure, violation};
use crate::simulator::plan::{InquiryPlan, STATUS_REJECT, STATUS_UNSUPPORTED};

/// What became of a question.
#[derive(Debug, Default)]
pub(in crate::simulator) struct Inquiry {
    /// The asker's machine, and its name for its id.
    pub(in crate::simulator) asker: Option<(usize, u64)>,
    /// Once it was answered: the machine and the queue pair that send datagrams to who answered.
    pub(in crate::simulator) sender: Option<(usize, Qpn)>,
    /// Its reports to services. A machine that began anew has not heard it yet.
    pub(in crate::simulator) questions: Vec<Question>,
    /// What services answered.
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
    /// Answered and destroyed; until then a copy gets the same answer again.
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
    /// A report is the first one of its machine. `remembers` if what was destroyed is not forgotten
    /// before its time.
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
                "a copy of a question was reported while {} stands for the first",
                question.id
            );
            ensure!(
                !remembers || question.known_until.is_none_or(|until| until <= now),
                "a copy of a question was reported anew before {:?}, until when its answer is kept",
                question.known_until
            );
        }
        Ok(())
    }

    /// Whether a copy that comes now must get the answer of an id that is destroyed.
    pub(in crate::simulator) fn owes_answer(&self, host: usize, boot: u32, now: Duration) -> bool {
        let mut questions = self.questions_at(host, boot);
        questions.any(|question| question.known_until.is_some_and(|until| until > now))
    }

    /// The event that ends the asker's wait says what a service said. `answerer` is the address of
    /// the one that was asked, and `is_served` whether somebody listened there all the time.
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
                    "a key was refused, but the asker may use those of {:?}",
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
                    "a refusal that nobody gave, {:02x?}; given: {:?}",
                    param.private_data,
                    self.told
                );
                Ok(())
            }
            (EventType::Unreachable, status) if status == i32::from(STATUS_UNSUPPORTED) => {
                ensure!(!is_served, "a service that is there was not found");
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
                "the answer is {} with {}, but told was {:?}",
                param.qp_num,
                param.qkey,
                self.told
            )
        })?;
        ensure!(
            is_padded(&param.private_data, told.private_data()),
            "an answer with other private data than was given"
        );
        ensure!(
            plan.qkey.is_none_or(|own| own == param.qkey),
            "the asker has {:?} and was told to use {}",
            plan.qkey,
            param.qkey
        );
        ensure!(
            param.ah_attr.dgid == Gid::from_ip(answerer),
            "the answer leads to {}, not to {answerer}",
            param.ah_attr.dgid
        );
        Ok(())
    }

    fn questions_at(&self, host: usize, boot: u32) -> impl Iterator<Item = &Question> {
        let of_machine = move |question: &&Question| (question.host, question.boot) == (host, boot);
        self.questions.iter().filter(of_machine)
    }
}

/// Whether `data` is what was sent, and zero from there on.
fn is_padded(data: &[u8], sent: &[u8]) -> bool {
    data.split_at_checked(sent.len())
        .is_some_and(|(begin, rest)| begin == sent && rest.iter().all(|byte| *byte == 0))
}
