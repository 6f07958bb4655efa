//! Who reads what of a stream: its division among ranks and workers, and the places that gives.

use crate::batch_table::{Batch, BatchTable, batches};
use crate::deal::{Deal, Law, Tail};
use crate::iterable::{Source, Stream};
use crate::permute::Permutation;
use crate::place::{Geometry, Place};
use crate::spec::OrderError;

/// How a stream is read.
#[derive(Debug)]
pub(super) struct Reading {
    /// The stream before epoch, node and worker.
    pub source: Source,
    pub geometry: Geometry,
    /// Every rank reads for itself; otherwise one stream is dealt batch by batch.
    pub by_node: bool,
    pub num_workers: u64,
    pub drop_last: bool,
}

/// Places of an epoch.
#[derive(Clone, Debug)]
pub(super) enum Layout {
    /// One stream, dealt by a law.
    Dealt { deal: Deal, rows: u64 },
    /// A stream for every rank and worker.
    Batched { table: BatchTable, rows: u64 },
}

impl Layout {
    pub fn num_positions(&self) -> u64 {
        match self {
            Layout::Dealt { rows, .. } | Layout::Batched { rows, .. } => *rows,
        }
    }

    pub fn end(&self) -> u64 {
        match self {
            Layout::Dealt { deal, .. } => deal.end(),
            Layout::Batched { table, .. } => table.end(),
        }
    }

    pub fn num_padded(&self) -> u64 {
        self.end().saturating_sub(self.num_positions())
    }

    pub fn num_dropped(&self) -> u64 {
        self.num_positions().saturating_sub(self.end())
    }

    pub fn micro_steps(&self) -> u64 {
        match self {
            Layout::Dealt { deal, .. } => deal.micro_steps(),
            Layout::Batched { table, .. } => table.micro_steps(),
        }
    }

    pub fn index(&self, place: Place) -> Option<u64> {
        match self {
            Layout::Dealt { deal, .. } => deal.index(place),
            Layout::Batched { table, .. } => table.index(place),
        }
    }

    pub fn place(&self, k: u64) -> Option<Place> {
        match self {
            Layout::Dealt { deal, .. } => deal.place(k),
            Layout::Batched { table, .. } => table.place(k),
        }
    }

    /// The entry of the epoch's rows that deal index `k` consumes.
    pub fn entry(&self, k: u64) -> u64 {
        match self {
            Layout::Dealt { deal, .. } => deal.entry(k),
            Layout::Batched { .. } => k,
        }
    }
}

impl Reading {
    /// One stream that all ranks read and each takes every `world_size`-th row of.
    fn by_rows(&self) -> bool {
        self.by_node
            && (self.geometry.world_size == 1 || !self.source.splits_by_shards(self.geometry.world_size))
    }

    /// A law says it all; otherwise batches are listed.
    fn law(&self) -> Option<(Law, Tail)> {
        match (self.by_node, self.drop_last) {
            (false, false) => Some((Law::Blocked, Tail::Pad)),
            (false, true) => Some((Law::Blocked, Tail::Drop)),
            (true, false) if self.by_rows() && self.num_workers == 0 => Some((Law::Strided, Tail::Ragged)),
            (true, _) => None,
        }
    }

    /// The split does not depend on the number of ranks.
    pub fn is_elastic(&self) -> bool {
        // Whole shards go to the nodes where their number divides, so another world size reads another stream.
        self.law().is_some() && (!self.by_node || self.source.num_shards() == 1)
    }

    /// An epoch may have other lengths than the one before: the mix draws anew, or shards of unequal length are
    /// divided after they were shuffled.
    pub fn epochs_differ_in_length(&self) -> bool {
        let divided = (self.by_node && !self.by_rows()) || self.num_workers > 1;
        self.source.fixed_len().is_none() || (divided && !self.source.has_equal_shards())
    }

