//! Resuming: the resumed run is the uninterrupted run, sample for sample.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ceteris_loader::pipeline::{Loader, LoaderError, LoaderOptions, LoaderState, NoticeSink, StateError};
use ceteris_samplers::rng::numpy::Generator;
use ceteris_samplers::rng::torch::TorchGenerator;
use ceteris_samplers::spec::OrderInput;
use ceteris_samplers::{Geometry, OrderSpec};

use crate::toy::ToySource;

/// Rows of a toy sample.
const T: usize = 4;

fn geometry(world_size: u64, micro_batch_size: u64, gradient_accumulation_steps: u64) -> Geometry {
    Geometry {
        world_size,
        micro_batch_size,
        gradient_accumulation_steps,
    }
}

fn options(epochs: u64) -> LoaderOptions {
    LoaderOptions {
        workers: 2,
        prefetch: 4,
        epochs: Some(epochs),
        notices: NoticeSink::new(|_| {}),
        ..LoaderOptions::new(T)
    }
}

struct Run {
    spec: OrderSpec,
    n: u64,
    geometry: Geometry,
    epochs: u64,
}

impl Run {
    fn new(spec: &str, n: u64, geometry: Geometry, epochs: u64) -> Run {
        Run {
            spec: serde_json::from_str(spec).unwrap(),
            n,
            geometry,
            epochs,
        }
    }

    fn start(&self) -> Loader {
        let order = self.spec.build(&OrderInput::new(self.n, self.geometry)).unwrap();
        Loader::new(Arc::new(ToySource::new(self.n, T)), order, options(self.epochs)).unwrap()
    }

    fn resume(&self, state: &LoaderState) -> Result<Loader, LoaderError> {
        let order = self.spec.build(&OrderInput::new(self.n, self.geometry)).unwrap();
        Loader::resume(
            Arc::new(ToySource::new(self.n, T)),
            order,
            options(self.epochs),
            state,
        )
    }
}

/// Rows of a batch in deal order, with their deal indices.
fn rows_of(batch: &ceteris_loader::pipeline::Batch) -> Vec<(u64, u64)> {
    let mut rows: Vec<(u64, u64)> = batch
        .micro_batches()
        .flat_map(|m| (0..m.valid_rows).map(move |i| (m.deal_indices[i], m.rows[i])))
        .collect();
    rows.sort_unstable();
    rows
}

/// Rows consumed by the next `count` batches (all that are left for `None`).
fn consume(loader: &mut Loader, count: Option<usize>) -> Vec<u64> {
    let mut rows = Vec::new();
    for _ in 0..count.unwrap_or(usize::MAX) {
        let Some(batch) = loader.next_batch().unwrap() else {
            break;
        };
        rows.extend(rows_of(&batch).into_iter().map(|(_, row)| row));
    }
    rows
}

const HF_10: &str = r#"{"name":"hf-trainer","seed":42,"dataset":[]}"#;

#[test]
fn v01_a_run_stopped_in_its_second_epoch_goes_on_in_that_epoch() {
    let run = Run::new(HF_10, 10, geometry(1, 1, 1), 3);
    let mut first = run.start();
    let before = consume(&mut first, Some(14));
    assert_eq!(before[..10], [2, 6, 1, 8, 4, 5, 0, 9, 3, 7]);
    assert_eq!(before[10..], [8, 4, 9, 0]);
    let mut resumed = run.resume(&first.state().unwrap()).unwrap();
    assert_eq!(consume(&mut resumed, Some(6)), [5, 1, 6, 7, 2, 3]);
    assert_eq!(consume(&mut resumed, None), [2, 6, 3, 8, 7, 9, 1, 4, 5, 0]);
}

#[test]
fn v01_resume_at_every_sample_of_three_epochs_equals_the_tail() {
    let run = Run::new(HF_10, 10, geometry(1, 1, 1), 3);
    let whole = consume(&mut run.start(), None);
    for k in 0..=30 {
        let mut first = run.start();
        consume(&mut first, Some(k));
        let mut resumed = run.resume(&first.state().unwrap()).unwrap();
        assert_eq!(consume(&mut resumed, None), whole[k..], "k {k}");
    }
}

