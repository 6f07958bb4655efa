//! A source in memory and an order of plain arithmetic: every token and every place can be worked out by eye, and both
//! can be told to misbehave.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ceteris_loader::source::{Source, SourceError};
use ceteris_samplers::{Epoch, Geometry, Order, OrderError, OrderSpec, Place, SampleId};

/// Something a source does at one sample, each time it is read.
#[derive(Clone, Debug)]
pub enum Trouble {
    Sleep(Duration),
    Panic,
    Fail,
}

/// Sample `i` holds `len(i)` tokens `i·1000 + j`.
#[derive(Debug, Default)]
pub struct ToySource {
    pub num_samples: u64,
    pub seq_length: usize,
    /// Lengths other than `seq_length`.
    pub lens: HashMap<SampleId, usize>,
    pub trouble: HashMap<SampleId, Trouble>,
    /// Reads so far, and the first few ids read.
    pub reads: AtomicU64,
    pub first_reads: Mutex<Vec<SampleId>>,
    pub hinted: AtomicUsize,
    /// Documents start at multiples of this within a row.
    pub document_length: Option<usize>,
    /// Samples below this are of part 0.
    pub parts_at: Option<u64>,
    pub changed: std::sync::atomic::AtomicBool,
}

impl ToySource {
    pub fn new(num_samples: u64, seq_length: usize) -> ToySource {
        ToySource {
            num_samples,
            seq_length,
            ..ToySource::default()
        }
    }

    fn len(&self, id: SampleId) -> usize {
        self.lens.get(&id).copied().unwrap_or(self.seq_length)
    }
}

pub fn token(id: SampleId, j: usize) -> i32 {
    (id * 1000 + j as u64) as i32
}

impl Source for ToySource {
    fn num_samples(&self) -> u64 {
        self.num_samples
    }

    fn sample_len(&self, id: SampleId) -> Result<usize, SourceError> {
        Ok(self.len(id))
    }

    fn read(&self, id: SampleId, out: &mut [i32]) -> Result<usize, SourceError> {
        if id >= self.num_samples {
            return Err(SourceError::OutOfRange {
                id,
                num_samples: self.num_samples,
            });
        }
        if self.reads.fetch_add(1, Ordering::Relaxed) < 64 {
            self.first_reads.lock().unwrap().push(id);
        }
        match self.trouble.get(&id) {
            Some(Trouble::Sleep(time)) => std::thread::sleep(*time),
            Some(Trouble::Panic) => panic!("toy source panics at sample {id}"),
            Some(Trouble::Fail) => {
                return Err(SourceError::io(
                    "toy.arrow",
                    "read",
                    std::io::Error::other("made to fail"),
                ));
            }
            None => {}
        }
        let n = self.len(id).min(out.len());
        for (j, slot) in out[..n].iter_mut().enumerate() {
            *slot = token(id, j);
        }
        Ok(n)
    }

    fn will_need(&self, ids: &[SampleId]) {
        self.hinted.fetch_add(ids.len(), Ordering::Relaxed);
    }

    fn file_of(&self, id: SampleId) -> Option<PathBuf> {
        Some(PathBuf::from(format!("toy-{}.arrow", id / 1000)))
    }

    fn files(&self) -> Vec<PathBuf> {
        vec![PathBuf::from("/data/toy-0.arrow")]
    }

    fn part_names(&self) -> Vec<String> {
        match self.parts_at {
            Some(_) => vec!["low".to_owned(), "high".to_owned()],
            None => Vec::new(),
        }
    }

    fn part_of(&self, id: SampleId) -> usize {
        usize::from(self.parts_at.is_some_and(|at| id >= at))
    }

    fn document_starts(&self, _id: SampleId, starts: &mut Vec<usize>) -> Result<(), SourceError> {
        if let Some(length) = self.document_length {
            starts.extend((0..self.seq_length).step_by(length));
        }
        Ok(())
    }

    fn check_unchanged(&self) -> Result<(), SourceError> {
        if self.changed.load(Ordering::Relaxed) {
            return Err(SourceError::Changed {
                path: "toy-0.arrow".into(),
                problem: "it is shorter".to_owned(),
            });
        }
        Ok(())
    }
}

