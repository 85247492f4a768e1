//! One message, there and back.

use comparison_rdma_io::End;
use rdma_io::Result;
use rdma_io::async_cm::AsyncCmListener;

#[tokio::main]
async fn main() -> Result<()> {
    let listener = AsyncCmListener::bind(&"127.0.0.1:0".parse().unwrap())?;
    let address = listener.local_addr().unwrap();
    let server = async {
        let mut end = End::accept(&listener).await?;
        let message = end.receive().await?;
        end.send(&message).await?;
        Ok(end)
    };
    let client = async {
        let mut end = End::connect(&address).await?;
        end.send(b"ahoy").await?;
        assert_eq!(end.receive().await?, b"ahoy");
        Ok(end)
    };
    tokio::try_join!(server, client).map(drop)
}
