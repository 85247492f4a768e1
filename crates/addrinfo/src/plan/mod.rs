//! The decisions of rdma_getaddrinfo(3), as pure code: node, service and hints come in, questions
//! go out; answers come in, results go out.
//!
//! The caller drives a [`Plan`]: take [`Plan::question`], look up the answer, pass it to
//! [`Plan::answer`], and repeat until there is no question; then call [`Plan::finish`]. Questions come
//! one at a time, names first; [`Question::may_block`] marks those that may block.

mod candidate;
mod order;
mod settle;
mod skipped;
mod source;
mod start;

use std::net::SocketAddr;
use std::sync::Arc;

use portolan_provider::Address;

use crate::addrinfo::AddrInfo;
use crate::error::{AddrInfoError, Problem};
use crate::explain::{Common, Decision, Explain, NumericReasons};
use crate::hints::{Family, Flags, Hints};
use crate::lookups::{Answer, NameQuestion, Question};
use crate::names::{self, Eai, NameError, NameResult, SocketType};

use self::candidate::Candidate;
use self::settle::Settled;
use self::skipped::Skipped;
use self::start::Start;

/// The lookups for a node, a service and hints, and their results so far.
#[derive(Clone, Debug)]
pub struct Plan {
    node: Option<String>,
    service: Option<String>,
    settled: Settled,
    candidates: Vec<Candidate>,
    /// The skipped addresses with reasons, which every result lists.
    skipped: Skipped,
    /// Why the first address was skipped; the error if none is left.
    why_skipped: Option<Problem>,
    stage: Stage,
    question: Option<Question>,
    failed: Option<Problem>,
}

/// The purpose of the current question.
#[derive(Clone, Debug)]
enum Stage {
    /// The addresses of the node or, without one, of this machine.
    Names,
    /// Whether a name without an address of the requested family has one of another; `first` is the first error.
    AnyFamily { expected: Family, first: NameError },
    /// Whether the service exists for the other socket type; `first` is the first error.
    OtherKind { first: NameError },
    /// The port of a service for known addresses.
    Port,
    /// The device named in the zone of a GID.
    Zone,
    /// The records of an InfiniBand service.
    ServiceRecords,
    /// The InfiniBand port that reaches a candidate, if any.
    Fabric(usize),
    /// The route to a candidate.
    Route(usize),
    /// The device of a candidate's source.
    Device(usize),
    /// The paths to a candidate.
    Paths(usize),
    /// No question is left.
    Done,
}

/// Resolves a query that needs no lookup: a numeric address without routes. Returns `None` for anything else.
///
/// A [`Plan`] has the same result; this is faster for frequent synchronous calls.
pub(crate) fn without_look_ups(
    node: Option<&str>,
    service: Option<&str>,
    hints: Option<&Hints>,
) -> Result<Option<Vec<AddrInfo>>, Problem> {
    if !hints.is_some_and(|hints| hints.flags.contains(Flags::NOROUTE)) {
        return Ok(None);
    }
    let mut settled = Settled::of(hints)?;
    let Start::Numeric(address) = start::start(&settled, node, service)? else {
        return Ok(None);
    };
    let mut candidate = candidate::numeric(&mut settled, address, node);
    let reasons = NumericReasons {
        service: settled.service(),
        unused_family: settled.unused_family,
        pinned: candidate.fit(&settled)?,
        has_destination: candidate.dst.is_some(),
    };
    let explain = Explain::numeric(reasons);
    Ok(Some(vec![candidate.explained(&settled, explain)]))
}

impl Plan {
    /// Checks the request and determines the first question.
    ///
    /// # Errors
    /// A request that is invalid without any lookup: see [`Problem`].
    pub fn new(
        node: Option<&str>,
        service: Option<&str>,
        hints: Option<&Hints>,
    ) -> Result<Self, AddrInfoError> {
        Self::checked(node, service, hints)
            .map_err(|problem| AddrInfoError::new(node, service, problem))
    }

