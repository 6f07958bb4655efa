//! A soak: runs of random shape with random delays in reads and in the consumer, batches held and given back in random
//! order, loaders dropped at random points and resumed with other workers, prefetch and layouts. Every sample of every
//! epoch must come exactly once, as the order says.
//!
//!     CETERIS_SOAK_SECONDS=600 cargo test --release -p ceteris-tests --test pipeline -- --ignored soak --nocapture

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ceteris_loader::pipeline::{Batch, Loader, LoaderError, LoaderOptions, LoaderState, StateError};
use ceteris_samplers::rng::torch::TorchGenerator;

use crate::stream::quiet;
use crate::toy::{ToyOrder, ToySource, Trouble, entry, token};

/// Random numbers, by a seed that failures print.
struct Dice(TorchGenerator);

impl Dice {
    /// A number of `0..n`.
    fn below(&mut self, n: u64) -> u64 {
        u64::from(self.0.next_u32()) % n
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

#[derive(Debug, Default)]
struct Tally {
    runs: u64,
    loaders: u64,
    samples: u64,
    differences: u64,
}

/// The runs of one dataset, order and global batch.
struct Run {
    n: u64,
    seq_length: usize,
    epochs: u64,
    layouts: Vec<(u64, u64, u64)>,
    seen: HashSet<(u64, u64)>,
}

impl Run {
    fn random(dice: &mut Dice) -> Run {
        let (world, micro, accumulation) = (1 + dice.below(4), 1 + dice.below(4), 1 + dice.below(3));
        let batch = world * micro * accumulation;
        let mut layouts = vec![(world, micro, accumulation)];
        for w in (1..=batch).filter(|w| batch.is_multiple_of(*w)) {
            layouts.extend(
                (1..=batch / w)
                    .filter(|b| (batch / w).is_multiple_of(*b))
                    .map(|b| (w, b, batch / w / b)),
            );
        }
        Run {
            n: 1 + dice.below(400),
            seq_length: 1 + dice.below(32) as usize,
            epochs: 1 + dice.below(4),
            layouts,
            seen: HashSet::new(),
        }
    }

    /// A source some of whose reads take a while, other ones each time.
    fn source(&self, dice: &mut Dice) -> Arc<ToySource> {
        let mut source = ToySource::new(self.n, self.seq_length);
        for _ in 0..dice.below(self.n.min(20)) {
            let time = Duration::from_micros(dice.below(3000));
            source.trouble.insert(dice.below(self.n), Trouble::Sleep(time));
        }
        Arc::new(source)
    }

    fn options(&self, dice: &mut Dice) -> LoaderOptions {
        quiet(LoaderOptions {
            workers: dice.one_of(&[0, 1, 2, 3, 8, 16]),
            prefetch: dice.one_of(&[1, 2, 3, 7, 16]),
            epochs: Some(self.epochs),
            ..LoaderOptions::new(self.seq_length)
        })
    }

    fn order(&self, (world, micro, accumulation): (u64, u64, u64)) -> Arc<ToyOrder> {
        Arc::new(ToyOrder::new(self.n, world, micro, accumulation))
    }

    /// Checks what a batch delivers, and counts samples that are wrong, torn or repeated.
    fn check(&mut self, batch: &Batch, tally: &mut Tally) {
        let epoch = batch.step().epoch;
        for m in batch.micro_batches() {
            for slot in 0..m.valid_rows {
                let (k, row) = (m.deal_indices[slot], m.rows[slot]);
                let tokens = m
                    .sample(slot)
                    .iter()
                    .enumerate()
                    .all(|(j, &t)| t == token(row, j));
                let right =
                    tokens && m.lens[slot] as usize == self.seq_length && row == entry(self.n, epoch, k);
                let new = self.seen.insert((epoch, k));
                tally.differences += u64::from(!right || !new);
                tally.samples += 1;
            }
        }
    }

    /// Takes batches until a random point, holding some back; the state there, `None` at the end.
    fn consume(
        &mut self,
        mut loader: Loader,
        room: usize,
        dice: &mut Dice,
        tally: &mut Tally,
    ) -> Option<LoaderState> {
        tally.loaders += 1;
        let mut held: Vec<Batch> = Vec::new();
        let stop_after = dice.below(1 + self.n * self.epochs);
        for _ in 0..stop_after {
            let Some(batch) = loader.next_batch().unwrap() else {
                held.iter().for_each(|batch| self.check(batch, tally));
                return None;
            };
            held.push(batch);
            if dice.below(20) == 0 {
                std::thread::sleep(Duration::from_micros(dice.below(2000)));
            }
            while held.len() > room || (!held.is_empty() && dice.below(2) == 0) {
                let at = dice.below(held.len() as u64) as usize;
                let batch = held.swap_remove(at);
                // Looked at only now: its buffer must not have been reused meanwhile.
                self.check(&batch, tally);
            }
        }
        held.iter().for_each(|batch| self.check(batch, tally));
        let text = serde_json::to_string(&loader.state().unwrap()).unwrap();
        Some(serde_json::from_str(&text).unwrap())
    }

    fn go(&mut self, dice: &mut Dice, tally: &mut Tally) {
        tally.runs += 1;
        let options = self.options(dice);
        let room = options.prefetch - 1;
        let first = Loader::new(self.source(dice), self.order(self.layouts[0]), options).unwrap();
        let mut layout = self.layouts[0];
        let mut state = self.consume(first, room, dice, tally);
        while let Some(at) = state {
            let options = self.options(dice);
            let room = options.prefetch - 1;
            let wanted = dice.one_of(&self.layouts);
            let resumed = match Loader::resume(self.source(dice), self.order(wanted), options.clone(), &at) {
                Err(LoaderError::State(StateError::Unaligned { .. })) => {
                    Loader::resume(self.source(dice), self.order(layout), options, &at).unwrap()
                }
                other => {
                    layout = wanted;
                    other.unwrap()
                }
            };
            state = self.consume(resumed, room, dice, tally);
        }
        let missing = self.n * self.epochs - self.seen.len() as u64;
        tally.differences += missing;
    }
}

#[test]
#[ignore = "runs for CETERIS_SOAK_SECONDS, 600 by default"]
fn soak() {
    let seconds = std::env::var("CETERIS_SOAK_SECONDS")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(600);
    let seed = std::env::var("CETERIS_SOAK_SEED")
        .ok()
        .and_then(|s| s.parse().ok());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    println!(
        "seed {}, {seconds} s",
        soak_for(Duration::from_secs(seconds), seed.unwrap_or(now))
    );
}

/// A second of it in every test run.
#[test]
fn a_short_soak_shows_no_difference() {
    soak_for(Duration::from_secs(1), 1);
}

fn soak_for(time: Duration, seed: u64) -> u64 {
    let mut dice = Dice(TorchGenerator::new(seed));
    let mut tally = Tally::default();
    let start = Instant::now();
    while start.elapsed() < time {
        Run::random(&mut dice).go(&mut dice, &mut tally);
        assert_eq!(tally.differences, 0, "seed {seed}: {tally:?}");
    }
    println!("{tally:?}");
    seed
}
