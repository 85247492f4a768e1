//! Events during the start of a process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use portolan_port_sharing::{Block, MemberService, observe};
use portolan_roce::io::Stack;

use crate::harness::{End, Nobody, PATIENCE, PATIENT, config, stack};

/// A member that records whether it was called before it was ready.
#[derive(Debug, Default)]
struct Asked {
    is_ready: AtomicBool,
    was_early: AtomicBool,
}

impl MemberService for Asked {
    fn replay(&self) -> Vec<Vec<u8>> {
        Vec::new()
    }

    fn report(&self) -> Vec<Vec<u8>> {
        if !self.is_ready.load(Ordering::Acquire) {
            self.was_early.store(true, Ordering::Release);
        }
        vec![b"ready".to_vec()]
    }

    fn peer_death(&self, _: &[Block]) {
        self.report();
    }
}

#[test]
fn nothing_is_called_before_the_stack_is_prepared() {
    let config = config();
    let _coordinator = stack(&config);
    let member = Arc::new(Asked::default());
    let look = |timeout| observe(&config.group, timeout).unwrap().expect("a group");
    let started = Stack::start_with(config.clone(), Box::new(Nobody), member.clone(), |stack| {
        // It is already a member and is queried as one; it answers when it runs.
        let seen = look(Duration::from_secs(1));
        assert_eq!(seen.members.len(), 2);
        assert!(!seen.reports.contains_key(&stack.block()));
        member.is_ready.store(true, Ordering::Release);
        Ok(Arc::new(Nobody))
    });
    let stack = started.unwrap();
    let seen = look(PATIENCE);
    assert_eq!(seen.reports[&stack.block()].concat(), b"ready");
    assert!(!member.was_early.load(Ordering::Acquire));
}

#[test]
fn a_device_is_the_same_object_however_it_is_found() {
    let config = config();
    let stack = stack(&config);
    let (found, _) = stack.device_of("127.0.0.1".parse().unwrap(), 0).unwrap();
    let (again, _) = stack.device_of("127.0.0.1".parse().unwrap(), 0).unwrap();
    assert!(Arc::ptr_eq(&found, &again));
    let listed = stack.devices();
    assert!(listed.iter().any(|device| Arc::ptr_eq(device, &found)));
}

#[test]
fn a_process_that_may_not_ask_for_its_limits_has_memory_files() {
    // Applies to this thread and to the stack's thread, which this one starts.
    deny(libc::SYS_prlimit64);
    let mut config = config();
    config.local_memory = true;
    let stack = stack(&config);
    let end = End::new(&stack, "127.0.0.1".parse().unwrap(), PATIENT);
    assert!(end.memory.pages.is_some());
}

/// Makes a system call fail with `EPERM` in this thread and the threads that it starts (seccomp(2)).
fn deny(call: libc::c_long) {
    let statement = |code: u32, k| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    };
    let is_it = libc::sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt: 0,
        jf: 1,
        k: call as u32,
    };
    let mut filter = [
        // `struct seccomp_data` begins with the number of the call.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        is_it,
        statement(
            libc::BPF_RET | libc::BPF_K,
            libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
        ),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the kernel reads the filter only during the call.
    let denied = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            | libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const program,
            )
    };
    assert_eq!(denied, 0);
}
