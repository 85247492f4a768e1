//! Talks to a C program: rping, an example of librdmacm.
//!
//! `cargo run -p portolan --example with_c` runs both ends in Rust. `with_c serve 0.0.0.0:7174` serves
//! `rping -c -a ADDRESS -C 3 -v`, and `with_c ping ADDRESS` is a client of `rping -s -C 1`.
//!
//! In rping's protocol the client describes its source memory in a message: address, key and length in network byte
//! order. The server reads that memory and answers. The client then describes its sink memory. The server writes the
//! same bytes there and answers.

use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::Duration;

use portolan::{
    Access, Connection, Connector, Error, Listener, Message, RemoteMemory, SharedMemory,
};

/// `struct rping_rdma_info`.
const OFFER_BYTES: usize = 16;
const PORT: u16 = 7174;
const PATIENCE: Duration = Duration::from_secs(30);
const TEXT: &[u8] = b"ahoy from Rust";

/// Converts a C program's description of its memory. It does not contain the access rights.
fn offer_of(message: &Message) -> Option<RemoteMemory> {
    let (addr, rest) = message.split_first_chunk()?;
    let (rkey, rest) = rest.split_first_chunk()?;
    let (length, _) = rest.split_first_chunk()?;
    let length = u32::from_be_bytes(*length);
    Some(RemoteMemory::new(
        u64::from_be_bytes(*addr),
        u64::from(length),
        u32::from_be_bytes(*rkey),
    ))
}

/// The description of this program's memory for a C program.
fn to_c(memory: &SharedMemory) -> Vec<u8> {
    let memory = memory.remote();
    let length = memory.length as u32;
    [
        &memory.addr.to_be_bytes()[..],
        &memory.rkey.to_be_bytes(),
        &length.to_be_bytes(),
    ]
    .concat()
}

fn go_ahead(connection: &Connection) -> Result<(), Error> {
    connection.send(vec![0; OFFER_BYTES])?.wait()?;
    Ok(())
}

/// Serves until the client disconnects. Returns the data of the pings.
fn serve(connection: &Connection) -> Result<Vec<Vec<u8>>, Error> {
    let mut pings = Vec::new();
    loop {
        let source = match connection.receive() {
            Ok(message) => offer_of(&message),
            Err(error) if error.is_disconnected() => return Ok(pings),
            Err(error) => return Err(error),
        };
        let source = source.expect("rping offers its source first");
        let buffer = connection.buffer(source.length as usize)?;
        let data = connection.read(buffer, source)?.wait()?.buffer;
        go_ahead(connection)?;
        let sink = offer_of(&connection.receive()?).expect("rping offers its sink next");
        pings.push(data.to_vec());
        connection.write(data, sink)?.wait()?;
        go_ahead(connection)?;
    }
}

/// Pings once. Returns the data that the server wrote.
fn ping(address: SocketAddr) -> Result<Vec<u8>, Error> {
    let connection = Connector::new().connect_to(address)?;
    let source = connection.share(TEXT.len(), Access::REMOTE_READ)?;
    source.store(0, TEXT);
    let sink = connection.share(TEXT.len(), Access::REMOTE_WRITE)?;
    for memory in [&source, &sink] {
        connection.send(to_c(memory))?.wait()?;
        connection.receive_within(PATIENCE)?;
    }
    let mut back = vec![0; TEXT.len()];
    sink.load(0, &mut back);
    Ok(back)
}

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["serve", address] => {
            let connection = Listener::bind(address)?.accept()?.accept()?;
            for data in serve(&connection)? {
                println!(
                    "ping data: {}",
                    String::from_utf8_lossy(&data).trim_end_matches('\0')
                );
            }
            return Ok(());
        }
        ["ping", address] => {
            let address: Ipv4Addr = address.parse().expect("an address of IPv4");
            println!(
                "{}",
                String::from_utf8_lossy(&ping((address, PORT).into())?)
            );
            return Ok(());
        }
        _ => {}
    }
    let listener = Listener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let server = thread::spawn(move || serve(&listener.accept()?.accept()?));
    let back = ping(address)?;
    let served = server.join().expect("the server does not panic")?;
    assert_eq!(served, [TEXT]);
    println!("{}", String::from_utf8_lossy(&back));
    Ok(())
}
