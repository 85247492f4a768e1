//! A key-value store whose clients read without the server's help: GET is an RDMA read, PUT is a message.
//!
//! `cargo run -p portolan --example key_value` runs both ends; `key_value serve ADDRESS`, `key_value get ADDRESS KEY` and
//! `key_value put ADDRESS KEY VALUE` run one end.
//!
//! The table is an array of slots in memory that peers may read. A slot contains an entry and its hash. If the hash
//! does not match the entry, the server was writing during the read, and the reader tries again.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use portolan::{
    Access, Connection, Connector, Error, Listener, Options, RemoteMemory, SharedMemory,
};

const SLOTS: u64 = 1024;
/// A hash, and an entry.
const SLOT_BYTES: usize = 256;
const HASH_BYTES: usize = 8;
const ENTRY_BYTES: usize = SLOT_BYTES - HASH_BYTES;
const PATIENCE: Duration = Duration::from_secs(10);

/// FNV-1a.
fn hash(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// Where a key's slot begins. A store to keep would probe further slots when two keys share one.
fn place_of(key: &str) -> usize {
    (hash(key.as_bytes()) % SLOTS) as usize * SLOT_BYTES
}

/// A slot: the entry is `key=value`, padded with zeros.
fn slot(key: &str, value: &str) -> Vec<u8> {
    let mut entry = format!("{key}={value}").into_bytes();
    entry.resize(ENTRY_BYTES, 0);
    [&hash(&entry).to_ne_bytes()[..], &entry].concat()
}

fn serve(listener: &Listener) -> Result<(), Error> {
    let domain = listener.domain()?;
    let memory = domain.share(SLOTS as usize * SLOT_BYTES, Access::REMOTE_READ)?;
    let table = Arc::new(Mutex::new(memory));
    let options = Options::default().domain(Some(domain));
    loop {
        let connection = listener.accept()?.accept_with(&options)?;
        let table = table.clone();
        thread::spawn(move || serve_one(&connection, &table));
    }
}

fn serve_one(connection: &Connection, table: &Mutex<SharedMemory>) -> Result<(), Error> {
    let offer = connection.offer(&table.lock().unwrap())?;
    connection.send(offer.to_bytes().to_vec())?.wait()?;
    while let Ok(message) = connection.receive() {
        let text = String::from_utf8_lossy(&message).into_owned();
        if let Some((key, value)) = text.split_once('=') {
            let table = table.lock().unwrap();
            table.store(place_of(key), &slot(key, value));
        }
        drop(message);
        connection.send(b"done".to_vec())?.wait()?;
    }
    Ok(())
}

struct Client {
    connection: Connection,
    table: RemoteMemory,
}

impl Client {
    fn connect(address: &str) -> Result<Self, Error> {
        let connection = Connector::new().connect(address)?;
        let offer = connection.receive_within(PATIENCE)?;
        let table = RemoteMemory::from_bytes(&offer).expect("the server says where its table is");
        drop(offer);
        Ok(Self { connection, table })
    }

    fn put(&self, key: &str, value: &str) -> Result<(), Error> {
        let request = format!("{key}={value}").into_bytes();
        assert!(request.len() <= ENTRY_BYTES, "the entry is too long");
        self.connection.send(request)?.wait()?;
        self.connection.receive_within(PATIENCE).map(drop)
    }

    fn get(&self, key: &str) -> Result<Option<String>, Error> {
        let slot = self.table.slice(place_of(key), SLOT_BYTES);
        let slot = slot.expect("it is in the table");
        let mut buffer = self.connection.buffer(SLOT_BYTES)?;
        loop {
            buffer = self.connection.read(buffer, slot)?.wait()?.buffer;
            let (found, entry) = buffer.split_at(HASH_BYTES);
            let is_empty = buffer.iter().all(|byte| *byte == 0);
            if is_empty || found == hash(entry).to_ne_bytes() {
                let text = String::from_utf8_lossy(entry);
                let entry = text.trim_end_matches('\0').split_once('=');
                let entry = entry.filter(|(found, _)| *found == key);
                return Ok(entry.map(|(_, value)| value.to_owned()));
            }
        }
    }
}

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["serve", address] => return serve(&Listener::bind(address)?),
        ["get", address, key] => {
            let found = Client::connect(address)?.get(key)?;
            println!("{}", found.as_deref().unwrap_or("(none)"));
            return Ok(());
        }
        ["put", address, key, value] => return Client::connect(address)?.put(key, value),
        _ => {}
    }
    let listener = Listener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    thread::spawn(move || serve(&listener));
    let (writer, reader) = (Client::connect(&address)?, Client::connect(&address)?);
    assert_eq!(reader.get("port")?, None);
    for depth in ["3 fathoms", "7 fathoms"] {
        writer.put("port", depth)?;
        println!(
            "port: {}",
            reader.get("port")?.as_deref().unwrap_or("(none)")
        );
    }
    Ok(())
}
