//! Joining the group, and delivery of each packet to its process.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::sync::Barrier;

use portolan_port_sharing::{BLOCK_COUNT, Block, Datagram, PortGroup};
use portolan_provider::{Cause, Error};

use super::harness::*;
use super::process::Process;

#[test]
fn sixteen_founders_at_once_become_one_group() {
    let config = config();
    let start = Barrier::new(16);
    let members: Vec<Member> = std::thread::scope(|scope| {
        let join = || {
            start.wait();
            Member::join(&config).expect("a place in the group")
        };
        let threads: Vec<_> = (0..16).map(|_| scope.spawn(join)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    assert_eq!(members.iter().filter(|m| m.is_coordinator()).count(), 1);
    let blocks: BTreeSet<_> = members.iter().map(|m| m.group.block()).collect();
    assert_eq!(blocks.len(), 16, "each has a block of its own: {blocks:?}");
    assert!(!blocks.contains(&Block::COORDINATOR));
    let coordinator = &members[the_coordinator(&members)];
    let known: BTreeSet<_> = coordinator
        .group
        .status()
        .members
        .iter()
        .map(|m| m.block)
        .collect();
    assert_eq!(known, blocks);
}

#[test]
fn packets_reach_the_member_that_has_their_queue_pair_and_no_other() {
    let config = config();
    let members: Vec<_> = (0..4).map(|_| Member::join(&config).unwrap()).collect();
    for target in loopbacks(config.port) {
        let sender = sender_to(target);
        for round in 0..50u32 {
            for member in &members {
                let block = member.group.block();
                let qpn = block.first_qpn() + round * 1311;
                sender.send(&packet(qpn, &[block.index()])).unwrap();
            }
        }
    }
    for member in &members {
        let received = member.read_block();
        assert_eq!(received.len(), 100, "50 over IPv4 and 50 over IPv6");
        assert!(
            received
                .iter()
                .all(|p| body(p) == [member.group.block().index()])
        );
    }
}

#[test]
fn management_datagrams_are_forwarded_whole_with_their_addresses() {
    let config = config();
    let members: Vec<_> = (0..3).map(|_| Member::join(&config).unwrap()).collect();
    for target in loopbacks(config.port) {
        let sender = sender_to(target);
        let source = sender.local_addr().unwrap();
        for member in &members {
            let index = if member.is_coordinator() {
                0
            } else {
                member.group.block().index()
            };
            let sent = packet(1, &[index, 1, 2, 3]);
            sender.send(&sent).unwrap();
            eventually("delivery", || {
                member.delivered().iter().any(|d| d.source == source)
            });
            let delivered = member.delivered();
            let of_this: Vec<_> = delivered.iter().filter(|d| d.source == source).collect();
            assert_eq!(of_this.len(), 1);
            assert_eq!(of_this[0].payload, sent);
            assert_eq!(of_this[0].destination, target.ip());
            assert_eq!(of_this[0].interface, 1, "the loopback interface");
        }
    }
}

/// A datagram from an address to itself.
fn datagram(ip: IpAddr, payload: &[u8]) -> Datagram<'_> {
    Datagram {
        source: (ip, 50_000).into(),
        destination: ip,
        interface: 1,
        traffic_class: 0,
        hop_limit: 64,
        payload,
    }
}

#[test]
fn a_packet_that_arrived_at_the_wrong_member_is_passed_on() {
    let config = config();
    let members: Vec<_> = (0..3).map(|_| Member::join(&config).unwrap()).collect();
    for from in &members {
        for to in &members {
            let stray = packet(
                to.group.block().first_qpn() + 7,
                &[from.group.block().index()],
            );
            let datagram = datagram(Ipv4Addr::LOCALHOST.into(), &stray);
            from.group.forward(to.group.block(), datagram);
            eventually("delivery", || {
                to.delivered().iter().any(|d| d.payload == stray)
            });
        }
    }
    let through_coordinator = packet(1, &[members[2].group.block().index(), 99]);
    let datagram = datagram(Ipv6Addr::LOCALHOST.into(), &through_coordinator);
    members[1].group.forward(Block::COORDINATOR, datagram);
    eventually("routing", || {
        members[2]
            .delivered()
            .iter()
            .any(|d| d.payload == through_coordinator)
    });
}

#[test]
fn every_member_gives_its_own_hosts_datagrams_to_the_coordinator_without_a_socket() {
    let config = config();
    let members: Vec<_> = (0..3).map(|_| Member::join(&config).unwrap()).collect();
    for from in &members {
        for to in &members {
            let index = if to.is_coordinator() {
                0
            } else {
                to.group.block().index()
            };
            let sent = packet(1, &[index, from.group.block().index(), 77]);
            let datagram = datagram(Ipv4Addr::LOCALHOST.into(), &sent);
            assert!(from.group.deliver_here(datagram));
            eventually("delivery", || {
                to.delivered().iter().any(|d| d.payload == sent)
            });
        }
    }
}

#[test]
fn packets_without_a_recipient_are_dropped_and_counted() {
    let config = config();
    let coordinator = Member::join(&config).unwrap();
    let [target, _] = loopbacks(config.port);
    let sender = sender_to(target);
    sender.send(b"tiny").unwrap();
    sender.send(&packet(0xff_ffff, b"multicast")).unwrap();
    sender.send(&packet(1, &[255])).unwrap();
    eventually("counting", || {
        let counters = coordinator.group.status().counters;
        counters.malformed == 1 && counters.no_member == 1 && counters.unrouted == 1
    });
    assert!(coordinator.delivered().is_empty());
}

/// If the datagram were dropped, the dead process's peer on another host would retry until it gives up. The
/// coordinator answers that the connection does not exist.
#[test]
fn the_coordinator_answers_management_datagrams_for_a_dead_process() {
    let config = config();
    let coordinator = Member::join(&config).unwrap();
    let living = Member::join(&config).unwrap();
    let dead = Member::join(&config).unwrap();
    let of_dead = packet(1, &[dead.group.block().index(), 1]);
    drop(dead);
    eventually("its end", || coordinator.group.status().members.len() == 2);
    let of_nobody = packet(1, &[77, 2]);
    let of_living = packet(1, &[living.group.block().index(), 3]);
    let sender = sender_to(loopbacks(config.port)[0]);
    for sent in [&of_dead, &of_nobody, &of_living] {
        sender.send(sent).unwrap();
    }
    eventually("delivery to the living", || living.delivered().len() == 1);
    assert_eq!(living.delivered()[0].payload, of_living);
    eventually("delivery to the coordinator", || {
        coordinator.delivered().len() == 2
    });
    let delivered = coordinator.delivered();
    assert_eq!(delivered[0].payload, of_dead);
    assert_eq!(delivered[1].payload, of_nobody);
    assert_eq!(coordinator.group.status().counters.no_member, 0);
}

#[test]
fn a_management_datagram_for_everyone_is_delivered_to_each_process_once() {
    let config = config();
    let members: Vec<_> = (0..3).map(|_| Member::join(&config).unwrap()).collect();
    let sender = sender_to(loopbacks(config.port)[0]);
    let sent = packet(1, &[EVERYONE, 1, 2]);
    sender.send(&sent).unwrap();
    // Later datagrams must arrive after it.
    for member in &members {
        let index = match member.is_coordinator() {
            true => 0,
            false => member.group.block().index(),
        };
        sender.send(&packet(1, &[index])).unwrap();
    }
    for member in &members {
        eventually("delivery", || member.delivered().len() == 2);
        assert_eq!(member.delivered()[0].payload, sent);
    }
}

/// Checks that the error names this process as the port's owner.
fn assert_is_own(error: &Error, port: u16) {
    let Cause::PortOwnedElsewhere {
        port: found,
        holder: Some(holder),
    } = &error.cause
    else {
        panic!("{error}")
    };
    assert_eq!((*found, holder.pid), (port, std::process::id()), "{error}");
}

#[test]
fn a_port_held_by_another_program_is_reported() {
    let config = config();
    for address in [
        std::net::SocketAddr::from((Ipv4Addr::UNSPECIFIED, config.port)),
        std::net::SocketAddr::from((Ipv4Addr::LOCALHOST, config.port)),
    ] {
        let foreign = UdpSocket::bind(address).unwrap();
        let error = Member::join(&config).expect_err("the port is taken");
        assert_is_own(&error, config.port);
        drop(foreign);
    }
    Member::join(&config).expect("the port is free again");
}

#[test]
fn a_port_held_by_another_program_only_in_ipv6_is_reported() {
    let config = config();
    let foreign = rustix::net::socket(
        rustix::net::AddressFamily::INET6,
        rustix::net::SocketType::DGRAM,
        None,
    )
    .unwrap();
    rustix::net::sockopt::set_ipv6_v6only(&foreign, true).unwrap();
    let address = std::net::SocketAddr::from((Ipv6Addr::UNSPECIFIED, config.port));
    rustix::net::bind(&foreign, &address).unwrap();
    let error = Member::join(&config).expect_err("the port is taken");
    assert_is_own(&error, config.port);
}

#[test]
fn the_128th_process_is_refused_because_there_is_no_room() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();

    let config = config();
    let coordinator = Member::join(&config).unwrap();
    // The others are members without a thread of their own.
    let join = || {
        PortGroup::join(
            config.clone(),
            Box::new(Names::default()),
            Default::default_claims(),
        )
    };
    let others: Vec<_> = (0..BLOCK_COUNT - 2)
        .map(|_| join().expect("a block"))
        .collect();
    let blocks: BTreeSet<_> = others
        .iter()
        .map(PortGroup::block)
        .chain([coordinator.group.block()])
        .collect();
    assert_eq!(blocks, Block::members().collect());
    let error = join().expect_err("no block is left");
    assert!(
        matches!(error.cause, Cause::LimitReached { limit: 127, .. }),
        "{error}"
    );
    let text = "the limit of 127 processes sharing the UDP port of one network namespace";
    assert!(error.to_string().contains(text), "{error}");
    // A freed place can be reused.
    let mut others = others;
    let freed = others.pop().unwrap();
    let block = freed.block();
    drop(freed);
    assert_eq!(join().expect("the freed block").block(), block);
}

/// Names a member service for groups without a harness.
trait DefaultClaims {
    fn default_claims() -> std::sync::Arc<Claims>;
}

impl DefaultClaims for Default {
    fn default_claims() -> std::sync::Arc<Claims> {
        std::sync::Arc::default()
    }
}

/// Implements the trait above.
struct Default;

#[test]
fn joining_and_leaving_leaves_no_descriptor_behind() {
    let config = config();
    // In a separate process, because other tests open descriptors too.
    let mut process = Process::spawn(config.port);
    process.ask("churn 1");
    let before = process.ask("descriptors");
    process.ask("churn 50");
    assert_eq!(process.ask("descriptors"), before);
}

#[test]
fn a_member_needs_few_descriptors() {
    // In a separate process, because other tests open descriptors too.
    let config = config();
    let mut coordinator = Process::spawn(config.port);
    let mut member = Process::spawn(config.port);
    assert!(coordinator.is_coordinator());
    let of_member = member.ask("descriptors").parse::<usize>().unwrap();
    let of_coordinator = coordinator.ask("descriptors").parse::<usize>().unwrap();
    // Group: two epoll descriptors, two counters, the connection, the descriptor store, the name, two sockets
    // and a placeholder. Others: standard streams, the directory being read, and such.
    assert!(of_member <= 10 + 8, "{of_member}");
    assert!(of_coordinator <= of_member + 4, "{of_coordinator}");
}
