//! Page-in ahead: asks the kernel for the pages of coming micro-steps, so that a shuffled cold read keeps the disk busy.
//!
//! A hint costs a system call a row even when every page is in memory, so in [`PageIn::Auto`] a worker hints only
//! while its micro-steps cause reads from disk. That is what `getrusage` counts for the thread: blocks it submitted for
//! reading (by page fault or by an earlier hint) and faults that had to wait.

use ceteris_samplers::{Epoch, Place, SampleId};

use super::options::PageIn;
use crate::source::Source;

/// Rows without a disk read after which a worker stops to hint. Hints for rows in memory cost more than copying them, so a
/// run of a warm dataset should be rid of them soon; one read from disk brings them back.
const QUIET_ROWS: usize = 128;

/// Disk reads of the calling thread so far: 512-byte blocks submitted, and major faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DiskReads(i64, i64);

impl DiskReads {
    pub(crate) fn now() -> DiskReads {
        // SAFETY: `rusage` is plain data for which zeros are valid, and outlives the call that fills it.
        unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
            DiskReads(usage.ru_inblock, usage.ru_majflt)
        }
    }
}

/// Decides when to hint; one per worker.
#[derive(Debug)]
pub(crate) struct Ahead {
    mode: PageIn,
    /// Micro-steps since the last disk read, and how many are enough to stop.
    quiet: usize,
    enough: usize,
    ids: Vec<SampleId>,
}

impl Ahead {
    /// `rows` is the number of rows of a micro-step.
    pub(crate) fn new(mode: PageIn, rows: usize) -> Ahead {
        Ahead {
            mode,
            quiet: 0,
            enough: QUIET_ROWS.div_ceil(rows.max(1)),
            ids: Vec::with_capacity(rows),
        }
    }

    pub(crate) fn active(&self) -> bool {
        match self.mode {
            PageIn::Auto => self.quiet < self.enough,
            PageIn::Always => true,
            PageIn::Never => false,
        }
    }

    /// Hints at the rows of one micro-step of the given ranks.
    pub(crate) fn hint(
        &mut self,
        source: &dyn Source,
        index: &dyn Epoch,
        micro_step: u64,
        ranks: &[u64],
        slots: u64,
    ) {
        self.ids.clear();
        for &rank in ranks {
            self.ids.extend((0..slots).map_while(|slot| {
                index.sample(Place {
                    micro_step,
                    rank,
                    slot,
                })
            }));
        }
        source.will_need(&self.ids);
    }

    /// Learns whether the micro-step just assembled, hints included, read from disk.
    pub(crate) fn learn(&mut self, disk: bool) {
        self.quiet = if disk { 0 } else { self.quiet.saturating_add(1) };
    }
}
