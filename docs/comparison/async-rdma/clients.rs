//! Twenty clients at once, each with ten messages there and back.

use std::alloc::Layout;
use std::io;

use async_rdma::{LocalMrReadAccess, LocalMrWriteAccess, Rdma, RdmaBuilder, RdmaListener};

const ADDRESS: &str = "127.0.0.1:7471";

async fn serve(rdma: Rdma) -> io::Result<()> {
    for _ in 0..10 {
        let message = rdma.receive().await?;
        rdma.send(&message).await?;
    }
    Ok(())
}

async fn talk(name: u8) -> io::Result<()> {
    let rdma = RdmaBuilder::default().connect(ADDRESS).await?;
    let mut message = rdma.alloc_local_mr(Layout::new::<[u8; 2]>())?;
    for round in 0..10 {
        message.as_mut_slice().copy_from_slice(&[name, round]);
        rdma.send(&message).await?;
        assert_eq!(*rdma.receive().await?.as_slice(), [name, round]);
    }
    Ok(())
}

#[tokio::main]
async fn main() -> io::Result<()> {
    let listener = RdmaListener::bind(ADDRESS).await?;
    tokio::spawn(async move {
        while let Ok(rdma) = listener.accept(1, 1, 512).await {
            tokio::spawn(serve(rdma));
        }
    });
    let clients: Vec<_> = (0..20).map(|name| tokio::spawn(talk(name))).collect();
    for client in clients {
        client.await.unwrap()?;
    }
    Ok(())
}
