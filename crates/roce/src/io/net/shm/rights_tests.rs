#![allow(unsafe_code, reason = "looks at memory through two mappings")]

use proptest::prelude::*;

use super::*;
use crate::io::net::shm::memory_files::MemoryFiles;
use crate::io::net::shm::peer_memory::{NoPassage, PeerMemory};
use crate::io::net::shm::peer_rights::Wanted;
use crate::io::net::shm::program_memory::Process;
use crate::io::net::shm::rights_layout::*;
use crate::io::net::shm::ring::Writer;

const QPN: Qpn = Qpn::new(0x02_1234);
const PEER: Qpn = Qpn::new(0x03_4321);
const ALL: Access = Access::REMOTE_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

/// A process with a region, and another that may reach it.
struct Two {
    rights: Rights,
    files: Arc<MemoryFiles>,
    pages: Arc<SharedPages>,
    key: Slot,
    qp: Slot,
    peer: PeerMemory,
    ring: Arc<Mapping>,
}

fn qp_right(access: Access) -> QpRight {
    QpRight {
        qpn: QPN,
        peer: PEER,
        tag: 5,
        pd: PdId(7),
        access,
    }
}

impl Two {
    fn new() -> Self {
        let files = Arc::new(MemoryFiles::new());
        // Not at the start of the file.
        let _before = files.alloc(4096);
        let pages = files.alloc(4096).unwrap();
        let rights = Rights::create().unwrap();
        rights.set_open(true);
        let key = rights.give_key(&key_right(&pages, ALL)).unwrap();
        let qp = rights.give_qp(&qp_right(ALL)).unwrap();
        // The ring's file, as both have it.
        let (pending, _) = Writer::create().unwrap();
        let ring = Arc::clone(pending.mapping());
        rights.add_user(9, Arc::clone(&ring), std::process::id());
        let peer = PeerMemory::open(rights.file(), Arc::clone(&ring), std::process::id());
        let peer = peer.unwrap().unwrap();
        let two = Self {
            rights,
            files,
            pages,
            key,
            qp,
            peer,
            ring,
        };
        let missing = two.peer.enter(&two.wanted()).unwrap_err();
        assert_eq!(missing, NoPassage::Missing);
        assert_eq!(two.peer.take_asked(), [0]);
        let taken = two.files.with_file(0, |file| two.peer.add_file(0, file));
        taken.unwrap().unwrap();
        two
    }

    fn wanted(&self) -> Wanted {
        Wanted {
            qpn: QPN,
            peer: PEER,
            tag: 5,
            right: Access::REMOTE_WRITE,
            rkey: 0x1234_5678,
            addr: 0x10_0000,
            len: 4096,
        }
    }

    fn is_allowed(&self, wanted: &Wanted) -> bool {
        self.peer.enter(wanted).is_ok()
    }
}

fn key_right(pages: &SharedPages, access: Access) -> KeyRight {
    let (file, offset) = pages.place();
    KeyRight {
        rkey: 0x1234_5678,
        pd: PdId(7),
        access,
        iova: 0x10_0000,
        length: 4096,
        file,
        offset,
    }
}

fn addr(pages: &SharedPages) -> u64 {
    portolan_provider::traits::HostMemory::addr(pages)
}

#[test]
fn a_request_within_the_rights_finds_the_very_memory() {
    let two = Two::new();
    for (offset, len) in [(0, 4096), (4000, 96), (4095, 1)] {
        let wanted = Wanted {
            addr: 0x10_0000 + offset,
            len,
            ..two.wanted()
        };
        let passage = two.peer.enter(&wanted).unwrap();
        let at = std::ptr::with_exposed_provenance_mut::<u8>(passage.addr() as usize);
        let own = addr(&two.pages) + offset;
        let own = std::ptr::with_exposed_provenance::<u8>(own as usize);
        assert_ne!(at.cast_const(), own, "mapped twice");
        // SAFETY: both are this test's own mappings of at least a byte.
        unsafe {
            at.write(len as u8 | 1);
            assert_eq!(own.read(), len as u8 | 1);
        }
    }
}

