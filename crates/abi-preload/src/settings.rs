//! Which sockets become streams, from rdma-core's configuration file and the environment.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use libc::{AF_INET, AF_INET6, c_int};
use portolan::StreamOptions;

/// rdma-core's file: one rule `program domain type protocol` per line. Without rules, all TCP sockets become streams.
const RULES: &str = "/etc/rdma/rsocket/preload_config";
/// Path of a file to use instead.
const RULES_ENV: &str = "PORTOLAN_SOCKETS_CONFIG";
/// Ports that become streams: `80,8000-8099`, or `!22` for all but these.
const PORTS_ENV: &str = "PORTOLAN_SOCKETS_PORTS";
/// How long a connect tries to find an rsocket before it uses TCP, in milliseconds.
const TIMEOUT_ENV: &str = "PORTOLAN_SOCKETS_TIMEOUT_MS";
const TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes of a receive buffer. A sender that need not wait for the receiver saves wake-ups.
const RECEIVE_BUFFER: u32 = 256 << 10;
/// Maximum of rules, and of port ranges.
const RULES_MAX: usize = 1024;

#[derive(Debug)]
pub(crate) struct Settings {
    /// Whether this program's IPv4 and IPv6 sockets become streams.
    domains: [bool; 2],
    ports: Ports,
    pub(crate) options: StreamOptions,
    /// What is ignored because it is wrong, for the user.
    pub(crate) wrong: Vec<String>,
}

/// A set of ports.
#[derive(Debug, Default, PartialEq, Eq)]
struct Ports {
    ranges: Vec<(u16, u16)>,
    /// The set is all ports outside the ranges.
    is_inverted: bool,
}

pub(crate) fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(Settings::read)
}

impl Settings {
    fn read() -> Self {
        let mut wrong = Vec::new();
        let rules = read_rules(&mut wrong);
        let ports = Ports::parse(&variable(PORTS_ENV), &mut wrong);
        Self {
            domains: [AF_INET, AF_INET6].map(|domain| admits(&rules, &program(), domain)),
            ports,
            options: StreamOptions::default()
                .receive_buffer(RECEIVE_BUFFER)
                .timeout(timeout(&variable(TIMEOUT_ENV), &mut wrong)),
            wrong,
        }
    }

    /// Whether any socket of this program is taken.
    pub(crate) fn takes_any(&self) -> bool {
        self.domains.contains(&true)
    }

    pub(crate) fn takes_domain(&self, domain: c_int) -> bool {
        match domain {
            AF_INET => self.domains[0],
            AF_INET6 => self.domains[1],
            _ => false,
        }
    }

    pub(crate) fn takes(&self, address: &SocketAddr) -> bool {
        self.ports.has(address.port())
    }
}

/// A variable of the environment; empty if it is not set.
fn variable(name: &str) -> String {
    let value = std::env::var_os(name).unwrap_or_default();
    value.to_string_lossy().into_owned()
}

/// The rules' text. A file that the user has not named may be missing.
fn read_rules(wrong: &mut Vec<String>) -> String {
    let named = std::env::var_os(RULES_ENV).filter(|path| !path.is_empty());
    let path = Path::new(named.as_deref().unwrap_or(RULES.as_ref()));
    match std::fs::read(path) {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            note_wrong_rules(&text, path, wrong);
            text
        }
        Err(error) => {
            if named.is_some() || error.kind() != std::io::ErrorKind::NotFound {
                wrong.push(format!(
                    "cannot read {}: {error}; all TCP sockets become rsockets",
                    path.display()
                ));
            }
            String::new()
        }
    }
}

/// Notes the first line that is neither a rule, a comment nor empty, and how many such lines follow.
fn note_wrong_rules(text: &str, path: &Path, wrong: &mut Vec<String>) {
    let is_wrong = |line: &str| {
        let is_left_out = is_comment(line) || line.trim().is_empty();
        !is_left_out && rule(line).is_none()
    };
    let mut lines = (1..).zip(text.lines()).filter(|(_, line)| is_wrong(line));
    let Some((number, line)) = lines.next() else {
        return;
    };
    let others = match lines.count() {
        0 => String::new(),
        1 => ", like 1 line after it".to_owned(),
        count => format!(", like {count} lines after it"),
    };
    let consequence = match text.lines().any(|line| rule(line).is_some()) {
        true => "",
        false => "; no line is left, so all TCP sockets become rsockets",
    };
    wrong.push(format!(
        "{}, line {number}: {line:?} is not `program domain type protocol` and is ignored{others}{consequence}",
        path.display()
    ));
}

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with('#')
}

