//! The runtime: workers, ranks and prefetch never show in the stream, and nothing hangs.

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ceteris_loader::fingerprint::{Fingerprint, RunFingerprint};
use ceteris_loader::pipeline::{Loader, LoaderOptions, Notice, NoticeSink, PageIn, measure};
use ceteris_loader::source::{HfSource, Source, SourceOptions};
use ceteris_samplers::permute::Permutation;
use ceteris_samplers::spec::OrderInput;
use ceteris_samplers::{Geometry, Order, OrderSpec};

use crate::toy::{ToySource, Trouble};

const T: usize = 16;

fn loader(spec: &str, source: ToySource, geometry: [u64; 3], options: LoaderOptions) -> Loader {
    let [world_size, micro_batch_size, gradient_accumulation_steps] = geometry;
    let spec: OrderSpec = serde_json::from_str(spec).unwrap();
    let geometry = Geometry {
        world_size,
        micro_batch_size,
        gradient_accumulation_steps,
    };
    let order = spec
        .build(&OrderInput::new(source.num_samples, geometry))
        .unwrap();
    Loader::new(Arc::new(source), order, options).unwrap()
}

/// Fingerprint of all optimizer steps a loader delivers, digests in deal order.
fn fingerprint(loader: Loader) -> (Fingerprint, u64) {
    let mut run = RunFingerprint::new();
    for batch in loader {
        let batch = batch.unwrap();
        let step = batch.step();
        for m in batch.micro_batches() {
            for slot in 0..m.valid_rows {
                run.push(
                    step.epoch,
                    step.step,
                    m.deal_indices[slot],
                    m.fingerprints.unwrap()[slot],
                );
            }
        }
    }
    run.close_step();
    (run.fingerprint(), run.steps())
}

/// The same global batch of 32 in every way it divides, 50 steps over two epochs of 25.
#[test]
fn v19_one_fingerprint_over_ranks_workers_and_prefetch() {
    for spec in [
        r#"{"name":"fla","seed":42}"#,
        r#"{"name":"hf-trainer","seed":42}"#,
    ] {
        let mut seen = None;
        for ranks in [1, 2, 4, 8] {
            for workers in [0, 1, 3, 8, 16] {
                for prefetch in [1, 16] {
                    let options = LoaderOptions {
                        workers,
                        prefetch,
                        fingerprints: true,
                        max_micro_steps: Some(50),
                        ..LoaderOptions::new(T)
                    };
                    let source = ToySource::new(25 * 32, T);
                    let (found, steps) = fingerprint(loader(spec, source, [ranks, 32 / ranks, 1], options));
                    assert_eq!(steps, 50);
                    assert_eq!(
                        *seen.get_or_insert(found),
                        found,
                        "{ranks} ranks, {workers} workers, {prefetch} ahead"
                    );
                }
            }
        }
        // Micro-steps may divide too: 32 = ranks × micro-batch × accumulation.
        for (ranks, accumulation) in [(1, 32), (2, 4), (4, 2), (8, 4)] {
            let micro = 32 / ranks / accumulation;
            let limit = |epochs_steps: u64| Some(epochs_steps * accumulation);
            let options = LoaderOptions {
                fingerprints: true,
                max_micro_steps: limit(50),
                ..LoaderOptions::new(T)
            };
            let whole = LoaderOptions {
                max_micro_steps: Some(50),
                ..options.clone()
            };
            let source = || ToySource::new(25 * 32, T);
            let one = fingerprint(loader(spec, source(), [1, 32, 1], whole));
            let many = fingerprint(loader(spec, source(), [ranks, micro, accumulation], options));
            assert_eq!(one, many, "{ranks} ranks × {micro} × {accumulation}");
        }
    }
}

/// 8 ranks × 1 × 1 for 30 steps, replayed by one rank × 2 × 4 from step 10 to 20.
#[test]
fn v20_eight_ranks_are_replayed_on_one() {
    let rows = |geometry, start, count| {
        let options = LoaderOptions {
            start: (0, start),
            max_micro_steps: Some(count),
            ..LoaderOptions::new(T)
        };
        let loader = loader(
            r#"{"name":"fla","seed":42}"#,
            ToySource::new(500, T),
            geometry,
            options,
        );
        let mut steps: Vec<Vec<(u64, u64, Vec<i32>)>> = Vec::new();
        for batch in loader {
            let batch = batch.unwrap();
            if batch.step().step_start == batch.step().micro_step {
                steps.push(Vec::new());
            }
            let step = steps.last_mut().unwrap();
            for m in batch.micro_batches() {
                step.extend((0..m.valid_rows).map(|i| (m.deal_indices[i], m.rows[i], m.sample(i).to_vec())));
            }
            step.sort();
        }
        steps
    };
    let eight = rows([8, 1, 1], 0, 30);
    assert_eq!(rows([1, 2, 4], 40, 40), eight[10..20]);
}

