//! The rows: what is run, and what must come of it.

/// An address that every machine has, and its software device.
const ADDRESS: &str = "127.0.0.1";
const DEVICE: &str = "sw_lo";

/// One end of a row.
#[derive(Clone, Debug)]
pub(super) enum End {
    /// A program of Debian's, run by `portolan exec`.
    C(Vec<String>),
    /// The command itself.
    Ours(Vec<String>),
}

/// A row.
#[derive(Clone, Debug)]
pub(super) struct Case {
    /// Under which heading it stands.
    pub(super) group: &'static str,
    pub(super) name: String,
    /// None for programs that have no other end.
    pub(super) server: Option<End>,
    /// As many at once as are here.
    pub(super) clients: Vec<End>,
    /// What the client must print.
    pub(super) says: &'static str,
    /// Whether the server ends by itself.
    pub(super) server_ends: bool,
    /// Whether it is a part of the tests.
    pub(super) is_quick: bool,
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn c(text: &str) -> End {
    End::C(words(text))
}

fn ours(text: &str) -> End {
    End::Ours(words(text))
}

impl Case {
    fn pair(group: &'static str, name: &str, server: End, client: End) -> Self {
        Self {
            group,
            name: name.to_owned(),
            server: Some(server),
            clients: vec![client],
            says: "",
            server_ends: true,
            is_quick: false,
        }
    }

    fn alone(group: &'static str, name: &str, program: End, says: &'static str) -> Self {
        Self {
            server: None,
            says,
            ..Self::pair(group, name, program.clone(), program)
        }
    }

    fn quick(self) -> Self {
        Self {
            is_quick: true,
            ..self
        }
    }
}

/// Every row.
pub(super) fn all() -> Vec<Case> {
    [
        devices(),
        connection_manager(),
        mixed(),
        ping_pongs(),
        perftest(),
    ]
    .concat()
}

fn devices() -> Vec<Case> {
    const GROUP: &str = "devices";
    vec![
        Case::alone(GROUP, "ibv_devices", c("ibv_devices"), DEVICE).quick(),
        Case::alone(GROUP, "ibv_devinfo -v", c("ibv_devinfo -v"), "PORT_ACTIVE").quick(),
    ]
}

fn connection_manager() -> Vec<Case> {
    const GROUP: &str = "librdmacm's programs";
    let pair =
        |name, server: String, client: String| Case::pair(GROUP, name, c(&server), c(&client));
    let crowd = Case {
        clients: vec![c(&format!("rping -c -a {ADDRESS} -C 3 -V")); 100],
        server_ends: false,
        ..pair(
            "rping -P with 100 clients at once",
            format!("rping -s -a {ADDRESS} -P"),
            String::new(),
        )
    };
    vec![
        pair(
            "rping",
            format!("rping -s -a {ADDRESS} -C 100"),
            format!("rping -c -a {ADDRESS} -C 100"),
        ),
        pair(
            "rping -V, 10,000 bytes",
            format!("rping -s -a {ADDRESS} -C 100 -V -S 10000"),
            format!("rping -c -a {ADDRESS} -C 100 -V -S 10000"),
        )
        .quick(),
        pair(
            "rping -d",
            format!("rping -s -a {ADDRESS} -C 10 -d"),
            format!("rping -c -a {ADDRESS} -C 10 -d"),
        ),
        crowd,
        pair(
            "ucmatose",
            "ucmatose -c 5 -C 10".into(),
            format!("ucmatose -c 5 -C 10 -s {ADDRESS}"),
        )
        .quick(),
        pair("udaddy", "udaddy".into(), format!("udaddy -s {ADDRESS}")).quick(),
        pair(
            "mckey",
            format!("mckey -m 239.7.0.9 -b {ADDRESS}"),
            format!("mckey -m 239.7.0.9 -b {ADDRESS} -s"),
        ),
        Case {
            // It serves for ever.
            server_ends: false,
            ..pair(
                "cmtime",
                format!("cmtime -b {ADDRESS} -c 50"),
                format!("cmtime -s {ADDRESS} -c 50"),
            )
        },
        pair(
            "rdma_server, rdma_client",
            format!("rdma_server -s {ADDRESS}"),
            format!("rdma_client -s {ADDRESS}"),
        )
        .quick(),
    ]
}

fn mixed() -> Vec<Case> {
    const GROUP: &str = "with one end of ours";
    vec![
        Case::pair(
            GROUP,
            "rping -c -V, portolan listen",
            ours(&format!("listen {ADDRESS}:7174 --once")),
            c(&format!("rping -c -a {ADDRESS} -p 7174 -C 100 -V")),
        )
        .quick(),
        Case::pair(
            GROUP,
            "portolan ping, rping -s -V",
            c(&format!("rping -s -a {ADDRESS} -p 7174 -V")),
            ours(&format!("ping {ADDRESS}:7174 --count 100 --quiet")),
        )
        .quick(),
        Case::pair(
            GROUP,
            "portolan ping --ud, udaddy",
            c("udaddy -c 1 -C 10 -S 1024"),
            ours(&format!(
                "ping {ADDRESS}:7174 --ud --count 10 --size 1024 --quiet"
            )),
        ),
    ]
}

fn ping_pongs() -> Vec<Case> {
    const GROUP: &str = "libibverbs's ping-pongs";
    let kinds = ["rc", "uc", "ud", "srq"];
    let ways = [("", true), (" -e", false)];
    let pair = |kind: &str, options: &str, is_quick| {
        // Only the connected ones look at what came.
        let checks = if kind == "rc" { " -c" } else { "" };
        let program = format!("ibv_{kind}_pingpong -d {DEVICE} -g 0 -n 500{checks}{options}");
        let name = format!("ibv_{kind}_pingpong -g 0{checks}{options}");
        Case {
            is_quick,
            ..Case::pair(
                GROUP,
                &name,
                c(&program),
                c(&format!("{program} {ADDRESS}")),
            )
        }
    };
    kinds
        .iter()
        .flat_map(|kind| ways.map(|(options, is_quick)| pair(kind, options, is_quick)))
        .collect()
}

fn perftest() -> Vec<Case> {
    const GROUP: &str = "perftest, 2 bytes to 8 MiB (-a)";
    let operations = ["send", "write", "read"];
    let mut cases = Vec::new();
    let mut add = |program: &str, sizes: &str, by_cm: bool, is_quick: bool| {
        let way = if by_cm { " -R" } else { "" };
        let options = format!("{program} -d {DEVICE} -x 0 -F{sizes}{way}");
        let name = format!("{program}{sizes}{way}");
        let client = format!("{options} {ADDRESS}");
        cases.push(Case {
            is_quick,
            ..Case::pair(GROUP, &name, c(&options), c(&client))
        });
    };
    for by_cm in [false, true] {
        for operation in operations {
            let is_quick = operation == "write";
            add(&format!("ib_{operation}_lat"), " -a -n 20", by_cm, false);
            add(&format!("ib_{operation}_bw"), " -a -n 20", by_cm, is_quick);
        }
        // Always eight bytes.
        add("ib_atomic_lat", " -n 500", by_cm, false);
        add("ib_atomic_bw", " -n 500", by_cm, false);
    }
    cases
}
