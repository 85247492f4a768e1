//! Twenty clients at once, each with ten messages there and back.

use std::net::SocketAddr;

use comparison_rdma_io::End;
use rdma_io::Result;
use rdma_io::async_cm::AsyncCmListener;

async fn serve(mut end: End) -> Result<()> {
    for _ in 0..10 {
        let message = end.receive().await?;
        end.send(&message).await?;
    }
    // The peer ends it.
    end.id.next_event().await?.ack();
    Ok(())
}

async fn talk(address: SocketAddr, name: u8) -> Result<()> {
    let mut end = End::connect(&address).await?;
    for round in 0..10 {
        end.send(&[name, round]).await?;
        assert_eq!(end.receive().await?, [name, round]);
    }
    end.id.disconnect()
}

#[tokio::main]
async fn main() -> Result<()> {
    let listener = AsyncCmListener::bind(&"127.0.0.1:0".parse().unwrap())?;
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok(end) = End::accept(&listener).await {
            tokio::spawn(serve(end));
        }
    });
    let clients: Vec<_> = (0..20).map(|name| tokio::spawn(talk(address, name))).collect();
    for client in clients {
        client.await.unwrap()?;
    }
    Ok(())
}
