//! Twenty clients at once, each with ten messages there and back.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

async fn serve(mut stream: TcpStream) -> std::io::Result<()> {
    while let Ok(length) = stream.read_u32().await {
        let mut message = vec![0; length as usize];
        stream.read_exact(&mut message).await?;
        stream.write_u32(length).await?;
        stream.write_all(&message).await?;
    }
    Ok(())
}

async fn talk(address: SocketAddr, name: u8) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    for round in 0..10 {
        stream.write_u32(2).await?;
        stream.write_all(&[name, round]).await?;
        let mut message = vec![0; stream.read_u32().await? as usize];
        stream.read_exact(&mut message).await?;
        assert_eq!(message, [name, round]);
    }
    Ok(())
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    let clients: Vec<_> = (0..20).map(|name| tokio::spawn(talk(address, name))).collect();
    for client in clients {
        client.await.unwrap()?;
    }
    Ok(())
}
