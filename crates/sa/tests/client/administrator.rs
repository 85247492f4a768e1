//! An administrator in its own thread, at the other end of a scripted transport.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use portolan_sa::transport::Mad;
use portolan_sa::{Client, ClientConfig, LinkLayer, MadAddress, Port, PortState};
use portolan_wire::mad::{MadHeaderRepr, Method};
use portolan_wire::sa::{SaHeader, SaPacket};
use portolan_wire::{Gid, PKey};

use crate::scripted::{Script, pair};

pub(crate) const SA: MadAddress = MadAddress::gsi(7, 0, 0);
/// Longer than any step of these tests takes, even on a slow machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn gid(number: u16) -> Gid {
    Gid::from_ipv6(std::net::Ipv6Addr::new(0xFE80, 0, 0, 0, 2, 0xC9, 0, number))
}

pub(crate) fn port() -> Port {
    Port {
        device: "ib0".into(),
        port_num: 1,
        link_layer: LinkLayer::InfiniBand,
        state: PortState::Active,
        lid: 3,
        lmc: 0,
        sm_lid: 7,
        sm_sl: 0,
        gids: vec![gid(1)],
        pkeys: vec![PKey::DEFAULT],
    }
}

/// The answer to a request: a status and data, or no answer.
pub(crate) type Says = Box<dyn FnMut(&Question) -> Option<(u16, Vec<u8>)> + Send>;

/// A received request.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    pub(crate) method: Method,
    pub(crate) mask: u64,
    pub(crate) data: Vec<u8>,
}

/// A subnet: the administrator's thread, and the requests it received.
pub(crate) struct Subnet {
    pub(crate) client: Option<Client>,
    pub(crate) script: Arc<Mutex<Script>>,
    questions: Arc<Mutex<Vec<Question>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Subnet {
    pub(crate) fn new(
        says: impl FnMut(&Question) -> Option<(u16, Vec<u8>)> + Send + 'static,
    ) -> Self {
        let script = Arc::new(Mutex::new(pair(port()).1));
        let current = script.clone();
        let client = Client::new(ClientConfig::default(), move || {
            // Each opening creates a new transport.
            let (transport, script) = pair(port());
            *current.lock().expect("whole") = script;
            Ok(Box::new(transport))
        });
        Self::with(client, script, Box::new(says))
    }

    /// Creates a subnet around an existing client.
    pub(crate) fn with(client: Client, script: Arc<Mutex<Script>>, mut says: Says) -> Self {
        let questions = Arc::new(Mutex::new(Vec::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let (current, seen, stopped) = (script.clone(), questions.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let script = current.lock().expect("whole").clone();
                let Some(sent) = script.sent(Duration::from_millis(2)) else {
                    continue;
                };
                let packet = SaPacket::new_checked(sent.mad.as_slice()).expect("right");
                let question = Question {
                    method: packet.mad().method,
                    mask: packet.sa().component_mask,
                    data: packet.data().to_vec(),
                };
                let said = says(&question);
                seen.lock().expect("whole").push(question);
                if let Some((status, data)) = said {
                    script.say(SA, &answer(&packet, status, &data));
                }
            }
        });
        Self {
            client: Some(client),
            script,
            questions,
            stop,
            thread: Some(thread),
        }
    }

    pub(crate) fn client(&self) -> &Client {
        self.client.as_ref().expect("not dropped yet")
    }

    pub(crate) fn script(&self) -> Script {
        self.script.lock().expect("whole").clone()
    }

    pub(crate) fn questions(&self) -> Vec<Question> {
        self.questions.lock().expect("whole").clone()
    }

    /// Number of requests received, by method.
    pub(crate) fn methods(&self) -> HashMap<Method, usize> {
        let mut methods = HashMap::new();
        for question in self.questions() {
            *methods.entry(question.method).or_default() += 1;
        }
        methods
    }
}

impl Drop for Subnet {
    fn drop(&mut self) {
        drop(self.client.take());
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the administrator's thread panicked");
        }
    }
}

fn answer(question: &SaPacket<'_>, status: u16, data: &[u8]) -> Mad {
    let method = match question.mad().method {
        Method::SET => Method::GET_RESP,
        Method(other) => Method(other | 0x80),
    };
    let mad = MadHeaderRepr {
        method,
        status,
        ..*question.mad()
    };
    let sa: SaHeader = *question.sa();
    SaPacket::emit(&mad, &sa, data).expect("fits")
}

/// Waits until `condition` holds.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = std::time::Instant::now() + PATIENCE;
    while !condition() {
        assert!(std::time::Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
