//! The stream equals a brute-force walk of the order, whatever the runtime's settings.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ceteris_loader::pipeline::{BatchBuffer, Loader, LoaderError, LoaderOptions, NoticeSink, PageIn, Ranks};
use ceteris_samplers::{Order, Place};

use crate::toy::{ToyOrder, ToySource, Trouble, entry, token};

pub fn quiet(options: LoaderOptions) -> LoaderOptions {
    LoaderOptions {
        notices: NoticeSink::new(|_| {}),
        ..options
    }
}

/// What one batch delivered: counters, then per rank the rows and their tokens.
pub type Delivered = (u64, u64, Vec<(u64, Vec<u64>, Vec<i32>)>);

pub fn delivered(batch: &BatchBuffer) -> Delivered {
    let ranks = batch
        .micro_batches()
        .map(|m| {
            (
                m.rank,
                m.rows[..m.valid_rows].to_vec(),
                m.tokens[..m.valid_rows * m.seq_length].to_vec(),
            )
        })
        .collect();
    (batch.step().epoch, batch.step().micro_step, ranks)
}

pub fn run(loader: Loader) -> Vec<Delivered> {
    loader.map(|batch| delivered(&batch.unwrap())).collect()
}

/// The same by the order's own look-ups and the source's formula.
fn brute_force(order: &ToyOrder, epochs: u64, seq_length: usize) -> Vec<Delivered> {
    let g = order.geometry;
    let mut all = Vec::new();
    for epoch in 0..epochs {
        let index = order.epoch(epoch).unwrap();
        for micro_step in 0..index.micro_steps() {
            let ranks = (0..g.world_size).map(|rank| {
                let places = (0..g.micro_batch_size).map(|slot| Place {
                    micro_step,
                    rank,
                    slot,
                });
                let rows: Vec<u64> = places.filter_map(|place| index.sample(place)).collect();
                let tokens = rows
                    .iter()
                    .flat_map(|&id| (0..seq_length).map(move |j| token(id, j)))
                    .collect();
                (rank, rows, tokens)
            });
            all.push((epoch, micro_step, ranks.collect()));
        }
    }
    all
}

#[test]
fn equals_brute_force_at_any_workers_and_prefetch() {
    let expected = brute_force(&ToyOrder::new(101, 3, 4, 2), 3, 5);
    assert_eq!(expected.len(), 27);
    for workers in [0, 1, 3, 8, 16] {
        for prefetch in [1, 2, 5, 16] {
            let options = LoaderOptions {
                workers,
                prefetch,
                epochs: Some(3),
                ..LoaderOptions::new(5)
            };
            let order = Arc::new(ToyOrder::new(101, 3, 4, 2));
            let loader = Loader::new(Arc::new(ToySource::new(101, 5)), order, options).unwrap();
            assert!(run(loader) == expected, "workers {workers}, prefetch {prefetch}");
        }
    }
}

#[test]
fn a_subset_of_ranks_is_that_part_of_all_ranks() {
    let all = brute_force(&ToyOrder::new(50, 4, 3, 1), 2, 4);
    for ranks in [vec![2], vec![3, 0]] {
        let options = LoaderOptions {
            ranks: Ranks::Some(ranks.clone()),
            epochs: Some(2),
            workers: 3,
            ..LoaderOptions::new(4)
        };
        let order = Arc::new(ToyOrder::new(50, 4, 3, 1));
        let got = run(Loader::new(Arc::new(ToySource::new(50, 4)), order, options).unwrap());
        let expected: Vec<Delivered> = all
            .iter()
            .map(|(epoch, m, parts)| {
                (
                    *epoch,
                    *m,
                    ranks.iter().map(|&r| parts[r as usize].clone()).collect(),
                )
            })
            .collect();
        assert_eq!(got, expected, "{ranks:?}");
    }
}

#[test]
fn ranks_outside_the_world_or_named_twice_are_refused() {
    for (ranks, message) in [
        (vec![4], "out of range"),
        (vec![1, 1], "named twice"),
        (vec![], "no rank"),
    ] {
        let options = LoaderOptions {
            ranks: Ranks::Some(ranks),
            ..LoaderOptions::new(4)
        };
        let source = Arc::new(ToySource::new(50, 4));
        let error = Loader::new(source, Arc::new(ToyOrder::new(50, 4, 3, 1)), options).unwrap_err();
        assert!(error.to_string().contains(message), "{error}");
    }
}

