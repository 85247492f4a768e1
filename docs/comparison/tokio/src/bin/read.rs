//! A record out of the peer's memory. The peer's program answers.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await?;
        let memory = vec![7; 4096];
        while let Ok(at) = stream.read_u32().await {
            let length = stream.read_u32().await? as usize;
            let record = memory.get(at as usize..).and_then(|rest| rest.get(..length));
            let record = record.ok_or(std::io::ErrorKind::InvalidInput)?;
            stream.write_all(record).await?;
        }
        Ok::<_, std::io::Error>(())
    });
    let mut stream = TcpStream::connect(address).await?;
    stream.write_u32(1024).await?;
    stream.write_u32(64).await?;
    let mut record = [0; 64];
    stream.read_exact(&mut record).await?;
    assert_eq!(record, [7; 64]);
    drop(stream);
    server.await.unwrap()
}