const V02: &str = r#"{"name":"fla","seed":42}"#;
const V02_FOLDER: &str = "CETERIS_V02_FOLDER";
const V02_SAMPLES: u64 = 1000;
const V02_EPOCHS: u64 = 3;

/// The process that gets killed: logs what it consumes, saves its state after every third batch, as a trainer that
/// checkpoints would. Does nothing unless started by `v02_killed_at_random_points_every_epoch_is_consumed_once`.
#[test]
fn v02_child() {
    let Ok(folder) = std::env::var(V02_FOLDER) else {
        return;
    };
    let folder = Path::new(&folder);
    let run = Run::new(V02, V02_SAMPLES, geometry(2, 4, 1), V02_EPOCHS);
    let (log, saved) = (folder.join("consumed"), folder.join("state.json"));
    let mut loader = match saved.exists() {
        true => run.resume(&LoaderState::load(&saved).unwrap()).unwrap(),
        false => run.start(),
    };
    let position = loader.state().unwrap().global_micro_step;
    // What was consumed after the checkpoint is trained anew, as in a real run.
    let kept: String = fs::read_to_string(&log)
        .unwrap_or_default()
        .lines()
        .filter(|line| line.ends_with('.'))
        .filter(|line| line.split(' ').nth(1).unwrap().parse::<u64>().unwrap() < position)
        .map(|line| format!("{line}\n"))
        .collect();
    fs::write(&log, kept).unwrap();
    let mut log = fs::OpenOptions::new().append(true).open(&log).unwrap();
    while let Some(batch) = loader.next_batch().unwrap() {
        let step = batch.step();
        let rows: Vec<String> = rows_of(&batch).iter().map(|(_, row)| row.to_string()).collect();
        drop(batch);
        writeln!(
            log,
            "{} {} {} .",
            step.epoch,
            step.global_micro_step,
            rows.join(",")
        )
        .unwrap();
        if step.global_micro_step % 3 == 2 {
            loader.state().unwrap().save(&saved).unwrap();
        }
        std::thread::sleep(Duration::from_micros(500));
    }
    fs::write(folder.join("finished"), "").unwrap();
}

