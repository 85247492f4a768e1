//! Compares the transition table with a second list.

use std::collections::{BTreeMap, BTreeSet};

use portolan_cm::State;
use portolan_cm::state::{Event, Next, Source, transition};

/// Every legal transition by state, written from the state diagrams and Linux's handlers. The engine's table is
/// organised by event.
fn legal(state: State) -> Vec<(Event, State)> {
    use Event as E;
    use State as S;
    match state {
        S::Idle => vec![
            (E::Bind, S::AddrBound),
            (E::ResolveAddr, S::AddrQuery),
            (E::ReqReceived, S::ReqRcvd),
            (E::SidrReqReceived, S::SidrReqRcvd),
        ],
        S::AddrBound => vec![
            (E::Listen, S::Listen),
            (E::ResolveAddr, S::AddrQuery),
            (E::Join, S::AddrBound),
            (E::DeviceRemoved, S::DeviceRemoval),
            (E::HardwareAddressChanged, S::AddrBound),
        ],
        S::Listen => vec![
            (E::ReqReceived, S::Listen),
            (E::SidrReqReceived, S::Listen),
            (E::DeviceRemoved, S::DeviceRemoval),
            (E::HardwareAddressChanged, S::Listen),
        ],
        S::AddrQuery => vec![
            (E::AddressFound, S::AddrResolved),
            (E::AddressFailed, S::AddrBound),
            (E::AddressTimeout, S::AddrBound),
            (E::DeviceRemoved, S::DeviceRemoval),
            (E::HardwareAddressChanged, S::AddrQuery),
        ],
        S::AddrResolved => vec![
            (E::ResolveRoute, S::RouteResolved),
            (E::Join, S::AddrResolved),
            (E::DeviceRemoved, S::DeviceRemoval),
            (E::HardwareAddressChanged, S::AddrResolved),
        ],
        S::RouteResolved => vec![
            (E::Connect, S::ReqSent),
            (E::ConnectDatagram, S::SidrReqSent),
            (E::DeviceRemoved, S::DeviceRemoval),
            (E::HardwareAddressChanged, S::RouteResolved),
            (E::NeighbourChanged, S::RouteResolved),
        ],
        S::ReqSent => vec![
            (E::RepReceived, S::RepRcvd),
            (E::RepStale, S::ReqSent),
            (E::MraReceived, S::MraReqRcvd),
            (E::RejReceived, S::Closed),
            (E::RejStaleReceived, S::Timewait),
            (E::Unanswered, S::Closed),
            (E::Reject, S::Closed),
            (E::Disconnect, S::ReqSent),
            (E::DeviceRemoved, S::DeviceRemoval),
            (E::HardwareAddressChanged, S::ReqSent),
            (E::NeighbourChanged, S::ReqSent),
        ],
        S::MraReqRcvd => vec![
            (E::RepReceived, S::RepRcvd),
            (E::RepStale, S::MraReqRcvd),
            (E::MraReceived, S::MraReqRcvd),
            (E::RejReceived, S::Closed),
            (E::RejStaleReceived, S::Timewait),
            (E::Unanswered, S::Closed),
            (E::Reject, S::Closed),
            (E::Disconnect, S::MraReqRcvd),
            (E::DeviceRemoved, S::DeviceRemoval),
            (E::HardwareAddressChanged, S::MraReqRcvd),
            (E::NeighbourChanged, S::MraReqRcvd),
        ],
        S::RepRcvd => vec![
            (E::Establish, S::Established),
            (E::Reject, S::Closed),
            (E::RepRepeated, S::RepRcvd),
            (E::RejReceived, S::Timewait),
            (E::RejStaleReceived, S::Timewait),
            (E::Disconnect, S::RepRcvd),
            (E::DeviceRemoved, S::DeviceRemoval),
            (E::HardwareAddressChanged, S::RepRcvd),
            (E::NeighbourChanged, S::RepRcvd),
        ],
        S::ReqRcvd => vec![
            (E::Accept, S::RepSent),
            (E::Reject, S::Closed),
            (E::ReqRepeated, S::ReqRcvd),
            (E::Displaced, S::Closed),
            (E::RejReceived, S::Closed),
            (E::RejStaleReceived, S::Timewait),
            (E::Disconnect, S::ReqRcvd),
            (E::DeviceRemoved, S::DeviceRemoval),
            (E::HardwareAddressChanged, S::ReqRcvd),
        ],
        S::RepSent => vec![
            (E::RtuReceived, S::Established),
            (E::NotifyEstablished, S::Established),
            (E::MraReceived, S::MraRepRcvd),
            (E::ReqRepeated, S::RepSent),
            (E::RejReceived, S::Closed),
            (E::RejStaleReceived, S::Timewait),
            (E::Reject, S::Timewait),
            (E::DreqReceived, S::DreqRcvd),
            (E::Displaced, S::Closed),
            (E::Unanswered, S::Closed),
            (E::Disconnect, S::RepSent),
            (E::DeviceRemoved, S::DeviceRemoval),
            (E::HardwareAddressChanged, S::RepSent),
        ],
        S::MraRepRcvd => vec![
            (E::RtuReceived, S::Established),
            (E::NotifyEstablished, S::Established),
            (E::MraReceived, S::MraRepRcvd),
            (E::ReqRepeated, S::MraRepRcvd),
            (E::RejReceived, S::Closed),
            (E::RejStaleReceived, S::Timewait),
            (E::Reject, S::Timewait),
            (E::DreqReceived, S::DreqRcvd),
            (E::Displaced, S::Closed),
            (E::Unanswered, S::Closed),
            (E::Disconnect, S::MraRepRcvd),
            (E::DeviceRemoved, S::DeviceRemoval),
            (E::HardwareAddressChanged, S::MraRepRcvd),
        ],
        S::Established => vec![
            (E::Disconnect, S::DreqSent),
            (E::FoundStale, S::DreqSent),
            (E::DreqReceived, S::DreqRcvd),
            (E::RejReceived, S::Timewait),
            (E::RejStaleReceived, S::Timewait),
            (E::RepRepeated, S::Established),
            (E::NotifyEstablished, S::Established),
            (E::DeviceRemoved, S::DeviceRemoval),
            (E::HardwareAddressChanged, S::Established),
            (E::NeighbourChanged, S::Established),
        ],
        S::DreqSent => vec![
            (E::DrepReceived, S::Timewait),
            (E::DreqReceived, S::Timewait),
            (E::RejReceived, S::Timewait),
            (E::RejStaleReceived, S::Timewait),
            (E::Unanswered, S::Timewait),
            (E::Disconnect, S::DreqSent),
            (E::DeviceRemoved, S::DeviceRemoval),
            (E::HardwareAddressChanged, S::DreqSent),
            (E::NeighbourChanged, S::DreqSent),
        ],
        S::DreqRcvd => vec![
            (E::Disconnect, S::Timewait),
            (E::DrepReceived, S::Timewait),
            (E::DreqReceived, S::DreqRcvd),
            (E::DeviceRemoved, S::DeviceRemoval),
            (E::HardwareAddressChanged, S::DreqRcvd),
            (E::NeighbourChanged, S::DreqRcvd),
        ],
        S::SidrReqSent => vec![
            (E::SidrRepReceived, S::SidrResolved),
            (E::SidrRepRefused, S::Closed),
            (E::Unanswered, S::Closed),
            (E::Disconnect, S::SidrReqSent),
            (E::DeviceRemoved, S::DeviceRemoval),
            (E::HardwareAddressChanged, S::SidrReqSent),
            (E::NeighbourChanged, S::SidrReqSent),
        ],
        S::SidrResolved => vec![
            (E::Disconnect, S::SidrResolved),
            (E::DeviceRemoved, S::DeviceRemoval),
            (E::HardwareAddressChanged, S::SidrResolved),
            (E::NeighbourChanged, S::SidrResolved),
        ],
        S::SidrReqRcvd => vec![
            (E::Accept, S::SidrReplied),
            (E::Reject, S::SidrReplied),
            (E::SidrReqRepeated, S::SidrReqRcvd),
            (E::Displaced, S::Closed),
            (E::Disconnect, S::SidrReqRcvd),
            (E::DeviceRemoved, S::DeviceRemoval),
            (E::HardwareAddressChanged, S::SidrReqRcvd),
        ],
        S::SidrReplied => vec![
            (E::SidrReqRepeated, S::SidrReplied),
            (E::Disconnect, S::SidrReplied),
            (E::DeviceRemoved, S::DeviceRemoval),
            (E::HardwareAddressChanged, S::SidrReplied),
        ],
        S::Timewait => vec![
            (E::DreqReceived, S::Timewait),
            (E::ReqRepeated, S::Timewait),
            (E::TimewaitOver, S::Closed),
            (E::Disconnect, S::Timewait),
            (E::DeviceRemoved, S::DeviceRemoval),
            (E::HardwareAddressChanged, S::Timewait),
        ],
        S::Closed => vec![
            (E::DreqReceived, S::Closed),
            (E::Disconnect, S::Closed),
            (E::DeviceRemoved, S::DeviceRemoval),
            (E::HardwareAddressChanged, S::Closed),
        ],
        S::DeviceRemoval => vec![],
    }
}