#[test]
fn a_request_beyond_any_right_is_refused() {
    let two = Two::new();
    let right = two.wanted();
    assert!(two.is_allowed(&right));
    for wrong in [
        Wanted { rkey: 1, ..right },
        Wanted { tag: 6, ..right },
        Wanted { qpn: PEER, ..right },
        Wanted { peer: QPN, ..right },
        Wanted {
            peer: Qpn::new(0x03_4322),
            ..right
        },
        Wanted {
            qpn: Qpn::new(0x02_2234),
            ..right
        },
        Wanted {
            addr: 0x10_0001,
            ..right
        },
        Wanted {
            addr: 0x0f_ffff,
            ..right
        },
        Wanted {
            addr: u64::MAX,
            ..right
        },
        Wanted { len: 4097, ..right },
        Wanted {
            len: u32::MAX,
            ..right
        },
        Wanted {
            right: Access::empty(),
            ..right
        },
    ] {
        assert_eq!(
            two.peer.enter(&wrong).unwrap_err(),
            NoPassage::Unknown,
            "{wrong:?}"
        );
    }
    // Nothing is announced any more.
    assert!((0..HAZARDS).all(|hazard| hazard_of(&two.ring, hazard).announced() == 0));
}

#[test]
fn every_right_counts_for_itself_of_key_and_queue_pair() {
    let single = [
        Access::REMOTE_WRITE,
        Access::REMOTE_READ,
        Access::REMOTE_ATOMIC,
    ];
    for given in single {
        for of_key in [true, false] {
            let two = Two::new();
            if of_key {
                two.rights.take_key(two.key, &two.pages);
                two.rights.give_key(&key_right(&two.pages, given)).unwrap();
            } else {
                two.rights.take_qp(two.qp);
                two.rights.wait_for_qp(two.qp);
                two.rights.give_qp(&qp_right(given)).unwrap();
            }
            for right in single {
                let wanted = Wanted {
                    right,
                    ..two.wanted()
                };
                assert_eq!(two.is_allowed(&wanted), right == given);
            }
        }
    }
}

#[test]
fn a_region_of_another_protection_domain_is_not_reached() {
    let two = Two::new();
    two.rights.take_key(two.key, &two.pages);
    let right = key_right(&two.pages, ALL);
    let right = KeyRight {
        pd: PdId(8),
        ..right
    };
    two.rights.give_key(&right).unwrap();
    assert!(!two.is_allowed(&two.wanted()));
}

#[test]
fn a_withdrawn_right_ends_at_once_and_can_be_granted_again() {
    let two = Two::new();
    two.rights.take_key(two.key, &two.pages);
    assert!(!two.is_allowed(&two.wanted()));
    two.rights.give_key(&key_right(&two.pages, ALL)).unwrap();
    assert!(two.is_allowed(&two.wanted()));
    two.rights.take_qp(two.qp);
    two.rights.wait_for_qp(two.qp);
    assert!(!two.is_allowed(&two.wanted()));
    two.rights.give_qp(&qp_right(ALL)).unwrap();
    assert!(two.is_allowed(&two.wanted()));
    two.rights.set_open(false);
    assert!(!two.is_allowed(&two.wanted()));
}

#[test]
fn memory_that_a_stopped_process_is_copying_is_kept_until_it_is_out_even_if_its_link_ends() {
    use portolan_provider::traits::HostMemory;
    for ends in [false, true] {
        let two = Two::new();
        let passage = two.peer.enter(&two.wanted()).unwrap();
        let began = Instant::now();
        two.rights.take_key(two.key, &two.pages);
        assert!(began.elapsed() < Duration::from_secs(5));
        assert!(two.pages.is_held());
        let place = two.pages.place();
        let Two {
            rights,
            files,
            pages,
            peer,
            ..
        } = &two;
        let weak = Arc::downgrade(pages);
        let wanted = two.wanted();
        assert!(peer.enter(&wanted).is_err(), "no new copy begins");
        rights.let_go();
        // Only the table holds it now.
        let keeps = |weak: &std::sync::Weak<SharedPages>| weak.strong_count() == 2;
        assert!(keeps(&weak));
        assert_ne!(files.alloc(4096).unwrap().place(), place);
        if ends {
            rights.remove_user(9);
            assert!(
                keeps(&weak),
                "the link has ended, but the process copies on"
            );
        }
        drop(passage);
        rights.let_go();
        assert!(!keeps(&weak), "nothing is kept");
    }
}

#[test]
fn a_copy_that_is_under_way_is_waited_for() {
    let two = Two::new();
    let passage = two.peer.enter(&two.wanted()).unwrap();
    std::thread::scope(|scope| {
        let taken = scope.spawn(|| two.rights.take_key(two.key, &two.pages));
        // It has begun to wait, or has not begun: the end is the same.
        std::thread::sleep(Duration::from_millis(1));
        drop(passage);
        taken.join().unwrap();
    });
    assert!(!two.is_allowed(&two.wanted()));
}