fn v02_start(folder: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "resume::v02_child"])
        .env(V02_FOLDER, folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn v02_killed_at_random_points_every_epoch_is_consumed_once() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("consumed");
    let progress = || {
        let text = fs::read_to_string(&log).unwrap_or_default();
        text.lines()
            .filter_map(|l| l.split(' ').nth(1)?.parse::<u64>().ok())
            .max()
            .unwrap_or(0)
    };
    // 125 micro-steps an epoch; five points in each, from a generator seeded by the clock.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let mut random = TorchGenerator::new(now.as_nanos() as u64);
    let mut points: Vec<u64> = (0..V02_EPOCHS)
        .flat_map(|e| [0; 5].map(|_| e * 125 + u64::from(random.next_u32() % 120)))
        .collect();
    points.sort_unstable();
    let mut kills = 0;
    for point in &points {
        let mut child = v02_start(folder.path());
        let started = Instant::now();
        while progress() < *point && child.try_wait().unwrap().is_none() {
            assert!(
                started.elapsed() < Duration::from_secs(60),
                "the child does not get on"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        kills += u32::from(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert!(
        v02_start(folder.path()).wait().unwrap().success(),
        "kill points {points:?}"
    );
    assert!(folder.path().join("finished").exists() && kills > 0);
    let mut epochs: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for line in fs::read_to_string(&log).unwrap().lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let rows = fields[2].split(',').map(|row| row.parse::<u64>().unwrap());
        epochs.entry(fields[0].parse().unwrap()).or_default().extend(rows);
    }
    assert_eq!(epochs.len() as u64, V02_EPOCHS);
    for (epoch, mut rows) in epochs {
        rows.sort_unstable();
        assert!(
            rows == (0..V02_SAMPLES).collect::<Vec<_>>(),
            "epoch {epoch}, kill points {points:?}"
        );
    }
}

#[test]
fn v02_a_checkpoint_without_a_data_position_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.json");
    let run = Run::new(V02, 100, geometry(1, 4, 1), 1);
    let mut state = serde_json::to_value(run.start().state().unwrap()).unwrap();
    for field in ["epoch", "micro_step"] {
        let removed = state.as_object_mut().unwrap().remove(field).unwrap();
        fs::write(&path, state.to_string()).unwrap();
        let error = LoaderState::load(&path).unwrap_err().to_string();
        assert!(
            error.contains(field) && error.contains("without a data position"),
            "{error}"
        );
        state[field] = removed;
    }
}

/// Other generators of the program are none of the order's business.
#[test]
fn v03_the_order_does_not_depend_on_other_random_draws() {
    let run = Run::new(r#"{"name":"hf-trainer","seed":7}"#, 64, geometry(1, 1, 1), 1);
    let mut quiet_run = run.start();
    let whole = consume(&mut quiet_run, None);
    let mut torch = TorchGenerator::new(7);
    let mut numpy = Generator::default_rng(7);
    let mut burn = || {
        for _ in 0..1000 {
            torch.next_u32();
            numpy.random();
        }
    };
    burn();
    let mut busy = run.start();
    let mut head = Vec::new();
    for _ in 0..20 {
        burn();
        head.extend(consume(&mut busy, Some(1)));
    }
    let state = busy.state().unwrap();
    burn();
    let tail = consume(&mut run.resume(&state).unwrap(), None);
    assert_eq!(head, whole[..20]);
    assert_eq!((tail.len(), &tail[..]), (44, &whole[20..]));
}

#[test]
fn v04_a_second_resume_in_one_epoch_counts_from_the_start_of_the_run() {
    let run = Run::new(V02, 1000, geometry(1, 8, 1), 1);
    let whole = consume(&mut run.start(), None);
    let mut first = run.start();
    consume(&mut first, Some(30));
    let mut second = run.resume(&first.state().unwrap()).unwrap();
    consume(&mut second, Some(10));
    let mut third = run.resume(&second.state().unwrap()).unwrap();
    assert_eq!(third.state().unwrap().micro_step, 40);
    assert_eq!(consume(&mut third, Some(5)), whole[40 * 8..45 * 8]);
    assert_eq!(third.state().unwrap().micro_step, 45);
}

#[test]
fn v05_states_count_micro_steps_and_not_steps() {
    for (accumulation, first_sample) in [(4, 112), (1, 28), (3, 84), (16, 448)] {
        let run = Run::new(V02, 2000, geometry(2, 2, accumulation), 1);
        let mut first = run.start();
        // "After step 7": seven optimizer steps are done, the next one is step 8 of a count from 1.
        let mut steps = 0;
        while steps < 7 {
            steps += u64::from(first.next_batch().unwrap().unwrap().step().closes_step);
        }
        let state = first.state().unwrap();
        assert_eq!((state.global_step, state.consumed_samples), (7, first_sample));
        let mut resumed = run.resume(&state).unwrap();
        let batch = resumed.next_batch().unwrap().unwrap();
        assert_eq!(rows_of(&batch)[0].0, first_sample, "accumulation {accumulation}");
        assert_eq!(
            (batch.step().step, batch.step().step_start),
            (7, 7 * accumulation)
        );
    }
}

#[test]
fn v06_the_offset_of_a_resume_is_used_once() {
    let run = Run::new(V02, 100, geometry(1, 10, 1), 4);
    let mut first = run.start();
    let mut of_epoch_0 = consume(&mut first, Some(6));
    let mut resumed = run.resume(&first.state().unwrap()).unwrap();
    let mut epochs: BTreeMap<u64, Vec<Vec<u64>>> = BTreeMap::new();
    while let Some(batch) = resumed.next_batch().unwrap() {
        let rows = rows_of(&batch).into_iter().map(|(_, row)| row).collect();
        epochs.entry(batch.step().epoch).or_default().push(rows);
    }
    let counts: Vec<usize> = epochs.values().map(Vec::len).collect();
    assert_eq!(counts, [4, 10, 10, 10]);
    of_epoch_0.extend(epochs.remove(&0).unwrap().concat());
    for mut rows in epochs
        .into_values()
        .map(|batches| batches.concat())
        .chain([of_epoch_0])
    {
        rows.sort_unstable();
        assert_eq!(rows, (0..100).collect::<Vec<_>>());
    }
}

fn v07(n: u64, steps: [u64; 2]) {
    let spec: OrderSpec = serde_json::from_str(r#"{"name":"torch-distributed","seed":1}"#).unwrap();
    let order = spec.build(&OrderInput::new(n, geometry(8, 32, 1))).unwrap();
    let mut times = Vec::new();
    for step in steps {
        let source = Arc::new(ToySource::new(n, 1));
        let mut options = LoaderOptions {
            workers: 0,
            ..LoaderOptions::new(1)
        };
        let state = LoaderState {
            epoch: 0,
            micro_step: step,
            global_micro_step: step,
            global_step: step,
            consumed_samples: step * 256,
            ..Loader::new(source.clone(), order.clone(), options.clone())
                .unwrap()
                .state()
                .unwrap()
        };
        options.max_micro_steps = Some(1);
        let begun = Instant::now();
        let mut loader = Loader::resume(source.clone(), order.clone(), options, &state).unwrap();
        let built = begun.elapsed();
        assert_eq!(
            source.reads.load(Ordering::Relaxed),
            0,
            "nothing is read to find the place"
        );
        let batch = loader.next_batch().unwrap().unwrap();
        println!(
            "step {step} of {n} samples: epoch built in {built:?}, first batch {:?} later",
            begun.elapsed() - built
        );
        assert_eq!(
            source.reads.load(Ordering::Relaxed),
            256,
            "one micro-step is read"
        );
        assert_eq!(batch.step().micro_step, step);
        times.push(begun.elapsed());
    }
    assert!(times[0].abs_diff(times[1]) < Duration::from_secs(1), "{times:?}");
}

#[test]
fn v07_resuming_late_costs_what_resuming_early_costs() {
    v07(2_000_000, [10, 7_000]);
}

/// The size of the report: 200 M samples (800 MB of permutation), step 10 and step 700,000.
#[test]
#[ignore = "takes seconds of permutation and 2 GB of memory; run in release"]
fn v07_resuming_late_in_200_million_samples() {
    v07(200_000_000, [10, 700_000]);
}

#[test]
fn v08_fewer_ranks_replay_the_same_global_batches_or_are_refused() {
    for order in [V02, r#"{"name":"hf-trainer","seed":42}"#] {
        let four = Run::new(order, 1000, geometry(4, 2, 1), 1);
        let mut first = four.start();
        consume(&mut first, Some(20));
        let state = first.state().unwrap();
        let tail = consume(&mut first, None);
        let two = Run::new(order, 1000, geometry(2, 2, 2), 1);
        let mut resumed = two.resume(&state).unwrap();
        assert_eq!(resumed.state().unwrap().global_step, 20);
        // Micro-steps are half as large; their rows, in deal order, are the same list.
        assert_eq!(consume(&mut resumed, None), tail, "{order}");
        let smaller = Run::new(order, 1000, geometry(2, 2, 1), 1);
        let error = smaller.resume(&state).unwrap_err();
        assert!(
            matches!(
                error,
                LoaderError::State(StateError::GlobalBatch { saved: 8, now: 4 })
            ),
            "{error}"
        );
        assert!(error.to_string().contains("from 8 to 4"), "{error}");
    }
}
