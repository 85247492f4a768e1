//! Shortage of descriptors.

use std::time::Duration;

use portolan_port_sharing::GroupConfig;
use portolan_provider::Cause;

use super::harness::*;
use super::process::Process;

#[test]
fn a_low_soft_limit_of_open_files_is_raised_if_the_hard_limit_permits() {
    let config = config();
    let mut coordinator = Process::start_with_open_files(config.port, 24, 1024).joined();
    assert!(coordinator.is_coordinator());
    let members: Vec<_> = (0..24).map(|_| Member::join(&config).unwrap()).collect();
    assert!(members.iter().all(|member| member.ask("echo in") == "in"));
    assert!(coordinator.ask("descriptors").parse::<usize>().unwrap() > 24);
}

#[test]
fn a_limit_that_leaves_no_room_is_explained() {
    let config = config();
    let founder = Process::start_with_open_files(config.port, 12, 12).refused();
    let explains = |error: &str| {
        let parts = [
            "Too many open files",
            "hard limit of open files (RLIMIT_NOFILE) is 12",
            "the descriptors of this process",
            "raise it",
        ];
        parts.iter().all(|part| error.contains(part))
    };
    assert!(explains(&founder), "{founder}");
    let coordinator = Member::join(&config).expect("the failed founder leaves the port free");
    let newcomer = Process::start_with_open_files(config.port, 12, 12).refused();
    assert!(explains(&newcomer), "{newcomer}");
    assert_eq!(coordinator.ask("echo well"), "well");
    eventually("a farewell", || {
        coordinator.group.status().members.len() == 1
    });
}

#[test]
fn a_coordinator_out_of_descriptors_neither_spins_nor_forgets_its_members() {
    let config = config();
    let mut coordinator = Process::spawn(config.port);
    let member = Member::join(&config).unwrap();
    coordinator.ask("exhaust");
    let ticks = coordinator.processor_ticks();
    let hasty = GroupConfig {
        join_timeout: Duration::from_secs(1),
        ..config.clone()
    };
    let error = Member::join(&hasty).expect_err("no descriptor for the connection");
    // The coordinator may have gained a descriptor since, and can accept the connection, but cannot pass any
    // descriptors.
    let is_told = match &error.cause {
        Cause::GroupSilent { stopped, .. } => !stopped,
        Cause::GroupRefused(why) => why.contains("none admitted it"),
        _ => false,
    };
    assert!(is_told, "{error}");
    let why = "no descriptors left for this process";
    let text = error.to_string();
    assert!(
        text.contains(why) && text.contains("RLIMIT_NOFILE"),
        "{text}"
    );
    let ticks = coordinator.processor_ticks() - ticks;
    assert!(
        ticks < 50,
        "{ticks} of 100 ticks spent on a connection that cannot be accepted"
    );
    assert_eq!(member.ask("echo still here"), "still here");
    drop(coordinator);
    assert_eq!(member.ask("echo again"), "again");
    Member::join(&config).expect("the new coordinator has descriptors");
}