/// 10 samples over 2 ranks of 3: the second micro-step has 3 rows on rank 0 and 1 on rank 1.
#[test]
fn ragged_last_batches_keep_their_shape() {
    let options = LoaderOptions {
        epochs: Some(1),
        pad_token: -7,
        fingerprints: true,
        positions: true,
        ..LoaderOptions::new(4)
    };
    let order = Arc::new(ToyOrder::new(10, 2, 3, 4));
    let mut loader = Loader::new(Arc::new(ToySource::new(10, 4)), order, options).unwrap();
    drop(loader.next_batch().unwrap().unwrap());
    let batch = loader.next_batch().unwrap().unwrap();
    assert_eq!(batch.tokens().len(), 2 * 3 * 4);
    let ranks: Vec<_> = batch.micro_batches().collect();
    assert_eq!((ranks[0].valid_rows, ranks[1].valid_rows), (3, 1));
    let id = entry(10, 0, 9);
    assert_eq!(ranks[1].rows[0], id);
    assert_eq!(ranks[1].positions.unwrap()[0], id + 1_000_000);
    assert_eq!(ranks[1].deal_indices[0], 9);
    assert_eq!(
        ranks[1].sample(0),
        [token(id, 0), token(id, 1), token(id, 2), token(id, 3)]
    );
    assert_eq!(
        ranks[1].tokens[4..],
        [-7; 8],
        "rows past the end hold the pad token"
    );
    assert_eq!(ranks[1].lens, [4, 0, 0]);
    let fingerprint = ceteris_loader::fingerprint::Fingerprint::of_sample(ranks[1].sample(0));
    assert_eq!(ranks[1].fingerprints.unwrap()[0], fingerprint);
    assert_eq!(loader.state().unwrap().consumed_samples, 10);
}

#[test]
fn short_samples_are_padded_and_say_so() {
    let mut source = ToySource::new(8, 6);
    source.lens.insert(3, 2);
    source.lens.insert(5, 0);
    let options = LoaderOptions {
        epochs: Some(1),
        pad_token: 9,
        ..LoaderOptions::new(6)
    };
    let loader = Loader::new(Arc::new(source), Arc::new(ToyOrder::new(8, 1, 8, 1)), options).unwrap();
    let batch = loader.map(Result::unwrap).next().unwrap();
    let m = batch.rank(0).unwrap();
    for (slot, &id) in m.rows.iter().enumerate() {
        let len = match id {
            3 => 2,
            5 => 0,
            _ => 6,
        };
        let row = &m.tokens[slot * 6..slot * 6 + 6];
        assert_eq!(m.lens[slot], len as u32);
        assert!(
            (0..6).all(|j| row[j] == if j < len { token(id, j) } else { 9 }),
            "sample {id}: {row:?}"
        );
    }
    assert!(batch.rank(1).is_none());
}

/// 13 micro-steps at accumulation 3 are 5 steps, the last one of a single micro-step.
#[test]
fn accumulation_closes_at_the_end_of_an_epoch() {
    let options = LoaderOptions {
        epochs: Some(2),
        ..LoaderOptions::new(2)
    };
    let loader = Loader::new(
        Arc::new(ToySource::new(13, 2)),
        Arc::new(ToyOrder::new(13, 1, 1, 3)),
        options,
    )
    .unwrap();
    let steps: Vec<_> = loader.map(|batch| batch.unwrap().step()).collect();
    assert_eq!(steps.len(), 26);
    for (i, step) in steps.iter().enumerate() {
        let (epoch, m) = (i as u64 / 13, i as u64 % 13);
        assert_eq!((step.epoch, step.micro_step, step.step), (epoch, m, m / 3));
        assert_eq!(
            (step.global_micro_step, step.global_step),
            (i as u64, epoch * 5 + m / 3)
        );
        assert_eq!(step.step_start, m / 3 * 3);
        assert_eq!(step.micro_steps_in_step, if m == 12 { 1 } else { 3 });
        assert_eq!(step.closes_step, m % 3 == 2 || m == 12);
        assert_eq!(step.closes_epoch, m == 12);
    }
}

#[test]
fn a_start_within_an_epoch_counts_as_a_run_from_the_beginning() {
    let options = LoaderOptions {
        epochs: Some(3),
        start: (1, 4),
        max_micro_steps: Some(10),
        ..LoaderOptions::new(2)
    };
    let order = Arc::new(ToyOrder::new(13, 1, 2, 3));
    let mut loader = Loader::new(Arc::new(ToySource::new(13, 2)), order, options).unwrap();
    assert_eq!(loader.state().unwrap().consumed_samples, 13 + 8);
    let first = loader.next_batch().unwrap().unwrap().step();
    assert_eq!(
        (
            first.epoch,
            first.micro_step,
            first.global_micro_step,
            first.global_step
        ),
        (1, 4, 11, 4)
    );
    assert_eq!(loader.by_ref().count(), 9);
    assert_eq!(loader.state().unwrap().global_micro_step, 21);
    assert!(loader.next_batch().unwrap().is_none(), "and stays at its end");
}

