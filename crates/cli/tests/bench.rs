//! `portolan bench`: its figures, its plots, and its storms.

mod common;

use std::io::Read;
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};

use common::{eventually, output_of, portolan, stderr, stdout};
use serde_json::Value;

/// Held while a bench runs, because two benches would disturb each other.
static ALONE: Mutex<()> = Mutex::new(());

/// The objects in a bench's output.
fn bench(args: &[&str]) -> Vec<Value> {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let child = portolan()
        .args(["bench", "--json"])
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let output = output_of(child);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}{}", stderr(&output));
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn of<'a>(objects: &'a [Value], name: &'a str) -> Vec<&'a Value> {
    objects.iter().filter(|each| each["type"] == name).collect()
}

/// A file for this test in a folder that is removed with all files of the test process.
fn plot(name: &str) -> std::path::PathBuf {
    std::env::temp_dir().join(format!("portolan-bench-{}-{name}.svg", std::process::id()))
}

/// Timing tests, which run alone.
mod against_the_clock {
    use super::{bench, of};

    #[test]
    fn a_thousand_connects_at_once_to_one_listener_all_succeed() {
        let told = bench(&[
            "storm",
            "--connects",
            "1000",
            "--hold",
            "1",
            "--messages",
            "1",
            "--senders",
            "1",
            "--rounds",
            "1",
            "--time",
            "10",
        ]);
        let storm = of(&told, "storm")[0];
        assert_eq!(storm["connects"], 1000);
        assert_eq!(storm["established"], 1000);
        println!("{storm}");
    }

    #[test]
    fn ten_thousand_connections_are_held_and_messages_move_over_random_ones() {
        let told = bench(&[
            "storm",
            "--connects",
            "1000",
            "--hold",
            "10000",
            "--messages",
            "1000",
            "--senders",
            "1",
            "--rounds",
            "1",
            "--time",
            "10",
        ]);
        let held = of(&told, "held")[0];
        assert_eq!(held["connections"], 10_000);
        assert_eq!(held["messages"], 1000, "every message came back unchanged");
        for side in ["bytes_per_connection", "peer_bytes_per_connection"] {
            let each = held[side].as_u64().unwrap();
            println!("{side}: {each}");
            // A queue pair's rings, an id with its path and timers: kilobytes instead of dozens of pages.
            assert!((256..65_536).contains(&each), "{side}: {each}");
        }
    }

    #[test]
    fn sixteen_senders_to_one_receiver_keep_half_of_what_one_gets() {
        /// A busy machine disturbs some attempts, but hardly all.
        const ATTEMPTS: usize = 3;
        let mut best = 0.0_f64;
        for _ in 0..ATTEMPTS {
            let told = bench(&[
                "storm",
                "--connects",
                "1",
                "--hold",
                "1",
                "--messages",
                "1",
                "--senders",
                "16",
                "--rounds",
                "3",
                "--time",
                "200",
            ]);
            let ratio = of(&told, "ratio")[0];
            assert_eq!(ratio["subject"], "16 to one");
            best = best.max(ratio["ratio"].as_f64().unwrap());
            if best >= 0.5 {
                break;
            }
        }
        assert!(best >= 0.5, "16 to one: {best} of one to one");
    }
}

#[test]
fn the_second_process_ends_with_the_first_whatever_it_serves() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut first = portolan()
        .args(["bench", "latency"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let children = format!("/proc/{0}/task/{0}/children", first.id());
    let second = eventually(|| {
        let children = std::fs::read_to_string(&children).ok()?;
        children.split_whitespace().next().map(str::to_owned)
    });
    // It has begun to measure.
    let mut told = [0];
    first
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut told)
        .unwrap();
    first.kill().unwrap();
    first.wait().unwrap();
    let is_gone = || {
        let stat = std::fs::read_to_string(format!("/proc/{second}/stat"));
        let is_zombie = stat.is_ok_and(|stat| stat.contains(") Z "));
        (is_zombie || !std::path::Path::new(&format!("/proc/{second}")).exists()).then_some(())
    };
    eventually(is_gone);
}

#[test]
fn each_ratio_is_printed_with_its_rounds() {
    let (rounds, file) = ("2", plot("latency"));
    let svg = file.to_str().unwrap();
    let told = bench(&["latency", "--rounds", rounds, "--count", "50", "--svg", svg]);
    let ratio = of(&told, "ratio")[0];
    assert_eq!(ratio["rounds"].as_array().unwrap().len(), 2);
    for round in ratio["rounds"].as_array().unwrap() {
        let [subject, yardstick, ratio] =
            ["subject", "yardstick", "ratio"].map(|name| round[name].as_f64().unwrap());
        assert!(subject > 0.0 && yardstick > 0.0);
        // Printed with three decimals.
        assert!((ratio - subject / yardstick).abs() <= 0.001, "{round}");
    }
    for times in of(&told, "times") {
        assert_eq!(times["times"]["count"], 100, "{times}");
    }
    let drawn = std::fs::read_to_string(&file).unwrap();
    assert!(drawn.contains("RDMA send, polled"), "{drawn}");
    std::fs::remove_file(file).unwrap();
}

#[test]
fn connects_and_streams_are_compared_with_their_yardsticks() {
    let told = bench(&["connect", "--rounds", "2", "--count", "5"]);
    let names: Vec<&str> = of(&told, "times")
        .iter()
        .map(|times| times["of"].as_str().unwrap())
        .collect();
    assert!(names.contains(&"TCP connect") && names.contains(&"RDMA connect"));
    let yardsticks: Vec<&str> = of(&told, "ratio")
        .iter()
        .map(|ratio| ratio["yardstick"].as_str().unwrap())
        .collect();
    assert_eq!(
        yardsticks,
        ["TCP connect", "TCP connect + accept", "5 wake-ups"]
    );
    let file = plot("bandwidth");
    let svg = file.to_str().unwrap();
    let told = bench(&["bandwidth", "--rounds", "1", "--time", "200", "--svg", svg]);
    assert_eq!(of(&told, "ratio").len(), 3, "one for each size");
    for rate in of(&told, "rate") {
        assert!(rate["bytes_per_second"].as_f64().unwrap() > 1e6, "{rate}");
    }
    assert!(std::fs::read_to_string(&file).unwrap().contains("1 MiB"));
    std::fs::remove_file(file).unwrap();
}

#[test]
fn rounds_are_printed_as_they_finish_followed_by_plots() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let output = common::run(&["bench", "latency", "--rounds", "2", "--count", "100"]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}{}", stderr(&output));
    for shown in [
        "round 1/2: UDP",
        "round 2/2",
        "p99.9",
        " x UDP, polled",
        "|#",
    ] {
        assert!(text.contains(shown), "{shown} in {text}");
    }
}

#[test]
fn resolutions_are_compared_with_libc_in_each_round() {
    let told = bench(&["resolve", "--rounds", "2", "--count", "20"]);
    let ratios = of(&told, "ratio");
    assert_eq!(ratios.len(), 3);
    for ratio in ratios {
        assert_eq!(ratio["rounds"].as_array().unwrap().len(), 2);
        assert!(ratio["ratio"].as_f64().unwrap() > 0.0, "{ratio}");
        assert!(ratio["ratio"].as_f64().unwrap() > 0.0, "{ratio}");
    }
}