    fn checked(
        node: Option<&str>,
        service: Option<&str>,
        hints: Option<&Hints>,
    ) -> Result<Self, Problem> {
        let settled = Settled::of(hints)?;
        let start = start::start(&settled, node, service)?;
        let mut plan = Self {
            node: None,
            service: None,
            settled,
            candidates: Vec::new(),
            skipped: Skipped::default(),
            why_skipped: None,
            stage: Stage::Done,
            question: None,
            failed: None,
        };
        match start {
            Start::Names(question) => plan.ask(Stage::Names, Question::Names(question)),
            Start::ServiceRecords(service) => {
                plan.ask(Stage::ServiceRecords, Question::ServiceRecords(service));
            }
            Start::Given { candidate, port } => {
                plan.candidates = vec![*candidate];
                match port {
                    Some(question) => plan.ask(Stage::Port, Question::Names(question)),
                    None => plan.after_port(),
                }
            }
            Start::Numeric(address) => plan.take_numeric(address, node),
        }
        // Store the texts for later questions and errors. A first question about names already holds them, and finished
        // results need none.
        let is_asked = plan.question.is_some() && !matches!(plan.stage, Stage::Names);
        if is_asked || plan.question.is_none() && plan.candidates.is_empty() {
            plan.node = node.map(Into::into);
            plan.service = service.map(Into::into);
        }
        Ok(plan)
    }

    /// The lookup to make now; `None` when the plan is complete.
    pub fn question(&self) -> Option<&Question> {
        self.question.as_ref()
    }

    /// Accepts the answer to [`Plan::question`] and determines the next question.
    pub fn answer(&mut self, answer: Answer) {
        let Some(question) = self.question.take() else {
            return;
        };
        let stage = std::mem::replace(&mut self.stage, Stage::Done);
        if matches!(stage, Stage::Names) {
            self.take_words(question);
        }
        if let Err(problem) = self.take(stage, answer) {
            self.question = None;
            self.failed = Some(problem);
        }
    }

    /// Takes the node and the service back from the question about names.
    fn take_words(&mut self, question: Question) {
        if let Question::Names(question) = question {
            (self.node, self.service) = (question.node, question.service);
        }
    }

    /// The results, in the order to try them. There is at least one.
    ///
    /// # Errors
    /// Why there is no result. `EAI_AGAIN` if questions are still open.
    pub fn finish(self) -> Result<Vec<AddrInfo>, AddrInfoError> {
        let mut plan = self;
        if let (Stage::Names, Some(question)) = (&plan.stage, plan.question.clone()) {
            plan.take_words(question);
        }
        let (node, service) = (plan.node.take(), plan.service.take());
        plan.results().map_err(|problem| AddrInfoError {
            node,
            service,
            problem: Box::new(problem),
        })
    }

    fn results(mut self) -> Result<Vec<AddrInfo>, Problem> {
        if let Some(problem) = self.failed {
            return Err(problem);
        }
        if self.question.is_some() {
            return Err(Problem::Name(names::Reason::Resolver(Eai::Again)));
        }
        if self.candidates.is_empty() {
            let none = Problem::Name(names::Reason::Resolver(Eai::NoData));
            return Err(self.why_skipped.unwrap_or(none));
        }
        let ordered = order::in_order(self.candidates);
        let common = Arc::new(Common {
            before: self.settled.decisions(),
            behind: self.skipped.decisions().collect(),
        });
        // Candidates are larger than results: collecting in place would keep their capacity.
        let mut results = Vec::with_capacity(ordered.len());
        for candidate in ordered {
            results.push(candidate.result(&self.settled, &common));
        }
        Ok(results)
    }

    fn ask(&mut self, stage: Stage, question: Question) {
        self.stage = stage;
        self.question = Some(question);
    }

    fn take(&mut self, stage: Stage, answer: Answer) -> Result<(), Problem> {
        match (stage, answer) {
            (Stage::Names, Answer::Names(answer)) => self.take_names(answer),
            (Stage::AnyFamily { expected, first }, Answer::Names(answer)) => match answer {
                Ok(found) => Err(Problem::NoneOfFamily {
                    expected,
                    found: found.len(),
                }),
                Err(_) => Err(Problem::Name(first.reason)),
            },
            (Stage::OtherKind { first }, Answer::Names(answer)) => Err(match answer {
                Ok(_) => Problem::Name(first.reason),
                Err(_) => Problem::UnknownService,
            }),
            (Stage::Port, Answer::Names(Err(error))) => self.without_names(error),
            (Stage::Port, Answer::Names(Ok(found))) => {
                let port = found.first().map_or(0, |result| result.addr.port());
                for candidate in &mut self.candidates {
                    candidate.set_port(&self.settled, port);
                }
                self.after_port();
                Ok(())
            }
            (Stage::Zone, Answer::Device(answer)) => self.take_zone(answer),
            (Stage::ServiceRecords, Answer::ServiceRecords(answer)) => {
                self.take_service_records(answer)
            }
            (Stage::Fabric(at), Answer::Device(answer)) => {
                self.take_fabric(at, answer);
                Ok(())
            }
            (Stage::Route(at), Answer::Route(answer)) => self.take_route(at, answer),
            (Stage::Device(at), Answer::Device(answer)) => {
                self.take_device(at, answer);
                Ok(())
            }
            (Stage::Paths(at), Answer::Paths(answer)) => {
                self.take_paths(at, answer);
                Ok(())
            }
            _ => Err(Problem::WrongAnswer),
        }
    }