#[test]
fn a_withdrawn_request_to_copy_out_of_memory_waits_for_its_own_copy_only() {
    let two = Two::new();
    let sleeper = Sleeper::new();
    two.rights
        .add_user(9, Arc::clone(&two.ring), sleeper.0.id());
    let announced = two.peer.announce_pull(7).unwrap();
    let (lkey, other) = (70, 60);
    two.rights.note_ended_pull(7, vec![lkey]);
    two.rights.note_ended_pull(6, vec![other]);
    two.rights.wait_for_pulls_of(other).unwrap();
    let busy = two.rights.wait_for_pulls_of(lkey).unwrap_err();
    assert!(busy.count > 0);
    two.rights.remove_user(9);
    let busy = two.rights.wait_for_pulls_of(lkey).unwrap_err();
    assert!(busy.count > 0, "only its link has ended");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| two.rights.wait_for_pulls_of(lkey));
        std::thread::sleep(Duration::from_millis(1));
        drop(announced);
        waiting.join().unwrap().unwrap();
    });
    let _announced = two.peer.announce_pull(9).unwrap();
    two.rights.take_key(two.key, &two.pages);
}

/// A child process, ended when this is dropped.
struct Sleeper(std::process::Child);

impl Sleeper {
    fn new() -> Self {
        Self(
            std::process::Command::new("sleep")
                .arg("60")
                .spawn()
                .unwrap(),
        )
    }