#[test]
fn the_table_and_the_list_agree_in_every_cell() {
    for state in State::ALL {
        let mut listed: BTreeMap<Event, Next> = legal(state)
            .into_iter()
            .map(|(event, next)| (event, Next::To(next)))
            .collect();
        assert_eq!(
            listed.len(),
            legal(state).len(),
            "{state:?} lists an event twice"
        );
        listed.insert(Event::Destroy, Next::Gone);
        for event in Event::ALL {
            let next = transition(state, event).map(|(next, _)| next);
            assert_eq!(next, listed.get(&event).copied(), "{state:?} × {event:?}");
        }
    }
}

#[test]
fn every_transition_names_its_source() {
    for state in State::ALL {
        for event in Event::ALL {
            match transition(state, event) {
                Some((_, Source::Cma(name) | Source::IbCm(name))) => {
                    assert!(
                        name.chars().all(|c| c.is_ascii_lowercase() || c == '_'),
                        "{name}"
                    );
                }
                Some((_, Source::Ibta(clause))) => assert!(clause.starts_with("12."), "{clause}"),
                None => {}
            }
        }
    }
}

#[test]
fn every_state_is_reached_from_idle() {
    let mut reached = BTreeSet::from([State::Idle]);
    for _ in State::ALL {
        for state in reached.clone() {
            reached.extend(legal(state).into_iter().map(|(_, next)| next));
        }
    }
    assert_eq!(reached, State::ALL.into_iter().collect());
}

#[test]
fn the_error_of_a_command_lists_the_states_that_allow_it() {
    let commands = [
        Event::Bind,
        Event::Join,
        Event::ResolveAddr,
        Event::ResolveRoute,
        Event::Listen,
        Event::Connect,
        Event::ConnectDatagram,
        Event::Accept,
        Event::Establish,
        Event::Reject,
        Event::NotifyEstablished,
    ];
    for command in commands {
        let words = command.legal_in().replace(" or ", ", ");
        let named: BTreeSet<&str> = words.split(", ").collect();
        let allowing = State::ALL
            .into_iter()
            .filter(|state| transition(*state, command).is_some());
        assert_eq!(named, allowing.map(State::name).collect(), "{command:?}");
    }
}
