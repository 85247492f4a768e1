//! The administrator's defaults: files in `/etc/rdma/rsocket`, each with one number.

use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use portolan::StreamOptions;

const FOLDER: &str = "/etc/rdma/rsocket";

/// Defaults of a new socket, and how calls wait.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) options: StreamOptions,
    /// How long a call polls before it sleeps.
    pub(super) polling_time: Duration,
    /// How long `rpoll` sleeps at most before it checks again.
    pub(super) wake_up_interval: Duration,
}

pub(super) fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| Settings::read(Path::new(FOLDER)))
}

impl Settings {
    fn read(folder: &Path) -> Self {
        let number = |name: &str| -> Option<u32> {
            std::fs::read_to_string(folder.join(name))
                .ok()?
                .trim()
                .parse()
                .ok()
        };
        let short =
            |name: &str| number(name).map(|number| u16::try_from(number).unwrap_or(u16::MAX));
        let mut options = StreamOptions::default();
        let or = |found: Option<u32>, otherwise: u32| found.unwrap_or(otherwise);
        let has_sizes = ["mem_default", "wmem_default"].map(|name| number(name).is_some());
        options.grows = has_sizes == [false; 2];
        options.receive_buffer = or(number("mem_default"), options.receive_buffer);
        options.send_buffer = or(number("wmem_default"), options.send_buffer);
        options.send_queue = short("sqsize_default").unwrap_or(options.send_queue);
        options.receive_queue = short("rqsize_default").unwrap_or(options.receive_queue);
        options.inline = or(number("inline_default"), options.inline);
        options.iomaps = short("iomap_size").unwrap_or(options.iomaps);
        // Longer than any resolution and all retries of the request.
        options.timeout = Duration::from_secs(120);
        Self {
            options,
            polling_time: Duration::from_micros(or(number("polling_time"), 10).into()),
            wake_up_interval: Duration::from_millis(
                or(number("wake_up_interval"), 500).max(1).into(),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_one_number_change_the_defaults_and_others_do_not() {
        let folder = std::env::temp_dir().join(format!("portolan-rsocket-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for (name, text) in [
            ("mem_default", "1000000\n"),
            ("sqsize_default", "99999"),
            ("polling_time", "x"),
        ] {
            std::fs::write(folder.join(name), text).unwrap();
        }
        let settings = Settings::read(&folder);
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(settings.options.receive_buffer, 1_000_000);
        assert_eq!(settings.options.send_queue, u16::MAX);
        assert_eq!(settings.options.send_buffer, 128 << 10);
        assert_eq!(settings.polling_time, Duration::from_micros(10));
        assert_eq!(settings.wake_up_interval, Duration::from_millis(500));
    }
}
