//! Resolves names and numbers, compared with libc's getaddrinfo(3) and the kernel's route lookups.

use std::hint::black_box;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, ensure};
use portolan::provider::software_provider;
use portolan::provider::traits::Provider;
use portolan::resolve::{AddrInfo, Hints, Request, yardstick};

use super::args::ResolveArgs;
use super::report::{Comparison, tell_round};
use crate::output::Output;

/// A numeric address that every machine has.
const NUMERIC: &str = "127.0.0.1";
/// A name that every `/etc/hosts` has.
const HOSTS_NAME: &str = "localhost";
const SERVICE: &str = "7471";

/// A query and its yardstick.
struct Case {
    comparison: Comparison,
    request: Request,
    node: String,
    /// The results' addresses; the yardstick looks up a route to each.
    destinations: Vec<SocketAddr>,
    /// Repetitions per round.
    count: u32,
}

pub(super) fn run(args: &ResolveArgs, output: &mut Output) -> Result<()> {
    let provider: Arc<dyn Provider> = software_provider()?;
    let pinned = Hints::new()
        .no_route()
        .src_addr(SocketAddr::from(([127, 0, 0, 1], 0)));
    let request = |node: &str| {
        let request = Request::new(Some(node), Some(SERVICE));
        request.provider(provider.clone())
    };
    let mut cases = vec![
        Case::new(
            ("number, source given, no route", "libc"),
            request(NUMERIC).hints(pinned),
            NUMERIC,
            args.count,
        )?,
        Case::new(
            ("number, with its source", "libc + routes"),
            request(NUMERIC),
            NUMERIC,
            args.count,
        )?,
        Case::new(
            ("name of /etc/hosts", "libc + routes"),
            request(HOSTS_NAME),
            HOSTS_NAME,
            args.count.div_ceil(10),
        )?,
    ];
    if let Some(name) = &args.name {
        let of_name = ("name given", "libc + routes");
        cases.push(Case::new(
            of_name,
            request(name),
            name,
            args.count.div_ceil(10),
        )?);
    }
    let rounds = args.rounds;
    for round in 0..rounds {
        let mut measured = Vec::new();
        for case in &mut cases {
            let (subject, yardstick) = case.round()?;
            let ratio = case.comparison.add(subject, yardstick);
            measured.extend([
                (case.comparison.yardstick.clone(), yardstick),
                (case.comparison.subject.clone(), subject),
                ("ratio".into(), ratio),
            ]);
        }
        let measured: Vec<(&str, f64)> = measured
            .iter()
            .map(|(name, value)| (name.as_str(), *value))
            .collect();
        tell_round(round, rounds, &measured, output)?;
    }
    cases
        .iter()
        .try_for_each(|case| case.comparison.tell(output))?;
    Ok(())
}

impl Case {
    fn new(
        (subject, yardstick): (&str, &str),
        request: Request,
        node: &str,
        count: u32,
    ) -> Result<Case> {
        let found = request.addresses()?;
        // If the subject determines sources, so does the yardstick.
        let with_routes = yardstick != "libc";
        let destination = |info: AddrInfo| info.dst_addr?.inet();
        let destinations = found.filter_map(destination).filter(|_| with_routes);
        Ok(Case {
            comparison: Comparison::new(subject, yardstick),
            node: node.to_owned(),
            destinations: destinations.collect(),
            request,
            count,
        })
    }

    /// Nanoseconds of a resolution and of its yardstick. Both run in short turns, and the median turn of each counts,
    /// because other activity of the machine disturbs single turns.
    fn round(&self) -> Result<(f64, f64)> {
        const TURNS: u32 = 50;
        let each = self.count.div_ceil(TURNS);
        let (mut subject_ns, mut yardstick_ns) = (Vec::new(), Vec::new());
        for _ in 0..TURNS {
            let start = Instant::now();
            for _ in 0..each {
                black_box(self.request.addresses()?);
            }
            subject_ns.push(start.elapsed().as_nanos());
            let start = Instant::now();
            for _ in 0..each {
                self.ask_libc()?;
            }
            yardstick_ns.push(start.elapsed().as_nanos());
        }
        let of_one = |turns: Vec<u128>| median(turns) as f64 / f64::from(each);
        Ok((of_one(subject_ns), of_one(yardstick_ns)))
    }

    fn ask_libc(&self) -> Result<()> {
        let entries = yardstick::getaddrinfo(&self.node, SERVICE)?;
        ensure!(entries > 0, "getaddrinfo gave nothing");
        for destination in &self.destinations {
            // A missing route takes as long to report.
            let _ = black_box(yardstick::route(*destination));
        }
        Ok(())
    }
}

/// The median; the lower of the two middle values for an even number.
fn median(mut turns: Vec<u128>) -> u128 {
    turns.sort_unstable();
    let middle = turns.len().saturating_sub(1) / 2;
    turns.get(middle).copied().unwrap_or_default()
}
