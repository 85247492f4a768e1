//! HTTP over RDMA: hyper serves 200 responses of 100 kB to a client in the same process.
//!
//! `cargo run --release -p portolan --features tokio --example http`

use std::convert::Infallible;

use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Bytes;
use hyper::service::service_fn;
use hyper::{Request, Response, client, server};
use hyper_util::rt::TokioIo;
use portolan::stream::{AsyncStream, AsyncStreamListener};

const RESPONSES: usize = 200;
const BYTES: usize = 100_000;

fn page() -> Bytes {
    (0..BYTES).map(|at| (at * 31 + at / 251) as u8).collect()
}

async fn answer<T>(_: Request<T>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::new(page())))
}

async fn serve(listener: AsyncStreamListener) -> std::io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        let connection = server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service_fn(answer));
        tokio::spawn(connection);
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listener = AsyncStreamListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    tokio::spawn(serve(listener));

    let stream = AsyncStream::connect(&address).await?;
    let (mut sender, connection) = client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    for _ in 0..RESPONSES {
        let request = Request::get("/")
            .header("host", &address)
            .body(Empty::<Bytes>::new())?;
        let response = sender.send_request(request).await?;
        let body = response.into_body().collect().await?.to_bytes();
        assert!(body == page());
        sender.ready().await?;
    }
    println!("{RESPONSES} responses of {BYTES} bytes");
    Ok(())
}
