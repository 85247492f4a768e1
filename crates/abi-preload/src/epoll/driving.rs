//! Streams whose device calls: what it reports, and the polling of a waiting thread.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use libc::epoll_event;
use portolan::Stream;
use portolan::stream::DeviceWait;
use portolan_threads::spin::Polling;

use super::{Interest, NO_DRIVER, Set};
use crate::socket::{Kind, Socket, Watch};

impl Set {
    /// Marks the sockets that devices have reported as hot. Returns whether there were any.
    pub(super) fn take_reports(&self) -> bool {
        if !self.must_look.load(Ordering::SeqCst) {
            return false;
        }
        self.must_look.store(false, Ordering::SeqCst);
        let reports = std::mem::take(&mut *self.reports.lock());
        let mut interests = self.interests.lock();
        reports.iter().for_each(|number| interests.heat(*number));
        drop(interests);
        // Its memory serves the next reports.
        let mut kept = reports;
        kept.clear();
        let mut reports = self.reports.lock();
        if reports.is_empty() && reports.capacity() < kept.capacity() {
            *reports = kept;
        }
        true
    }

    /// A socket whose stream can drive the device.
    pub(super) fn driver(&self) -> Option<Arc<Socket>> {
        let interests = self.interests.lock();
        let socket = |interest: &Interest| {
            let is_driver = interest.placed == Watch::default();
            is_driver.then(|| interest.socket.upgrade()).flatten()
        };
        let driver = self.driver.load(Ordering::Relaxed);
        if driver == NO_DRIVER {
            return None;
        }
        let known = interests.by_number.get(&driver);
        if let Some(known) = known.and_then(socket)
            && known.kind() == Kind::Connected
        {
            return Some(known);
        }
        let mut all = interests.by_number.iter();
        let found = all.find_map(|(number, interest)| {
            let found = socket(interest).filter(|found| found.kind() == Kind::Connected)?;
            Some((*number, found))
        });
        let number = found.as_ref().map_or(NO_DRIVER, |(number, _)| *number);
        self.driver.store(number, Ordering::Relaxed);
        found.map(|(_, found)| found)
    }

    /// [`collect`](Self::collect)s. While nothing is ready, drives the device for a short time before a sleep.
    pub(super) fn collect_driving(
        &self,
        events: &mut [epoll_event],
        polling: &mut Option<Polling>,
        until: Option<Instant>,
    ) -> usize {
        let driver = self.driver();
        let Some(stream) = driver.as_ref().and_then(|driver| driver.stream()) else {
            self.take_reports();
            return self.collect(events);
        };
        let mut is_first = true;
        loop {
            self.drive(stream);
            if self.take_reports() || is_first {
                is_first = false;
                let found = self.collect(events);
                if found > 0 {
                    return found;
                }
            }
            let is_over = until.is_some_and(|until| Instant::now() >= until);
            let polling = polling.get_or_insert_with(|| self.spin.start());
            if is_over || !self.spin.goes_on(polling) {
                break;
            }
            std::hint::spin_loop();
        }
        self.stop_driving(stream);
        0
    }

    /// Drives the device for all streams of the process.
    pub(super) fn drive(&self, stream: &Stream) {
        match self.device_wait(stream) {
            Some(device) => device.drive(),
            None => stream.drive(),
        }
    }

    /// Before a sleep: what arrives from now on wakes this set's waiters.
    pub(super) fn stop_driving(&self, stream: &Stream) {
        match self.device_wait(stream) {
            Some(device) if device.rest() => {}
            Some(_) => {
                // More has arrived: the sleep ends at once, and the next collection drives again.
                self.wake();
            }
            None => stream.stop_driving(),
        }
    }

    /// The wait for the device, unless another set or stream has it.
    fn device_wait(&self, stream: &Stream) -> Option<&dyn DeviceWait> {
        if let Some(device) = self.device.get() {
            return Some(&**device);
        }
        let device = stream.wait_for_device()?;
        self.mark_device(device.as_fd()).ok()?;
        Some(&**self.device.get_or_init(|| device))
    }
}
