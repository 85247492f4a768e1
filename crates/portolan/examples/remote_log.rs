//! A log in another program's memory. Writers append with atomics and RDMA writes, without the owner's help.
//!
//! `cargo run -p portolan --example remote_log` runs an owner and writers; `remote_log keep ADDRESS` runs only an owner, and
//! `remote_log append ADDRESS TEXT` only a writer.
//!
//! The first word of the log counts the bytes in use. A writer adds the length of its record to the word with an
//! atomic. The previous value is the offset of the record. The record begins with its length, which the writer writes
//! last. A reader stops at a length of zero.

use std::thread;
use std::time::Duration;

use portolan::{
    Access, Buffer, Connection, Connector, Error, Listener, Options, RemoteMemory, SharedMemory,
};

const WORD: usize = 8;
const LOG_BYTES: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(30);

/// The owner's side of the log.
struct Log(SharedMemory);

impl Log {
    fn word(&self, at: usize) -> usize {
        let mut word = [0; WORD];
        self.0.load(at, &mut word);
        u64::from_ne_bytes(word) as usize
    }

    fn records(&self) -> Vec<String> {
        let (mut at, mut records) = (WORD, Vec::new());
        while at + WORD <= LOG_BYTES && self.word(at) > 0 {
            let length = self.word(at).min(LOG_BYTES - at - WORD);
            let mut record = vec![0; length];
            self.0.load(at + WORD, &mut record);
            records.push(String::from_utf8_lossy(&record).into_owned());
            at += WORD + length.next_multiple_of(WORD);
        }
        records
    }
}

/// Appends to another program's log.
struct Writer {
    connection: Connection,
    log: RemoteMemory,
}

impl Writer {
    fn connect(address: &str) -> Result<Self, Error> {
        let connection = Connector::new().connect(address)?;
        let offer = connection.receive_within(PATIENCE)?;
        let log = RemoteMemory::from_bytes(&offer).expect("the owner says where its log is");
        drop(offer);
        Ok(Self { connection, log })
    }

    fn append(&self, text: &str) -> Result<(), Error> {
        let length = text.len().next_multiple_of(WORD);
        let takes = (WORD + length) as u64;
        let taken = self.connection.fetch_add(vec![0; WORD], self.log, takes)?;
        let before = taken.wait()?.original().expect("it is a word") as usize;
        // If the log is full, `slice` returns `None`, and nothing is written.
        let place = |offset, length| self.log.slice(WORD + before + offset, length);
        let (body, head) = (place(WORD, text.len()), place(0, WORD));
        let (body, head) = (
            body.expect("the log is full"),
            head.expect("it is before the text"),
        );
        // Writes of one connection arrive in order, so the length arrives after the text.
        let mut batch = self.connection.batch();
        batch.write(text.as_bytes().to_vec(), body)?;
        batch.write(
            Buffer::from((text.len() as u64).to_ne_bytes().to_vec()),
            head,
        )?;
        batch.post_as_one()?.wait()?;
        Ok(())
    }
}

/// Offers the log to every peer that connects. Never returns without an error.
fn keep(listener: &Listener, log: &SharedMemory, options: &Options) -> Result<(), Error> {
    let mut writers = Vec::new();
    loop {
        let connection = listener.accept()?.accept_with(options)?;
        connection
            .send(connection.offer(log)?.to_bytes().to_vec())?
            .wait()?;
        writers.retain(|writer: &Connection| writer.ended().is_none());
        writers.push(connection);
    }
}

fn start(address: &str) -> Result<(std::net::SocketAddr, &'static Log), Error> {
    let listener = Listener::bind(address)?;
    let address = listener.local_addr()?;
    let domain = listener.domain()?;
    let memory = domain.share(LOG_BYTES, Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)?;
    let options = Options::default().domain(Some(domain));
    let log: &'static Log = Box::leak(Box::new(Log(memory)));
    thread::spawn(move || keep(&listener, &log.0, &options));
    Ok((address, log))
}

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["append", address, text] => return Writer::connect(address)?.append(text),
        ["keep", address] => {
            let (_, log) = start(address)?;
            let mut shown = 0;
            loop {
                for record in log.records().drain(shown..) {
                    println!("{record}");
                    shown += 1;
                }
                thread::sleep(Duration::from_millis(100));
            }
        }
        _ => {}
    }
    let (address, log) = start("127.0.0.1:0")?;
    let write = |name: u32| {
        let address = address.to_string();
        thread::spawn(move || {
            let writer = Writer::connect(&address)?;
            (0..100).try_for_each(|hour| writer.append(&format!("watch {name}: hour {hour}")))
        })
    };
    let writers: Vec<_> = (0..4).map(write).collect();
    for writer in writers {
        writer.join().expect("the writers do not panic")?;
    }
    let records = log.records();
    for name in 0..4 {
        let of = format!("watch {name}: ");
        let hours = records.iter().filter_map(|record| record.strip_prefix(&of));
        assert!(
            hours.eq((0..100).map(|hour| format!("hour {hour}"))),
            "in order"
        );
    }
    println!("4 writers appended {} records", records.len());
    Ok(())
}
