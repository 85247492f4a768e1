//! Tests an RDMA program without RDMA hardware. Each test has its own network.
//!
//! `cargo run -p portolan --example without_hardware`
//!
//! The software device needs no setup and no root. A provider with its own UDP port and name is isolated from all other
//! processes, so tests can run in parallel. The provider's usage at the end shows whether a test has leaked anything.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use portolan::software::{SoftwareConfig, SoftwareProvider, Usage};
use portolan::{Connection, Connector, Error, Listener};

const PATIENCE: Duration = Duration::from_secs(30);

/// The program under test: answers each message with its length, until the client disconnects.
fn serve(connection: &Connection) -> Result<(), Error> {
    let answer = || {
        let length = connection.receive()?.len() as u64;
        connection.send(length.to_be_bytes().to_vec())?.wait()?;
        Ok(())
    };
    loop {
        match answer() {
            Ok(()) => {}
            Err(error) if Error::is_disconnected(&error) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// A network for one test.
fn network(port: u16) -> Result<Arc<SoftwareProvider>, Error> {
    let mut config = SoftwareConfig::default();
    config.stack.group.port = port;
    config.stack.group.name_prefix = format!("without-hardware-{}", std::process::id());
    SoftwareProvider::start(config)
}

/// Both ends of a connection in a network.
fn pair(network: &Arc<SoftwareProvider>) -> Result<(Connection, Connection), Error> {
    let any = "127.0.0.1:0".parse().expect("an address");
    let listener = Listener::bind_on(network.clone(), any)?;
    let address = listener.local_addr()?;
    let connector = Connector::new().provider(network.clone());
    let client = thread::spawn(move || connector.connect_to(address));
    let server = listener.accept_within(PATIENCE)?.accept()?;
    Ok((client.join().expect("it does not panic")?, server))
}

fn lengths_come_back(port: u16) -> Result<(), Error> {
    let network = network(port)?;
    let (client, server) = pair(&network)?;
    let server = thread::spawn(move || serve(&server));
    for length in [0, 1, 4096] {
        client.send(vec![0; length])?.wait()?;
        let answer = client.receive_within(PATIENCE)?;
        assert_eq!(answer[..], (length as u64).to_be_bytes());
    }
    drop(client);
    server.join().expect("it does not panic")?;
    // The disconnects take a moment to arrive.
    let started = Instant::now();
    while network.usage() != Usage::default() {
        assert!(started.elapsed() < PATIENCE, "left: {:?}", network.usage());
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn a_client_that_vanishes_ends_the_server(port: u16) -> Result<(), Error> {
    let network = network(port)?;
    let (client, server) = pair(&network)?;
    client.send(b"is anybody there?".to_vec())?.wait()?;
    drop(client);
    serve(&server)
}

fn main() -> Result<(), Error> {
    // Runs all tests in parallel, as a test harness does. Each gets a UDP port that is free at this moment.
    let port = || Ok(std::net::UdpSocket::bind("0.0.0.0:0")?.local_addr()?.port());
    let ports: std::io::Result<Vec<u16>> = (0..2).map(|_| port()).collect();
    let ports = ports.expect("UDP has ports");
    let (one, other) = (ports[0], ports[1]);
    let tests = [
        thread::spawn(move || lengths_come_back(one)),
        thread::spawn(move || a_client_that_vanishes_ends_the_server(other)),
    ];
    let mut passed = 0;
    for test in tests {
        test.join().expect("the test does not panic")?;
        passed += 1;
    }
    println!("{passed} tests passed");
    Ok(())
}
