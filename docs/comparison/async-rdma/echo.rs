//! One message, there and back.

use std::alloc::Layout;
use std::io::{self, Write};

use async_rdma::{LocalMrReadAccess, LocalMrWriteAccess, RdmaBuilder};

const ADDRESS: &str = "127.0.0.1:7471";

async fn serve() -> io::Result<()> {
    let rdma = RdmaBuilder::default().listen(ADDRESS).await?;
    let message = rdma.receive().await?;
    rdma.send(&message).await
}

#[tokio::main]
async fn main() -> io::Result<()> {
    let server = tokio::spawn(serve());
    let rdma = RdmaBuilder::default().connect(ADDRESS).await?;
    let mut message = rdma.alloc_local_mr(Layout::new::<[u8; 4]>())?;
    message.as_mut_slice().write_all(b"ahoy")?;
    rdma.send(&message).await?;
    assert_eq!(*rdma.receive().await?.as_slice(), *b"ahoy");
    server.await.unwrap()
}