    fn take_names(&mut self, answer: Result<Vec<NameResult>, NameError>) -> Result<(), Problem> {
        let found = match answer {
            Ok(found) => found,
            Err(error) => return self.without_names(error),
        };
        let mut found = found;
        let name = found
            .iter_mut()
            .find_map(|result| result.canonical_name.take());
        let origin = match &self.node {
            None => Decision::ThisMachine,
            Some(node) if names::is_numeric(node) => Decision::Numeric,
            Some(_) => Decision::Resolver {
                addresses: found.len(),
                canonical_name: name.clone(),
            },
        };
        self.settled.origin = Some(origin);
        self.candidates.reserve(found.len());
        for result in found {
            let address = Some(Address::Inet(result.addr));
            let same = |other: &Candidate| other.asked_for() == address;
            if !self.candidates.iter().any(same) {
                let candidate = Candidate::of_name(&self.settled, result.addr, name.clone());
                self.candidates.push(candidate);
            }
        }
        self.leave_out_unusable();
        self.look_at(0);
        Ok(())
    }

    /// The text was the address.
    fn take_numeric(&mut self, address: SocketAddr, node: Option<&str>) {
        self.candidates = vec![candidate::numeric(&mut self.settled, address, node)];
        self.leave_out_unusable();
        self.look_at(0);
    }

    /// Handles a failed name lookup. Asks further to distinguish a host without an address of the family from one
    /// without any address, and a service of another socket type from an unknown one.
    fn without_names(&mut self, error: NameError) -> Result<(), Problem> {
        if matches!(error.reason, names::Reason::Resolver(Eai::Service)) {
            let question = self.other_kind();
            self.ask(Stage::OtherKind { first: error }, Question::Names(question));
            return Ok(());
        }
        let tells_nothing = matches!(error.eai(), Eai::NoName | Eai::NoData | Eai::AddrFamily);
        let by_name = self
            .node
            .as_deref()
            .is_some_and(|node| !names::is_numeric(node))
            && matches!(error.reason, names::Reason::Resolver(_));
        match self.settled.family {
            Some(expected) if tells_nothing && by_name => {
                let mut options = self.settled.name_options();
                options.family = None;
                let question = NameQuestion {
                    node: self.node.clone(),
                    service: None,
                    options,
                };
                let stage = Stage::AnyFamily {
                    expected,
                    first: error,
                };
                self.ask(stage, Question::Names(question));
                Ok(())
            }
            _ => Err(Problem::Name(error.reason)),
        }
    }

    /// The lookup of the service for the other socket type.
    fn other_kind(&self) -> NameQuestion {
        let mut options = self.settled.name_options();
        options.family = None;
        options.socket_type = match options.socket_type {
            SocketType::Stream => SocketType::Datagram,
            SocketType::Datagram => SocketType::Stream,
        };
        NameQuestion {
            node: None,
            service: self.service.clone(),
            options,
        }
    }

    /// Addresses and ports are known: next is the device that a zone names, otherwise the route.
    fn after_port(&mut self) {
        match self.candidates.first().and_then(Candidate::zone_question) {
            Some(question) => self.ask(Stage::Zone, Question::Device(question)),
            None => {
                self.leave_out_unusable();
                self.look_at(0);
            }
        }
    }

    /// Removes the candidates that cannot match the request.
    fn leave_out_unusable(&mut self) {
        let Self {
            candidates,
            settled,
            skipped,
            why_skipped,
            ..
        } = self;
        candidates.retain_mut(|candidate| {
            candidate.decisions.reserve(candidate::DECISIONS);
            let address = candidate.asked_for();
            let problem = match candidate.fit(settled) {
                Ok(pinned) => {
                    let pinned = pinned.map(Decision::SourcePinned);
                    candidate.decisions.extend(pinned);
                    return true;
                }
                Err(problem) => problem,
            };
            skipped.add(address, &problem);
            why_skipped.get_or_insert(problem);
            false
        });
    }
}
