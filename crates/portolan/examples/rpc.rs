//! Remote procedure calls: many calls at once over one connection, each with an answer of its own.
//!
//! `cargo run -p portolan --example rpc --features tokio` runs both ends; `rpc serve ADDRESS` and `rpc call ADDRESS TEXT` run one.
//!
//! A call is a message with its number as immediate data. The answer has the same number, so answers may come in any order.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use portolan::tasks::{AsyncConnection, AsyncListener};
use portolan::{Connector, Error, Options};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// The client's end.
#[derive(Clone)]
struct Client {
    connection: Arc<AsyncConnection>,
    calls: Arc<Mutex<Calls>>,
}

#[derive(Default)]
struct Calls {
    last: u32,
    waiting: HashMap<u32, oneshot::Sender<Vec<u8>>>,
}

impl Client {
    async fn connect(address: &str) -> Result<Self, Error> {
        let client = Self {
            connection: Arc::new(Connector::new().connect_async(address).await?),
            calls: Arc::default(),
        };
        tokio::spawn(client.clone().answers());
        Ok(client)
    }

    /// Hands each answer to its call. The end of the connection ends all calls.
    async fn answers(self) {
        while let Ok(answer) = self.connection.receive().await {
            let number = answer.immediate().unwrap_or_default();
            if let Some(call) = self.calls.lock().unwrap().waiting.remove(&number) {
                let _ = call.send(answer.to_vec());
            }
        }
        self.calls.lock().unwrap().waiting.clear();
    }

    /// Calls; `None` if the connection has ended.
    async fn call(&self, request: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let (answered, answer) = oneshot::channel();
        let number = {
            let mut calls = self.calls.lock().unwrap();
            calls.last += 1;
            let number = calls.last;
            calls.waiting.insert(number, answered);
            number
        };
        let request = request.to_vec();
        let sent = self.connection.send_with_immediate(request, number)?.await;
        if let Err(failed) = sent {
            self.calls.lock().unwrap().waiting.remove(&number);
            return Err(failed.into());
        }
        Ok(answer.await.ok())
    }
}

/// The procedure.
fn upper_case(request: &[u8]) -> Vec<u8> {
    request.to_ascii_uppercase()
}

async fn serve(listener: AsyncListener) -> Result<(), Error> {
    loop {
        let incoming = listener.accept().await?;
        tokio::spawn(async move {
            let connection = incoming.accept_async(&Options::default()).await?;
            while let Ok(request) = connection.receive().await {
                let number = request.immediate().unwrap_or_default();
                let answer = upper_case(&request);
                drop(request);
                connection.send_with_immediate(answer, number)?.await?;
            }
            Ok::<_, Error>(())
        });
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["serve", address] => return serve(AsyncListener::bind(address).await?).await,
        ["call", address, text] => {
            let answer = Client::connect(address)
                .await?
                .call(text.as_bytes())
                .await?;
            println!("{}", String::from_utf8_lossy(&answer.unwrap_or_default()));
            return Ok(());
        }
        _ => {}
    }
    let listener = AsyncListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    tokio::spawn(serve(listener));
    let client = Client::connect(&address).await?;
    let mut calls = JoinSet::new();
    for number in 0..1000 {
        let client = client.clone();
        calls.spawn(async move {
            // The connection's send queue bounds how many are posted at once; a call that finds it full waits.
            let request = format!("call {number}");
            loop {
                match client.call(request.as_bytes()).await {
                    Err(error) if error.is_limit() => tokio::task::yield_now().await,
                    answer => break (request.to_uppercase(), answer),
                }
            }
        });
    }
    for (expected, answer) in calls.join_all().await {
        assert_eq!(answer?.as_deref(), Some(expected.as_bytes()));
    }
    println!("1000 calls were answered");
    Ok(())
}
