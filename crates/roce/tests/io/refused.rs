//! System calls that a seccomp filter refuses to the calling thread, and to the threads that it starts.

#![allow(unsafe_code, reason = "prctl(2)")]

use libc::{
    BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP,
    SECCOMP_MODE_FILTER, SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO, c_long, prctl, sock_filter,
    sock_fprog,
};

/// Refuses a system call from now on, with an errno.
pub fn refuse(call: c_long, errno: i32) {
    let step = |code: u32, jt: u8, jf: u8, k: u32| sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    // The number of the call is the first word of `struct seccomp_data`.
    let mut steps = [
        step(BPF_LD | BPF_W | BPF_ABS, 0, 0, 0),
        step(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, call as u32),
        step(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | errno as u32),
        step(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW),
    ];
    let program = sock_fprog {
        len: steps.len() as u16,
        filter: steps.as_mut_ptr(),
    };
    // SAFETY: numbers only.
    assert_eq!(unsafe { prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    // SAFETY: the kernel copies the program, which exists during the call.
    let set = unsafe { prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &raw const program) };
    assert_eq!(set, 0);
}

/// Runs a test in a thread that refuses nothing, and in one that refuses a system call.
pub fn without_and_with(call: c_long, test: fn()) {
    std::thread::scope(|scope| {
        scope.spawn(test).join().unwrap();
        let refusing = scope.spawn(move || {
            refuse(call, libc::EPERM);
            test();
        });
        refusing.join().unwrap();
    });
}
