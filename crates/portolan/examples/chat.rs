//! A chat in a multicast group: everybody who joins hears everybody.
//!
//! `chat GROUP [LOCAL ADDRESS]` reads lines from stdin:
//! `cargo run -p portolan --example chat --features tokio -- 239.1.7.21`.
//! Without arguments two members greet each other over loopback.

use std::net::{IpAddr, SocketAddr};

use portolan::datagram::Options;
use portolan::provider::cm::JoinKind;
use portolan::tasks::AsyncSocket;
use tokio::io::{AsyncBufReadExt, BufReader, stdin};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Joins, and returns the socket with what to send to.
async fn join(
    group: IpAddr,
    local: Option<IpAddr>,
) -> Outcome<(AsyncSocket, portolan::datagram::Destination)> {
    let source = local.map(|ip| SocketAddr::new(ip, 0));
    let group = SocketAddr::new(group, 0);
    let options = Options::default();
    let (socket, joined) = AsyncSocket::join(group, source, JoinKind::FullMember, &options).await?;
    Ok((socket, joined.destination))
}

async fn chat(group: IpAddr, local: Option<IpAddr>) -> Outcome<()> {
    let (mut socket, group) = join(group, local).await?;
    let mut lines = BufReader::new(stdin()).lines();
    loop {
        // Both futures may be dropped: no line and no datagram is lost.
        tokio::select! {
            line = lines.next_line() => match line? {
                Some(line) => {
                    let length = line.len().min(socket.get_ref().mtu());
                    socket.send(&group, &line.as_bytes()[..length], None).await?;
                }
                None => return Ok(socket.flush().await?),
            },
            datagram = socket.receive() => {
                let datagram = datagram?;
                println!("{}: {}", datagram.source, String::from_utf8_lossy(&datagram.data));
            }
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    if let Some(group) = arguments.next() {
        let local = arguments.next().map(|local| local.parse()).transpose()?;
        return chat(group.parse()?, local).await;
    }
    let (group, local) = ("239.1.7.21".parse()?, Some("127.0.0.1".parse()?));
    let (mut one, to_group) = join(group, local).await?;
    let (mut other, _) = join(group, local).await?;
    one.send(&to_group, b"ahoy, who is there?", None).await?;
    let heard = other.receive().await?;
    println!("the other hears: {}", String::from_utf8_lossy(&heard.data));
    // An answer to its sender alone.
    let sender = other.sender(&heard)?;
    other.send(&sender, b"the other", None).await?;
    let answer = one.receive().await?;
    println!("one hears: {}", String::from_utf8_lossy(&answer.data));
    Ok(())
}