/// How long a connect tries to find an rsocket.
fn timeout(text: &str, wrong: &mut Vec<String>) -> Duration {
    let Ok(timeout_ms) = text.trim().parse() else {
        if !text.is_empty() {
            wrong.push(format!(
                "{TIMEOUT_ENV}={text:?} is not a number of milliseconds; {} ms are used",
                TIMEOUT.as_millis()
            ));
        }
        return TIMEOUT;
    };
    Duration::from_millis(timeout_ms)
}

/// The program's name, as in `program_invocation_short_name`.
pub(crate) fn program() -> String {
    let name = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&name).file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// Whether the rules admit a stream of this domain. A rule's program is a prefix of the name, or `*`.
fn admits(rules: &str, program: &str, domain: c_int) -> bool {
    let mut found = rules.lines().take(RULES_MAX).filter_map(rule).peekable();
    if found.peek().is_none() {
        return true;
    }
    found.any(|rule| {
        let program = program.to_ascii_lowercase();
        rule.program
            .is_none_or(|name| program.starts_with(&name.to_ascii_lowercase()))
            && rule.domain.is_none_or(|its| its == domain)
            && rule.is_stream
    })
}

struct Rule<'a> {
    /// `None` matches every program.
    program: Option<&'a str>,
    domain: Option<c_int>,
    is_stream: bool,
}

/// Parses a line. `None` for comments and invalid rules.
fn rule(line: &str) -> Option<Rule<'_>> {
    if is_comment(line) {
        return None;
    }
    let mut words = line.split_whitespace();
    let (program, domain, kind, protocol) =
        (words.next()?, words.next()?, words.next()?, words.next()?);
    let strip = |word: &str, prefixes: &[&str]| {
        let word = word.to_ascii_uppercase();
        let stripped = prefixes.iter().find_map(|prefix| word.strip_prefix(prefix));
        stripped.map_or(word.clone(), str::to_owned)
    };
    let domain = match strip(domain, &["AF_", "PF_"]).as_str() {
        "*" => None,
        "INET" => Some(AF_INET),
        "INET6" => Some(AF_INET6),
        // A rule for AF_IB, which no socket here uses.
        "IB" => Some(-1),
        _ => return None,
    };
    let has_kind = match strip(kind, &["SOCK_"]).as_str() {
        "*" | "STREAM" => true,
        "DGRAM" => false,
        _ => return None,
    };
    let has_protocol = match strip(protocol, &["IPPROTO_"]).as_str() {
        "*" | "TCP" => true,
        "UDP" => false,
        _ => return None,
    };
    Some(Rule {
        program: Some(program).filter(|name| *name != "*"),
        domain,
        is_stream: has_kind && has_protocol,
    })
}

impl Ports {
    /// Ignores words that are not ports or ranges, and notes them. Without a valid range, all ports are taken.
    fn parse(text: &str, wrong: &mut Vec<String>) -> Self {
        let text = text.trim();
        let (excludes, list) = match text.strip_prefix('!') {
            Some(list) => (true, list),
            None => (false, text),
        };
        let mut ranges = Vec::new();
        let words = list.split(',').map(str::trim);
        for word in words.filter(|word| !word.is_empty()).take(RULES_MAX) {
            match range(word) {
                Some(range) => ranges.push(range),
                None => wrong.push(format!(
                    "{PORTS_ENV}: {word:?} is not a port or range of ports, and is ignored"
                )),
            }
        }
        Self {
            is_inverted: excludes || ranges.is_empty(),
            ranges,
        }
    }

    fn has(&self, port: u16) -> bool {
        let is_in = self
            .ranges
            .iter()
            .any(|(first, last)| (*first..=*last).contains(&port));
        is_in != self.is_inverted
    }
}