fn first_error(mut loader: Loader) -> (String, Duration) {
    let begun = Instant::now();
    loop {
        match loader.next_batch() {
            Ok(Some(_)) => {}
            Ok(None) => panic!("no error"),
            Err(error) => return (error.to_string(), begun.elapsed()),
        }
    }
}

#[test]
fn v21_a_worker_that_panics_is_an_error_with_sample_and_file() {
    let mut source = ToySource::new(1000, T);
    source.trouble.insert(500, Trouble::Panic);
    let options = LoaderOptions {
        epochs: Some(1),
        ..LoaderOptions::new(T)
    };
    let (error, time) = first_error(loader(r#"{"name":"fla","seed":1}"#, source, [2, 4, 1], options));
    assert!(
        error.contains("sample 500 ") && error.contains("toy-0.arrow"),
        "{error}"
    );
    assert!(time < Duration::from_secs(1), "{time:?}");
}

/// A reader blocked for 2.5 periods prints two lines that say what it waits for, and the stream is unchanged.
#[test]
fn v21_a_blocked_reader_is_reported_and_waited_for() {
    let run = |trouble: Option<Trouble>, period: Duration| {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&lines);
        let mut source = ToySource::new(200, T);
        source.trouble.extend(trouble.map(|t| (77, t)));
        let options = LoaderOptions {
            epochs: Some(1),
            fingerprints: true,
            stall_period: period,
            notices: NoticeSink::new(move |notice: &Notice| sink.lock().unwrap().push(notice.to_string())),
            ..LoaderOptions::new(T)
        };
        let found = fingerprint(loader(r#"{"name":"fla","seed":1}"#, source, [2, 4, 1], options));
        let lines = lines.lock().unwrap().clone();
        (found, lines)
    };
    let (expected, none) = run(None, Duration::from_secs(10));
    assert!(none.is_empty(), "{none:?}");
    let period = Duration::from_millis(400);
    let (found, lines) = run(Some(Trouble::Sleep(period * 5 / 2)), period);
    assert_eq!(found, expected);
    assert_eq!(lines.len(), 2, "{lines:?}");
    for line in lines {
        assert!(
            line.starts_with("stall: waited") && line.contains("sample 77 "),
            "{line}"
        );
    }
    assert_eq!(LoaderOptions::new(T).stall_period, Duration::from_secs(10));
}

/// A loader over a copy of the bundled corpus, and the folder it lies in.
fn over_files(workers: usize) -> (tempfile::TempDir, Loader) {
    let folder = tempfile::tempdir().unwrap();
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/shakespeare");
    for file in std::fs::read_dir(corpus).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    let source = HfSource::open(folder.path(), &SourceOptions::default()).unwrap();
    let tokens = source.sample_length().unwrap();
    let spec: OrderSpec = serde_json::from_str(r#"{"name":"fla","seed":42}"#).unwrap();
    let geometry = Geometry {
        world_size: 2,
        micro_batch_size: 4,
        gradient_accumulation_steps: 1,
    };
    let order = spec
        .build(&OrderInput::new(source.num_samples(), geometry))
        .unwrap();
    let options = LoaderOptions {
        workers,
        prefetch: 4,
        epochs: Some(2),
        fingerprints: true,
        ..LoaderOptions::new(tokens)
    };
    (folder, Loader::new(Arc::new(source), order, options).unwrap())
}

const SHARD: &str = "data-00000-of-00002.arrow";

#[test]
fn v21_a_file_cut_short_in_mid_run_is_an_error_that_names_it() {
    for workers in [0, 3] {
        let (folder, mut loader) = over_files(workers);
        for _ in 0..3 {
            loader.next_batch().unwrap().unwrap();
        }
        let shard = std::fs::OpenOptions::new()
            .write(true)
            .open(folder.path().join(SHARD))
            .unwrap();
        shard.set_len(shard.metadata().unwrap().len() / 3).unwrap();
        let (error, time) = first_error(loader);
        assert!(error.contains(SHARD), "{error}");
        assert!(time < Duration::from_secs(10), "{time:?}");
    }
}

/// The pages stay until the last map of a deleted file is gone: the run loses nothing and says nothing.
#[test]
fn v21_a_file_deleted_in_mid_run_is_read_to_the_end() {
    let expected = fingerprint(over_files(3).1);
    for workers in [0, 3] {
        let (folder, loader) = over_files(workers);
        std::fs::remove_file(folder.path().join(SHARD)).unwrap();
        assert_eq!(fingerprint(loader), expected);
        let error = HfSource::open(folder.path(), &SourceOptions::default()).unwrap_err();
        assert!(
            error.to_string().contains(SHARD),
            "and cannot be opened again: {error}"
        );
    }
}

/// Batches live in the process's own memory: no file below /dev/shm is mapped or left behind.
#[test]
fn v21_no_shared_memory_segment_is_used() {
    let options = LoaderOptions {
        workers: 8,
        epochs: Some(1),
        ..LoaderOptions::new(T)
    };
    let mut loader = loader(
        r#"{"name":"fla","seed":1}"#,
        ToySource::new(200, T),
        [2, 4, 1],
        options,
    );
    loader.next_batch().unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let shared: Vec<&str> = maps
        .lines()
        .filter(|line| line.contains("/dev/shm") || line.contains("/SYSV"))
        .collect();
    assert!(shared.is_empty(), "{shared:?}");
}

#[test]
fn v22_more_workers_than_samples() {
    for (ranks, spec) in [(2, r#"{"name":"fla","seed":1}"#), (2, r#"{"name":"sequential"}"#)] {
        let run = |workers| {
            let options = LoaderOptions {
                workers,
                epochs: Some(2),
                ..LoaderOptions::new(T)
            };
            let loader = loader(spec, ToySource::new(3, T), [ranks, 1, 1], options);
            let rows: Vec<Vec<u64>> = loader
                .map(|b| {
                    b.unwrap()
                        .micro_batches()
                        .flat_map(|m| m.rows[..m.valid_rows].to_vec())
                        .collect()
                })
                .collect();
            rows
        };
        let inline = run(0);
        assert_eq!(inline.len(), 4, "two micro-steps an epoch");
        assert_eq!(run(8), inline);
    }
}

#[test]
fn v22_no_samples_is_an_error_before_training() {
    for spec in [r#"{"name":"fla","seed":1}"#, r#"{"name":"sequential"}"#] {
        let spec: OrderSpec = serde_json::from_str(spec).unwrap();
        let geometry = Geometry {
            world_size: 2,
            micro_batch_size: 1,
            gradient_accumulation_steps: 1,
        };
        let error = match spec.build(&OrderInput::new(0, geometry)) {
            Err(error) => error.to_string(),
            Ok(order) => {
                let source = Arc::new(ToySource::new(0, T));
                Loader::new(source, order, LoaderOptions::new(T))
                    .unwrap_err()
                    .to_string()
            }
        };
        assert!(error.contains('0'), "{error}");
    }
}

/// An order given as a list is obeyed to the letter.
#[test]
fn v23_an_explicit_order_is_delivered_as_given() {
    for (ranks, workers) in [(1, 0), (1, 8), (4, 0), (4, 8)] {
        let spec: OrderSpec = serde_json::from_str(r#"{"name":"file","path":"order.npy"}"#).unwrap();
        let geometry = Geometry {
            world_size: ranks,
            micro_batch_size: 8 / ranks,
            gradient_accumulation_steps: 1,
        };
        let list = Permutation::Narrow((0..1000).rev().collect());
        let input = OrderInput {
            list: Some(Arc::new(list)),
            ..OrderInput::new(1000, geometry)
        };
        let options = LoaderOptions {
            workers,
            epochs: Some(1),
            ..LoaderOptions::new(T)
        };
        let source = Arc::new(ToySource::new(1000, T));
        let mut loader = Loader::new(source, spec.build(&input).unwrap(), options).unwrap();
        let mut delivered = Vec::new();
        while let Some(batch) = loader.next_batch().unwrap() {
            for m in batch.micro_batches() {
                delivered.extend((0..m.valid_rows).map(|i| (m.deal_indices[i], m.rows[i])));
            }
            // Checkpointing in between changes nothing.
            loader.state().unwrap();
        }
        delivered.sort_unstable();
        let rows: Vec<u64> = delivered.into_iter().map(|(_, row)| row).collect();
        assert_eq!(
            rows,
            (0..1000).rev().collect::<Vec<u64>>(),
            "{ranks} ranks, {workers} workers"
        );
    }
}

/// Order memory: at most 4 bytes a sample and epoch, so 8 while two epochs are alive. Here as the process's memory, threads and
/// buffers included; `v26_a_live_epoch_holds_four_bytes_a_sample` counts what the order itself holds.
#[test]
fn v26_an_order_costs_at_most_four_bytes_a_sample_and_epoch() {
    let n = 4_000_000;
    let resident = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status
            .lines()
            .find(|l| l.starts_with("RssAnon"))
            .unwrap()
            .to_owned();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    };
    if std::env::var("CETERIS_V26_CHILD").is_err() {
        // A process of its own, as resident memory is the process's.
        let status = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "runtime::v26_an_order_costs_at_most_four_bytes_a_sample_and_epoch",
                "--nocapture",
            ])
            .env("CETERIS_V26_CHILD", "1")
            .status()
            .unwrap();
        assert!(status.success());
        return;
    }
    let before = resident();
    let options = LoaderOptions {
        epochs: Some(1),
        workers: 1,
        page_in: PageIn::Never,
        max_micro_steps: Some(2),
        ..LoaderOptions::new(1)
    };
    let mut loader = loader(
        r#"{"name":"fla","seed":42}"#,
        ToySource::new(n, 1),
        [8, 4, 1],
        options,
    );
    loader.next_batch().unwrap().unwrap();
    let per_sample = (resident() - before) as f64 / n as f64;
    println!("{per_sample:.2} bytes a sample with one epoch alive");
    // A quarter of a byte is what the threads and the buffers of so small a run weigh.
    assert!(per_sample <= 4.25, "{per_sample:.2} bytes a sample");
}

/// Warm: shuffled reading against reading in sequence and against a plain copy of the same blocks. Cold reading of a cache
/// larger than memory: `loader bench --cold`.
///
///     python tests/bench/make_cache.py /tmp/ceteris-cache --gigabytes 2
///     CETERIS_BENCH_CACHE=/tmp/ceteris-cache cargo test --release -p ceteris-tests --test reports -- --ignored v26
#[test]
#[ignore = "a measurement: needs CETERIS_BENCH_CACHE and a release build"]
fn v26_shuffled_reading_keeps_the_speed_of_reading_in_sequence() {
    let folder = std::env::var("CETERIS_BENCH_CACHE").expect("CETERIS_BENCH_CACHE names a cache");
    let source: Arc<dyn Source> =
        Arc::new(HfSource::open(folder.as_ref(), &SourceOptions::default()).unwrap());
    let tokens = source.sample_len(0).unwrap();
    let geometry = Geometry {
        world_size: 1,
        micro_batch_size: 32,
        gradient_accumulation_steps: 1,
    };
    let order = |spec: &str| {
        let spec: OrderSpec = serde_json::from_str(spec).unwrap();
        spec.build(&OrderInput::new(source.num_samples(), geometry))
            .unwrap()
    };
    let pass = |order: &Arc<dyn Order>| {
        let options = LoaderOptions {
            epochs: Some(1),
            ..LoaderOptions::new(tokens)
        };
        let mut loader = Loader::new(Arc::clone(&source), Arc::clone(order), options).unwrap();
        measure::drain(&mut loader, Duration::ZERO, Duration::MAX, &mut |_| {})
            .unwrap()
            .gb_per_s()
    };
    let (shuffled, sequential) = (
        order(r#"{"name":"fla","seed":42}"#),
        order(r#"{"name":"sequential"}"#),
    );
    let best = |order: &Arc<dyn Order>| (0..3).map(|_| pass(order)).fold(0.0, f64::max);
    let (shuffled_speed, sequential_speed) = (best(&shuffled), best(&sequential));
    let index = shuffled.epoch(0).unwrap();
    let blocks = measure::Blocks::of(source.files(), &*shuffled, &*index, tokens * 4, u64::MAX).unwrap();
    let cores = std::thread::available_parallelism().unwrap().get();
    let copied = [1, cores]
        .map(|threads| blocks.copy(threads, 17, 3).unwrap().gb_per_s())
        .into_iter()
        .fold(0.0, f64::max);
    println!("shuffled {shuffled_speed:.2}, in sequence {sequential_speed:.2}, plain copy {copied:.2} GB/s");
    assert!(shuffled_speed >= 0.9 * sequential_speed && shuffled_speed >= 0.7 * copied);
}