#[test]
fn batches_may_be_held_and_dropped_in_any_order() {
    let expected = brute_force(&ToyOrder::new(64, 1, 2, 1), 1, 3);
    for workers in [0, 2, 5] {
        let options = LoaderOptions {
            workers,
            prefetch: 4,
            epochs: Some(1),
            ..LoaderOptions::new(3)
        };
        let order = Arc::new(ToyOrder::new(64, 1, 2, 1));
        let mut loader = Loader::new(Arc::new(ToySource::new(64, 3)), order, options).unwrap();
        let (mut held, mut got) = (Vec::new(), Vec::new());
        while let Some(batch) = loader.next_batch().unwrap() {
            got.push(delivered(&batch));
            held.push(batch);
            if held.len() == 4 {
                // Out of order on purpose.
                held.swap_remove(0);
                held.swap_remove(1);
            }
        }
        assert_eq!(got, expected, "workers {workers}");
    }
}

#[test]
fn a_consumer_that_holds_every_buffer_gets_an_error_and_can_go_on() {
    for workers in [0, 3] {
        let options = LoaderOptions {
            workers,
            prefetch: 2,
            epochs: Some(1),
            ..LoaderOptions::new(3)
        };
        let order = Arc::new(ToyOrder::new(64, 1, 2, 1));
        let mut loader = Loader::new(Arc::new(ToySource::new(64, 3)), order, options).unwrap();
        let mut held: Vec<_> = (0..3).map(|_| loader.next_batch().unwrap().unwrap()).collect();
        let error = loader.next_batch().unwrap_err();
        assert!(
            matches!(error, LoaderError::AllBuffersHeld { buffers: 3 }),
            "{error}"
        );
        held.remove(1);
        let next = loader.next_batch().unwrap().unwrap();
        assert_eq!(next.step().micro_step, 3);
    }
}

#[test]
fn batches_outlive_their_loader() {
    let options = LoaderOptions {
        workers: 2,
        ..LoaderOptions::new(3)
    };
    let order = Arc::new(ToyOrder::new(64, 1, 2, 1));
    let mut loader = Loader::new(Arc::new(ToySource::new(64, 3)), order, options).unwrap();
    let batch = loader.next_batch().unwrap().unwrap();
    drop(loader);
    assert_eq!(batch.tokens()[0], token(batch.rank(0).unwrap().rows[0], 0));
}

/// The next epoch's permutation is asked for while the current one is still being delivered, never after it.
#[test]
fn the_next_epoch_is_built_ahead_and_at_most_two_epochs_live() {
    let mut source = ToySource::new(100, 2);
    // Every sample takes a little: 100 micro-steps over two workers are 500 ms.
    source.trouble = (0..100)
        .map(|id| (id, Trouble::Sleep(Duration::from_millis(5))))
        .collect();
    let mut order = ToyOrder::new(100, 1, 1, 1);
    order.build_time = Duration::from_millis(200);
    let builds = Arc::clone(&order.builds);
    let options = LoaderOptions {
        workers: 2,
        prefetch: 4,
        epochs: Some(3),
        ..LoaderOptions::new(2)
    };
    let mut loader = Loader::new(Arc::new(source), Arc::new(order), options).unwrap();
    let mut count = 0;
    while let Some(batch) = loader.next_batch().unwrap() {
        let step = batch.step();
        if step.micro_step == 99 && step.epoch < 2 {
            let built = builds.load(Ordering::Relaxed) as u64;
            assert!(
                built >= step.epoch + 2,
                "epoch {} ends, {built} epochs were built",
                step.epoch
            );
        }
        assert!(loader.live_epochs() <= 2, "{} epochs alive", loader.live_epochs());
        count += 1;
    }
    assert_eq!((count, builds.load(Ordering::Relaxed)), (300, 3));
}

