//! A counter of the peer's, which is added to. The peer's program adds.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await?;
        let mut counter = 0;
        while let Ok(add) = stream.read_u64().await {
            stream.write_u64(counter).await?;
            counter += add;
        }
        assert_eq!(counter, 50);
        Ok::<_, std::io::Error>(())
    });
    let mut stream = TcpStream::connect(address).await?;
    for round in 0..10 {
        stream.write_u64(5).await?;
        assert_eq!(stream.read_u64().await?, round * 5);
    }
    drop(stream);
    server.await.unwrap()
}