/// Blocked deal over `(a·i + 7·epoch) mod n`, a coprime to n: every epoch is another permutation. The tail is ragged.
pub struct ToyOrder {
    pub num_samples: u64,
    pub geometry: Geometry,
    pub spec: OrderSpec,
    pub builds: Arc<AtomicUsize>,
    pub build_time: Duration,
    pub fail_epoch: Option<u64>,
}

impl ToyOrder {
    pub fn new(num_samples: u64, world_size: u64, micro_batch_size: u64, accumulation: u64) -> ToyOrder {
        ToyOrder {
            num_samples,
            geometry: Geometry {
                world_size,
                micro_batch_size,
                gradient_accumulation_steps: accumulation,
            },
            spec: OrderSpec::from_options("sequential", []).unwrap(),
            builds: Arc::default(),
            build_time: Duration::ZERO,
            fail_epoch: None,
        }
    }
}

impl fmt::Debug for ToyOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ToyOrder({}, {:?})", self.num_samples, self.geometry)
    }
}

/// Entry `k` of an epoch's permutation.
pub fn entry(num_samples: u64, epoch: u64, k: u64) -> u64 {
    (stride(num_samples) * k + 7 * epoch) % num_samples
}

/// The first number above n/3 that is coprime to n.
fn stride(num_samples: u64) -> u64 {
    fn gcd(a: u64, b: u64) -> u64 {
        if b == 0 { a } else { gcd(b, a % b) }
    }
    (num_samples / 3 + 1..)
        .find(|&a| gcd(a, num_samples) == 1)
        .unwrap()
}

#[derive(Debug)]
struct ToyEpoch {
    epoch: u64,
    geometry: Geometry,
    entries: Vec<u32>,
}

impl Order for ToyOrder {
    fn spec(&self) -> &OrderSpec {
        &self.spec
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn num_samples(&self) -> u64 {
        self.num_samples
    }

    fn micro_steps_per_epoch(&self) -> u64 {
        self.num_samples.div_ceil(self.geometry.samples_per_micro_step())
    }

    fn steps_per_epoch(&self) -> u64 {
        self.micro_steps_per_epoch()
            .div_ceil(self.geometry.gradient_accumulation_steps)
    }

    fn num_padded(&self) -> u64 {
        0
    }

    fn num_dropped(&self) -> u64 {
        0
    }

    fn epoch(&self, epoch: u64) -> Result<Arc<dyn Epoch>, OrderError> {
        self.builds.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(self.build_time);
        assert_ne!(self.fail_epoch, Some(epoch), "toy order panics at epoch {epoch}");
        let entries = (0..self.num_samples)
            .map(|k| entry(self.num_samples, epoch, k) as u32)
            .collect();
        Ok(Arc::new(ToyEpoch {
            epoch,
            geometry: self.geometry,
            entries,
        }))
    }
}

impl Epoch for ToyEpoch {
    fn epoch(&self) -> u64 {
        self.epoch
    }

    fn micro_steps(&self) -> u64 {
        (self.entries.len() as u64).div_ceil(self.geometry.samples_per_micro_step())
    }

    fn steps(&self) -> u64 {
        self.micro_steps()
            .div_ceil(self.geometry.gradient_accumulation_steps)
    }

    fn step_of(&self, micro_step: u64) -> u64 {
        micro_step / self.geometry.gradient_accumulation_steps
    }

    fn deal_index(&self, place: Place) -> Option<u64> {
        let per_step = self.geometry.samples_per_micro_step();
        let k = place.micro_step * per_step + place.rank * self.geometry.micro_batch_size + place.slot;
        (k < self.entries.len() as u64).then_some(k)
    }

    fn place_of(&self, k: u64) -> Option<Place> {
        let per_step = self.geometry.samples_per_micro_step();
        let (micro_step, within) = (k / per_step, k % per_step);
        let b = self.geometry.micro_batch_size;
        (k < self.entries.len() as u64).then_some(Place {
            micro_step,
            rank: within / b,
            slot: within % b,
        })
    }

    fn position(&self, place: Place) -> Option<u64> {
        self.sample(place).map(|id| id + 1_000_000)
    }

    fn sample(&self, place: Place) -> Option<SampleId> {
        self.deal_index(place)
            .map(|k| u64::from(self.entries[k as usize]))
    }

    fn is_padding(&self, _place: Place) -> bool {
        false
    }

    fn padded(&self) -> Vec<u64> {
        Vec::new()
    }

    fn dropped(&self) -> Vec<u64> {
        Vec::new()
    }
}
