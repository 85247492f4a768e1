//! A queue of jobs that workers take with atomics, without the owner's help.
//!
//! `cargo run -p portolan --example work_queue`
//!
//! The owner shares a counter and an array of results. A worker takes the next job by adding one to the counter, and
//! writes the job's result to its place in the array.

use std::thread;
use std::time::Duration;

use portolan::{Access, Connector, Error, Listener, Options, RemoteMemory};

const JOBS: u32 = 500;
const WORKERS: usize = 4;
/// The counter comes first, then a word for each job.
const WORD: usize = 8;
const PATIENCE: Duration = Duration::from_secs(60);

/// A job: the steps of the Collatz sequence from a number to 1.
fn steps(mut number: u64) -> u64 {
    let mut steps = 0;
    while number > 1 {
        number = match number % 2 {
            0 => number / 2,
            _ => 3 * number + 1,
        };
        steps += 1;
    }
    steps
}

/// Works until all jobs are taken; returns how many it did.
fn work(address: &str) -> Result<u32, Error> {
    let connection = Connector::new().connect(address)?;
    let offer = connection.receive_within(PATIENCE)?;
    let queue = RemoteMemory::from_bytes(&offer).expect("the owner says where its queue is");
    let counter = queue.slice(0, WORD).expect("the counter comes first");
    let mut buffer = connection.buffer(WORD)?;
    let mut done = 0;
    loop {
        let taken = connection.fetch_add(buffer, counter, 1)?.wait()?;
        let job = taken.original().expect("the counter is a word");
        if job >= u64::from(JOBS) {
            return Ok(done);
        }
        buffer = taken.buffer;
        buffer.copy_from_slice(&steps(job + 1).to_ne_bytes());
        let place = queue.slice(WORD * (job as usize + 1), WORD);
        let place = place.expect("each job has a place");
        buffer = connection.write(buffer, place)?.wait()?.buffer;
        done += 1;
    }
}

fn main() -> Result<(), Error> {
    let listener = Listener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    let domain = listener.domain()?;
    let access = Access::REMOTE_ATOMIC | Access::REMOTE_WRITE;
    let queue = domain.share((JOBS as usize + 1) * WORD, access)?;
    let options = Options::default().domain(Some(domain));

    let worker = |_| {
        let address = address.clone();
        thread::spawn(move || work(&address))
    };
    let workers: Vec<_> = (0..WORKERS).map(worker).collect();
    let mut connections = Vec::new();
    for _ in 0..WORKERS {
        let connection = listener.accept()?.accept_with(&options)?;
        let offer = connection.offer(&queue)?.to_bytes().to_vec();
        connection.send(offer)?.wait()?;
        connections.push(connection);
    }
    let mut done = 0;
    for worker in workers {
        done += worker.join().expect("the workers do not panic")?;
    }
    for job in 0..JOBS {
        let mut result = [0; WORD];
        queue.load((job as usize + 1) * WORD, &mut result);
        assert_eq!(u64::from_ne_bytes(result), steps(u64::from(job) + 1));
    }
    println!("{WORKERS} workers did {done} jobs");
    Ok(())
}
