//! A record out of the peer's memory, whose program does nothing.

use std::alloc::Layout;
use std::io;

use async_rdma::{LocalMrReadAccess, LocalMrWriteAccess, MrAccess, RdmaBuilder};

const ADDRESS: &str = "127.0.0.1:7471";

async fn serve() -> io::Result<()> {
    let rdma = RdmaBuilder::default().listen(ADDRESS).await?;
    let mut memory = rdma.alloc_local_mr(Layout::new::<[u8; 4096]>())?;
    memory.as_mut_slice().fill(7);
    rdma.send_local_mr(memory).await?;
    rdma.receive().await.map(drop)
}

#[tokio::main]
async fn main() -> io::Result<()> {
    let server = tokio::spawn(serve());
    let rdma = RdmaBuilder::default().connect(ADDRESS).await?;
    let table = rdma.receive_remote_mr().await?;
    let slice = table.get(1024..1088)?;
    let mut record = rdma.alloc_local_mr(Layout::new::<[u8; 64]>())?;
    rdma.read(&mut record, &slice).await?;
    assert_eq!(*record.as_slice(), [7; 64]);
    assert_eq!(record.length(), 64);
    rdma.send(&record).await?;
    server.await.unwrap()
}
