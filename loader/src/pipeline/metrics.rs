//! What a loader measures: time waited, bytes, ring occupancy.

use std::time::Duration;

use serde::Serialize;

/// Measurements of one batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchMetrics {
    /// Time the consumer spent in the call that took this batch: the stall of its step.
    pub wait: Duration,
    /// Time its worker spent assembling it, reads included.
    pub assemble: Duration,
    /// Bytes of tokens copied from the source.
    pub bytes: u64,
    /// Batches ready in the ring when it was asked for, itself included.
    pub occupancy: usize,
    /// The worker caused reads from disk (pages that were not in the page cache).
    pub disk: bool,
}

/// Sums over the batches taken so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LoaderMetrics {
    /// Batches (micro-steps) taken.
    pub batches: u64,
    /// Tokens of valid rows.
    pub tokens: u64,
    /// Bytes of tokens copied from the source.
    pub bytes: u64,
    /// Seconds the consumer waited.
    pub wait_s: f64,
    /// Longest wait for one batch, in seconds.
    pub wait_max_s: f64,
    /// Seconds workers spent assembling.
    pub assemble_s: f64,
    /// Sum of ring occupancies; divide by `batches`.
    pub occupancy_sum: u64,
    /// Batches whose assembly read from disk.
    pub disk_batches: u64,
}

impl LoaderMetrics {
    pub(crate) fn add(&mut self, batch: &BatchMetrics) {
        self.batches += 1;
        self.tokens += batch.bytes / 4;
        self.bytes += batch.bytes;
        let wait = batch.wait.as_secs_f64();
        self.wait_s += wait;
        self.wait_max_s = self.wait_max_s.max(wait);
        self.assemble_s += batch.assemble.as_secs_f64();
        self.occupancy_sum += batch.occupancy as u64;
        self.disk_batches += u64::from(batch.disk);
    }

    /// Mean ring occupancy, 0 before the first batch.
    pub fn mean_occupancy(&self) -> f64 {
        if self.batches == 0 {
            0.0
        } else {
            self.occupancy_sum as f64 / self.batches as f64
        }
    }
}