    /// Stops it, and waits until it is.
    fn stop(&self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        while super::may_be_in_a_call(self.0.id()) {
            std::thread::yield_now();
        }
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Two, with a region of the program's memory instead, used by the process `pid`.
fn with_program_memory(memory: &[u8], pid: u32) -> (Two, Slot) {
    let two = Two::new();
    two.rights.take_key(two.key, &two.pages);
    two.rights.remove_user(9);
    two.rights.add_user(9, Arc::clone(&two.ring), pid);
    let addr = memory.as_ptr().expose_provenance() as u64;
    let right = key_right(&two.pages, ALL).of_program(addr);
    let key = two.rights.give_key(&right).unwrap();
    (two, key)
}

/// Announces the use of a key, as a process does that is stopped before its copy.
fn announce(two: &Two, Slot(key): Slot) {
    let Slot(qp) = two.qp;
    let announced = ANNOUNCED | (key as u64) << 24 | qp as u64;
    assert!(hazard_of(&two.ring, 3).announce(announced));
}

#[test]
fn an_atomic_on_the_programs_memory_is_known_to_need_packets_before_it_is_tried() {
    let two = Two::new();
    let atomic = |two: &Two| Wanted {
        right: Access::REMOTE_ATOMIC,
        len: 8,
        ..two.wanted()
    };
    let key = two.wanted().rkey;
    assert!(two.is_allowed(&atomic(&two)) && !two.peer.is_of_program(key));
    two.rights.take_key(two.key, &two.pages);
    assert!(!two.peer.is_of_program(key), "there is no such key");
    let memory = [0; 4096];
    let (two, key) = with_program_memory(&memory, std::process::id());
    assert!(!two.is_allowed(&atomic(&two)) && two.peer.is_of_program(two.wanted().rkey));
    two.rights.take_program_key(key).unwrap();
    assert!(!two.peer.is_of_program(two.wanted().rkey));
}

#[test]
fn the_programs_memory_is_written_to_only_within_the_rights_and_through_the_gate() {
    let (memory, own) = ([0u8; 4096], [7u8; 4096]);
    let (two, key) = with_program_memory(&memory, std::process::id());
    let pieces = || [(own.as_ptr().expose_provenance() as u64, 4096)].into_iter();
    // SAFETY: this test's memory, written to by the kernel.
    let found = || unsafe { std::ptr::read_volatile(&raw const memory) };
    let wrong = Wanted {
        rkey: 1,
        ..two.wanted()
    };
    assert!(two.peer.write_program(&wrong, 0..4096, pieces()).is_err());
    // A gate that is closed before the call.
    let closed = Gate::new().unwrap().addr();
    let open = header(&two.rights.mapping)
        .gate
        .swap(closed, Ordering::Relaxed);
    assert!(
        two.peer
            .write_program(&two.wanted(), 0..4096, pieces())
            .is_err()
    );
    assert_eq!(found(), [0; 4096]);
    header(&two.rights.mapping)
        .gate
        .store(open, Ordering::Relaxed);
    assert_eq!(
        two.peer.write_program(&two.wanted(), 0..4096, pieces()),
        Ok(())
    );
    assert_eq!(found(), own);
    two.rights.take_program_key(key).unwrap();
    assert!(
        two.peer
            .write_program(&two.wanted(), 0..4096, pieces())
            .is_err()
    );
}

#[test]
fn the_programs_memory_is_taken_from_a_stopped_process_at_once_and_its_copy_ends_at_the_gate() {
    let sleeper = Sleeper::new();
    sleeper.stop();
    let memory = [0u8; 4096];
    let (two, key) = with_program_memory(&memory, sleeper.0.id());
    let gate = || header(&two.rights.mapping).gate.load(Ordering::Acquire);
    let before = gate();
    announce(&two, key);
    let began = Instant::now();
    two.rights.take_program_key(key).unwrap();
    assert!(began.elapsed() < PASSED_PATIENCE);
    assert!(![0, before].contains(&gate()), "another gate is open");
    // The copy that the process makes when it goes on.
    let late = Process::new(std::process::id(), &header(&two.rights.mapping).testimony);
    let own = [(memory.as_ptr().expose_provenance() as u64, 1)];
    let to = memory.as_ptr().expose_provenance() as u64;
    assert!(late.write(before, own.into_iter(), to, 1).is_err());
    assert_eq!(late.write(gate(), own.into_iter(), to, 1), Ok(()));
}

#[test]
fn the_programs_memory_stays_registered_while_a_running_process_may_be_in_its_copy() {
    let sleeper = Sleeper::new();
    let memory = [0u8; 4096];
    let (two, key) = with_program_memory(&memory, sleeper.0.id());
    announce(&two, key);
    let busy = two.rights.take_program_key(key).unwrap_err();
    assert_eq!(busy, StillCopying { count: 1 });
    assert!(!two.is_allowed(&two.wanted()), "no new copy begins");
    two.rights.remove_user(9);
    let busy = two.rights.take_program_key(key).unwrap_err();
    assert_eq!(busy, StillCopying { count: 1 }, "only its link has ended");
    drop(sleeper);
    two.rights.take_program_key(key).unwrap();
}

#[test]
fn more_threads_than_may_announce_are_sent_to_packets() {
    let two = Two::new();
    let all: Vec<_> = (0..HAZARDS)
        .map(|_| two.peer.enter(&two.wanted()).unwrap())
        .collect();
    assert_eq!(
        two.peer.enter(&two.wanted()).unwrap_err(),
        NoPassage::Unknown
    );
    drop(all);
    assert!(two.is_allowed(&two.wanted()));
}

#[test]
fn a_full_table_takes_no_more_and_gives_its_places_back() {
    let two = Two::new();
    let right = key_right(&two.pages, ALL);
    let mut slots = Vec::new();
    for rkey in 0..KEYS as u32 * 2 {
        slots.extend(two.rights.give_key(&KeyRight { rkey, ..right }));
    }
    assert!(slots.len() > KEYS / 2 && slots.len() < KEYS);
    for slot in slots {
        two.rights.take_key(slot, &two.pages);
    }
    let rkey = 3;
    assert!(two.rights.give_key(&KeyRight { rkey, ..right }).is_some());
    let again = two.rights.give_qp(&QpRight {
        qpn: Qpn::new(0x02_2234),
        ..qp_right(ALL)
    });
    assert_eq!(again, None, "the place is taken");
}

proptest! {
    #[test]
    fn whatever_another_process_has_in_its_table_no_copy_leaves_its_file(
        offset: u64,
        length: u64,
        iova: u64,
        addr: u64,
        len: u32,
        file in prop_oneof![4 => 0..3u32, 1 => any::<u32>()],
    ) {
        let two = Two::new();
        two.rights.take_key(two.key, &two.pages);
        let right = KeyRight { offset, length, iova, file, ..key_right(&two.pages, ALL) };
        two.rights.give_key(&right).unwrap();
        for (addr, len) in [(addr, len), (iova, len), (iova, 1), (iova.wrapping_add(length), 1)] {
            let wanted = Wanted { addr, len, ..two.wanted() };
            if let Ok(passage) = two.peer.enter(&wanted) {
                let file = two.files.with_file(0, Mapping::open_for_all);
                let file_len = file.unwrap().unwrap().unwrap().len() as u64;
                let within = offset + (addr - iova);
                prop_assert!(within + u64::from(len) <= file_len);
                drop(passage);
            }
        }
    }

    #[test]
    fn no_bytes_of_a_table_do_harm(junk in proptest::collection::vec(any::<u8>(), 64), slot in 0..PROBES) {
        let two = Two::new();
        let wanted = two.wanted();
        let Slot(at) = key_slots(wanted.rkey).nth(slot).unwrap();
        two.rights.mapping.copy_in(KEYS_AT + at * size_of::<KeyEntry>(), &junk);
        let Slot(at) = two.qp;
        two.rights.mapping.copy_in(QPS_AT + at * size_of::<QpEntry>(), &junk[..16]);
        let _ = two.peer.enter(&wanted);
    }
}
