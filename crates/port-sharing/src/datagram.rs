//! A received datagram with its addresses, and the queue that delivers datagrams and death notices in order of arrival.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use super::block::BlockSet;
use super::config::INBOX_DATAGRAMS_MAX;

/// A datagram as received from the network, by whichever process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Sender's address and UDP port; a link-local address has its scope id.
    pub source: SocketAddr,
    /// The address it was sent to.
    pub destination: IpAddr,
    /// Index of the network interface it arrived on, 0 if unknown.
    pub interface: u32,
    /// IPv4 type of service or IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv4 time to live or IPv6 hop limit, as received.
    pub hop_limit: u8,
    /// UDP payload, from the base transport header to the ICRC.
    pub payload: &'a [u8],
}

/// The delivery queue. The datagrams' bytes are in one buffer, which is reused.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    bytes: Vec<u8>,
    waiting: VecDeque<Waiting>,
    datagrams: usize,
}

/// An item to deliver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery<'a> {
    /// A datagram.
    Datagram(Datagram<'a>),
    /// The processes of these blocks are dead.
    PeerDeath(BlockSet),
}

#[derive(Debug)]
enum Waiting {
    /// A datagram without its payload, and the payload's range in the buffer.
    Datagram {
        header: Datagram<'static>,
        payload: Range<usize>,
    },
    PeerDeath(BlockSet),
}

impl Inbox {
    /// Appends a copy of a datagram; `false` if the inbox is full.
    pub(super) fn push(&mut self, datagram: &Datagram<'_>) -> bool {
        if self.datagrams >= INBOX_DATAGRAMS_MAX {
            return false;
        }
        self.datagrams += 1;
        let start = self.bytes.len();
        self.bytes.extend_from_slice(datagram.payload);
        let header = Datagram {
            payload: &[],
            ..*datagram
        };
        self.waiting.push_back(Waiting::Datagram {
            header,
            payload: start..self.bytes.len(),
        });
        true
    }

    /// Appends a death notice. This never fails, because consecutive notices are merged.
    pub(super) fn push_peer_death(&mut self, blocks: BlockSet) {
        match self.waiting.back_mut() {
            Some(Waiting::PeerDeath(earlier)) => earlier.add(blocks),
            _ => self.waiting.push_back(Waiting::PeerDeath(blocks)),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Delivers everything in order of arrival and empties the inbox, keeping its memory.
    pub(super) fn deliver(&mut self, deliver: &mut dyn FnMut(Delivery<'_>)) {
        // An item is removed first, so that a panic does not deliver it again. The rest stays for the next call.
        while let Some(waiting) = self.waiting.pop_front() {
            deliver(match waiting {
                Waiting::PeerDeath(blocks) => Delivery::PeerDeath(blocks),
                Waiting::Datagram { header, payload } => {
                    let payload = self.bytes.get(payload).unwrap_or_default();
                    Delivery::Datagram(Datagram { payload, ..header })
                }
            });
        }
        self.bytes.clear();
        self.datagrams = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn datagram(payload: &[u8]) -> Datagram<'_> {
        Datagram {
            source: SocketAddr::from((Ipv4Addr::LOCALHOST, 50_000)),
            destination: Ipv4Addr::LOCALHOST.into(),
            interface: 1,
            traffic_class: 0,
            hop_limit: 64,
            payload,
        }
    }

    #[test]
    fn datagrams_are_returned_unchanged_and_in_order() {
        let mut inbox = Inbox::default();
        assert!(inbox.push(&datagram(b"one")));
        assert!(inbox.push(&datagram(b"")));
        assert!(inbox.push(&datagram(b"three")));
        let mut seen = Vec::new();
        inbox.deliver(&mut |delivery| {
            let Delivery::Datagram(datagram) = delivery else {
                panic!("{delivery:?}")
            };
            assert_eq!(datagram.interface, 1);
            seen.push(datagram.payload.to_vec());
        });
        assert_eq!(seen, [&b"one"[..], b"", b"three"]);
        assert!(inbox.is_empty());
    }

    #[test]
    fn what_is_delivered_while_the_receiver_panics_is_not_delivered_again_and_the_rest_is() {
        let mut inbox = Inbox::default();
        let dead = BlockSet::from_bits(2);
        assert!(inbox.push(&datagram(b"one")));
        assert!(inbox.push(&datagram(b"two")));
        inbox.push_peer_death(dead);
        let mut seen = Vec::new();
        let mut deliver = |inbox: &mut Inbox, panics_at: &[u8]| {
            let delivered = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                inbox.deliver(&mut |delivery| match delivery {
                    Delivery::Datagram(datagram) => {
                        seen.push(datagram.payload.to_vec());
                        assert_ne!(datagram.payload, panics_at);
                    }
                    Delivery::PeerDeath(blocks) => {
                        assert_eq!(blocks, dead);
                        seen.push(b"death".to_vec());
                    }
                });
            }));
            delivered.is_ok()
        };
        assert!(!deliver(&mut inbox, b"one"));
        assert!(inbox.push(&datagram(b"three")));
        assert!(deliver(&mut inbox, b""));
        assert!(inbox.is_empty());
        assert_eq!(seen, [&b"one"[..], b"two", b"death", b"three"]);
    }

    #[test]
    fn a_full_inbox_refuses_more() {
        let mut inbox = Inbox::default();
        for _ in 0..INBOX_DATAGRAMS_MAX {
            assert!(inbox.push(&datagram(b"x")));
        }
        assert!(!inbox.push(&datagram(b"x")));
        inbox.deliver(&mut |_| {});
        assert!(inbox.push(&datagram(b"x")));
    }

    #[test]
    fn the_announcement_of_a_death_keeps_its_order_and_is_never_refused() {
        let mut inbox = Inbox::default();
        for _ in 0..INBOX_DATAGRAMS_MAX {
            assert!(inbox.push(&datagram(b"before")));
        }
        let [one, two] = [BlockSet::from_bits(2), BlockSet::from_bits(4)];
        inbox.push_peer_death(one);
        inbox.push_peer_death(two);
        let mut last = None;
        inbox.deliver(&mut |delivery| {
            last = match delivery {
                Delivery::PeerDeath(blocks) => Some(blocks),
                Delivery::Datagram(_) => None,
            };
        });
        assert_eq!(last, Some(BlockSet::from_bits(6)));
        assert!(inbox.is_empty());
    }
}
