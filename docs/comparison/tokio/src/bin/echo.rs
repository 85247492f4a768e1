//! One message, there and back.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await?;
        let mut message = vec![0; stream.read_u32().await? as usize];
        stream.read_exact(&mut message).await?;
        stream.write_u32(message.len() as u32).await?;
        stream.write_all(&message).await
    });
    let mut stream = TcpStream::connect(address).await?;
    stream.write_u32(4).await?;
    stream.write_all(b"ahoy").await?;
    let mut message = vec![0; stream.read_u32().await? as usize];
    stream.read_exact(&mut message).await?;
    assert_eq!(message, b"ahoy");
    server.await.unwrap()
}
