//! 1 MiB into the peer's memory. The peer's program copies it there.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const LENGTH: usize = 1 << 20;

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await?;
        let mut memory = vec![0; LENGTH];
        stream.read_exact(&mut memory).await?;
        stream.write_u8(1).await?;
        assert_eq!(memory, [7; LENGTH]);
        Ok(())
    });
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(&[7; LENGTH]).await?;
    stream.read_u8().await?;
    server.await.unwrap()
}