    /// The streams of each rank, `streams[rank][worker]`: what to read, and which of its rows the rank takes.
    fn streams(&self, pass: u64) -> Result<Vec<Vec<Source>>, OrderError> {
        let source = self.source.for_epoch(pass)?;
        let world_size = self.geometry.world_size;
        (0..world_size)
            .map(|rank| {
                let node = if world_size == 1 {
                    source.clone()
                } else {
                    source.for_node(rank, world_size)
                };
                if self.num_workers == 0 {
                    return Ok(vec![node]);
                }
                let workers = (0..self.num_workers).map(|w| node.for_worker(w, self.num_workers));
                Ok(workers.filter_map(Result::transpose).collect::<Result<_, _>>()?)
            })
            .collect()
    }

    /// Places of the epoch that `set_epoch(pass)` gives. Reads the streams only where their lengths depend on draws.
    pub fn layout(&self, pass: u64) -> Result<Layout, OrderError> {
        if let Some((law, tail)) = self.law() {
            let rows = length(&self.source.for_epoch(pass)?)?;
            let deal = Deal::new(law, tail, self.geometry, rows).ok_or_else(|| {
                OrderError::TooLarge(format!("an epoch of {rows} samples cannot be padded"))
            })?;
            return Ok(Layout::Dealt { deal, rows });
        }
        let mut rows = 0;
        let mut ranks: Vec<Vec<Batch>> = Vec::new();
        for streams in self.streams(pass)? {
            let lens = streams.iter().map(length).collect::<Result<Vec<u64>, _>>()?;
            rows += lens.iter().sum::<u64>();
            ranks.push(batches(&lens, self.geometry.micro_batch_size, self.drop_last));
        }
        Ok(Layout::Batched {
            table: BatchTable::new(self.geometry, &ranks),
            rows,
        })
    }

    /// Rows of an epoch in the sequence of deal indices, then those that no place consumes.
    pub fn rows(&self, pass: u64, layout: &Layout) -> Result<Permutation, OrderError> {
        let capacity = layout.num_positions();
        if matches!(layout, Layout::Dealt { .. }) {
            return list(&self.source.for_epoch(pass)?, capacity);
        }
        let mut streams: Vec<Vec<Permutation>> = Vec::new();
        for sources in self.streams(pass)? {
            streams.push(
                sources
                    .iter()
                    .map(|source| list(source, 0))
                    .collect::<Result<_, _>>()?,
            );
        }
        let ranks: Vec<Vec<Batch>> = streams
            .iter()
            .map(|streams| {
                let lens: Vec<u64> = streams.iter().map(Permutation::len).collect();
                batches(&lens, self.geometry.micro_batch_size, self.drop_last)
            })
            .collect();
        let mut rows = Vec::with_capacity(usize::try_from(capacity).unwrap_or(0));
        for micro_step in 0..ranks.iter().map(Vec::len).max().unwrap_or(0) {
            for (streams, batches) in streams.iter().zip(&ranks) {
                let Some(batch) = batches.get(micro_step) else {
                    continue;
                };
                let run = batch.start..batch.start + batch.len;
                rows.extend(run.filter_map(|i| streams[batch.stream].get(i)));
            }
        }
        for (streams, batches) in streams.iter().zip(&ranks) {
            for (which, stream) in streams.iter().enumerate() {
                let used = batches
                    .iter()
                    .filter(|batch| batch.stream == which)
                    .map(|batch| batch.len)
                    .sum();
                rows.extend((used..stream.len()).filter_map(|i| stream.get(i)));
            }
        }
        Ok(Permutation::from_indices(rows))
    }
}

/// Number of rows of a stream, read through where it depends on draws.
fn length(source: &Source) -> Result<u64, OrderError> {
    match source.fixed_len() {
        Some(len) => Ok(len),
        None => {
            let mut len = 0;
            Stream::new(source)?.for_each(|_| len += 1)?;
            Ok(len)
        }
    }
}

/// All rows of a stream, stored as narrow as they fit.
fn list(source: &Source, capacity: u64) -> Result<Permutation, OrderError> {
    let stream = Stream::new(source)?;
    if source.max_row() <= u64::from(u32::MAX) {
        let mut rows: Vec<u32> = crate::permute::allocate(capacity)?;
        stream.for_each(|row| rows.push(row as u32))?;
        Ok(Permutation::Narrow(rows))
    } else {
        let mut rows: Vec<u64> = crate::permute::allocate(capacity)?;
        stream.for_each(|row| rows.push(row))?;
        Ok(Permutation::Wide(rows))
    }
}