/// A port, or a range of ports such as `8000-8099`.
fn range(word: &str) -> Option<(u16, u16)> {
    let (first, last) = word.split_once('-').unwrap_or((word, word));
    let range = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    (range.0 <= range.1).then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_rules_every_stream_is_taken_and_with_rules_those_that_one_admits() {
        assert!(admits("", "curl", AF_INET));
        assert!(admits("# curl inet stream tcp\n", "nc", AF_INET6));
        let rules = "# a comment\nredis * * *\ncurl INET6 SOCK_STREAM tcp\niperf3 * dgram *\n";
        assert!(admits(rules, "redis-server", AF_INET));
        assert!(admits(rules, "curl", AF_INET6));
        assert!(!admits(rules, "curl", AF_INET));
        assert!(!admits(rules, "iperf3", AF_INET));
        assert!(!admits(rules, "nc", AF_INET));
        // Invalid rules are ignored.
        assert!(admits("curl inet stream\nnonsense a b c\n", "nc", AF_INET));
    }

    #[test]
    fn ports_are_a_list_of_ranges_or_all_but_these() {
        let parse = |text| Ports::parse(text, &mut Vec::new());
        let all = parse("");
        assert!(all.has(1) && all.has(65_535));
        let some = parse("80, 8000-8099,x");
        assert!(some.has(80) && some.has(8000) && some.has(8099));
        assert!(!some.has(81) && !some.has(8100));
        let but = parse("!22,53");
        assert!(!but.has(22) && !but.has(53) && but.has(80));
        for wrong in ["abc", "!abc", "90-80", ","] {
            assert!(parse(wrong).has(80), "{wrong}");
        }
    }

    #[test]
    fn what_is_wrong_in_a_setting_is_named() {
        let mut wrong = Vec::new();
        Ports::parse("80,8O,90-80,,70000", &mut wrong);
        note_wrong_rules(
            "# rules\n\ncurl inet stream\nx y z\n",
            Path::new("/f"),
            &mut wrong,
        );
        assert_eq!(timeout("2s", &mut wrong), TIMEOUT);
        let named = [
            "PORTOLAN_SOCKETS_PORTS: \"8O\" is not",
            "PORTOLAN_SOCKETS_PORTS: \"90-80\" is not",
            "PORTOLAN_SOCKETS_PORTS: \"70000\" is not",
            "/f, line 3: \"curl inet stream\" is not",
            "PORTOLAN_SOCKETS_TIMEOUT_MS=\"2s\" is not",
        ];
        assert_eq!(wrong.len(), named.len(), "{wrong:?}");
        for (said, begin) in wrong.iter().zip(named) {
            assert!(said.starts_with(begin), "{said}");
        }
    }

    #[test]
    fn a_comment_may_be_indented() {
        let mut wrong = Vec::new();
        let text = "  # curl inet stream\n\t# redis * * *\n";
        note_wrong_rules(text, Path::new("/f"), &mut wrong);
        assert_eq!(wrong, Vec::<String>::new());
        assert!(admits("\t# redis * * *\n", "nc", AF_INET));
    }

    #[test]
    fn the_first_wrong_line_is_named_and_the_others_are_counted() {
        let named = |text: &str| {
            let mut wrong = Vec::new();
            note_wrong_rules(text, Path::new("/f"), &mut wrong);
            assert_eq!(wrong.len(), 1);
            wrong.remove(0)
        };
        let one = named("redis * * *\nx\n");
        assert!(one.starts_with("/f, line 2: \"x\" is not"), "{one}");
        assert!(one.ends_with("and is ignored"), "{one}");
        let three = named("x\nredis * * *\ny\nz a b c\n");
        assert!(
            three.ends_with("and is ignored, like 2 lines after it"),
            "{three}"
        );
        let all = named("x\n");
        assert!(
            all.ends_with("; no line is left, so all TCP sockets become rsockets"),
            "{all}"
        );
    }

    #[test]
    fn right_settings_name_nothing() {
        let mut wrong = Vec::new();
        Ports::parse("!22, 53-60", &mut wrong);
        Ports::parse("", &mut wrong);
        let rules = "# rules\n\nredis * stream tcp\n";
        note_wrong_rules(rules, Path::new("/f"), &mut wrong);
        assert_eq!(timeout(" 500 ", &mut wrong), Duration::from_millis(500));
        assert_eq!(timeout("", &mut wrong), TIMEOUT);
        assert_eq!(wrong, Vec::<String>::new());
    }
}