/// Epochs of one micro-step, many workers, few buffers: nothing waits for ever.
#[test]
fn tiny_epochs_do_not_block() {
    for (workers, prefetch) in [(16, 1), (16, 16), (1, 16), (0, 1)] {
        let options = LoaderOptions {
            workers,
            prefetch,
            epochs: Some(50),
            ..LoaderOptions::new(2)
        };
        let order = Arc::new(ToyOrder::new(3, 2, 2, 1));
        let got = run(Loader::new(Arc::new(ToySource::new(3, 2)), order, options).unwrap());
        assert!(
            got == brute_force(&ToyOrder::new(3, 2, 2, 1), 50, 2),
            "{workers} workers, prefetch {prefetch}"
        );
    }
}

#[test]
fn a_loader_can_be_dropped_at_any_point() {
    for taken in 0..6 {
        let options = LoaderOptions {
            workers: 4,
            prefetch: 3,
            ..LoaderOptions::new(2)
        };
        let order = Arc::new(ToyOrder::new(20, 2, 2, 1));
        let mut loader = Loader::new(Arc::new(ToySource::new(20, 2)), order, options).unwrap();
        for _ in 0..taken {
            loader.next_batch().unwrap().unwrap();
        }
        let start = Instant::now();
        drop(loader);
        assert!(
            start.elapsed() < Duration::from_millis(900),
            "threads did not end by themselves"
        );
    }
}

#[test]
fn sizes_that_do_not_fit_and_empty_datasets_are_refused() {
    let of = |n, order: ToyOrder| {
        Loader::new(
            Arc::new(ToySource::new(n, 2)),
            Arc::new(order),
            LoaderOptions::new(2),
        )
        .unwrap_err()
    };
    let error = of(7, ToyOrder::new(8, 1, 1, 1));
    assert!(
        matches!(error, LoaderError::SizeMismatch { order: 8, dataset: 7 }),
        "{error}"
    );
    let error = of(0, ToyOrder::new(0, 1, 1, 1));
    assert!(matches!(error, LoaderError::EmptyEpoch { .. }), "{error}");
    let order = || Arc::new(ToyOrder::new(8, 1, 1, 1));
    let bad = [
        (LoaderOptions::new(0), "seq_length"),
        (
            LoaderOptions {
                prefetch: 0,
                ..LoaderOptions::new(2)
            },
            "prefetch",
        ),
        (
            LoaderOptions {
                start: (0, 8),
                ..LoaderOptions::new(2)
            },
            "micro_step",
        ),
        (
            LoaderOptions {
                start: (u64::MAX, 0),
                ..LoaderOptions::new(2)
            },
            "epoch",
        ),
    ];
    for (options, name) in bad {
        let error = Loader::new(Arc::new(ToySource::new(8, 2)), order(), options).unwrap_err();
        assert!(error.to_string().starts_with(name), "{error}");
    }
}

#[test]
fn hints_go_out_while_asked_for_and_stop_on_a_warm_source() {
    let hinted = |page_in, micro_steps| {
        let source = Arc::new(ToySource::new(400, 2));
        let options = LoaderOptions {
            workers: 1,
            page_in,
            epochs: Some(1),
            ..LoaderOptions::new(2)
        };
        let order = Arc::new(ToyOrder::new(400, 1, 2, 1));
        let loader = Loader::new(source.clone(), order, quiet(options)).unwrap();
        assert_eq!(loader.count(), micro_steps);
        source.hinted.load(Ordering::Relaxed)
    };
    assert_eq!(hinted(PageIn::Never, 200), 0);
    // This micro-step and the next two, of two rows each, up to the end of the epoch.
    assert_eq!(hinted(PageIn::Always, 200), 2 * (3 * 200 - 3));
    let auto = hinted(PageIn::Auto, 200);
    assert!(
        auto > 0 && auto < 2 * 3 * 100,
        "a source that never touches the disk was hinted {auto} times"
    );
}

#[test]
fn metrics_add_up() {
    let options = LoaderOptions {
        workers: 2,
        epochs: Some(1),
        ..LoaderOptions::new(4)
    };
    let order = Arc::new(ToyOrder::new(30, 1, 4, 1));
    let mut loader = Loader::new(Arc::new(ToySource::new(30, 4)), order, options).unwrap();
    while let Some(batch) = loader.next_batch().unwrap() {
        let m = batch.metrics();
        assert_eq!(m.bytes, if batch.step().closes_epoch { 2 * 16 } else { 4 * 16 });
        assert!(m.occupancy <= 17 && m.assemble > Duration::ZERO);
    }
    let metrics = loader.metrics();
    assert_eq!((metrics.batches, metrics.tokens, metrics.bytes), (8, 120, 480));
    assert!(metrics.wait_max_s <= metrics.wait_s && metrics.mean_occupancy() <= 17.0);
}
