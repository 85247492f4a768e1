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
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// The settings with these files.
    fn with(files: &[(&str, &str)]) -> Settings {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("portolan-rsocket-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        for (name, text) in files {
            std::fs::write(folder.join(name), text).unwrap();
        }
        let settings = Settings::read(&folder);
        std::fs::remove_dir_all(&folder).unwrap();
        settings
    }

    #[test]
    fn files_of_one_number_change_the_defaults_and_others_do_not() {
        let settings = with(&[
            ("mem_default", "1000000\n"),
            ("sqsize_default", "99999"),
            ("polling_time", "x"),
        ]);
        assert_eq!(settings.options.receive_buffer, 1_000_000);
        assert_eq!(settings.options.send_queue, u16::MAX);
        assert_eq!(settings.options.send_buffer, 128 << 10);
        assert_eq!(settings.polling_time, Duration::from_micros(10));
        assert_eq!(settings.wake_up_interval, Duration::from_millis(500));
    }

    #[test]
    fn each_file_changes_its_setting_and_no_other() {
        let read = |settings: &Settings| {
            let options = &settings.options;
            [
                ("mem_default", u64::from(options.receive_buffer)),
                ("wmem_default", options.send_buffer.into()),
                ("sqsize_default", options.send_queue.into()),
                ("rqsize_default", options.receive_queue.into()),
                ("inline_default", options.inline.into()),
                ("iomap_size", options.iomaps.into()),
                ("polling_time", settings.polling_time.as_micros() as u64),
                (
                    "wake_up_interval",
                    settings.wake_up_interval.as_millis() as u64,
                ),
            ]
        };
        let defaults = read(&with(&[]));
        for (place, (name, _)) in defaults.iter().enumerate() {
            let mut expected = defaults;
            expected[place].1 = 77;
            assert_eq!(read(&with(&[(name, "77\n")])), expected, "{name}");
        }
    }

    #[test]
    fn buffers_whose_size_the_administrator_sets_do_not_grow() {
        assert!(with(&[("rqsize_default", "77")]).options.grows);
        for name in ["mem_default", "wmem_default"] {
            assert!(!with(&[(name, "77")]).options.grows, "{name}");
        }
    }
}
