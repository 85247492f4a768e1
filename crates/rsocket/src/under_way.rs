//! Counts posted work that has not completed.

use crate::post::Work;

#[derive(Debug, Default)]
pub(crate) struct UnderWay {
    all: u32,
    /// Control messages.
    control: u16,
    /// Posts with data of the program. Those that fail are counted for ever.
    data: u32,
}

impl UnderWay {
    pub(crate) fn post(&mut self) {
        self.all += 1;
    }

    /// This many posts carry data of the program.
    pub(crate) fn note_data(&mut self, posts: u16) {
        self.data += u32::from(posts);
    }

    pub(crate) fn note_control(&mut self) {
        self.control += 1;
    }

    /// Work has completed, or failed.
    pub(crate) fn complete(&mut self, work: Option<Work>, is_success: bool) {
        self.all = self.all.saturating_sub(1);
        match work {
            Some(Work::Data(_) | Work::DataMessage) if is_success => {
                self.data = self.data.saturating_sub(1);
            }
            Some(Work::Control | Work::Disconnect) => {
                self.control = self.control.saturating_sub(1);
            }
            _ => {}
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all == 0
    }

    pub(crate) fn has_data(&self) -> bool {
        self.data > 0
    }

    pub(crate) fn control(&self) -> u16 {
        self.control
    }
}
