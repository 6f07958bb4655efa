//! States: a resumed run is the tail of the uninterrupted one, and anything else is refused.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ceteris_loader::pipeline::{Loader, LoaderError, LoaderOptions, LoaderState, StateError};
use ceteris_samplers::OrderSpec;

use crate::stream::{delivered, run};
use crate::toy::{ToyOrder, ToySource};

fn options(workers: usize) -> LoaderOptions {
    LoaderOptions {
        workers,
        prefetch: 3,
        epochs: Some(3),
        ..LoaderOptions::new(3)
    }
}

fn loader(workers: usize) -> Loader {
    Loader::new(
        Arc::new(ToySource::new(29, 3)),
        Arc::new(ToyOrder::new(29, 2, 2, 3)),
        options(workers),
    )
    .unwrap()
}

fn resume(state: &LoaderState, order: ToyOrder, source: ToySource) -> Result<Loader, LoaderError> {
    Loader::resume(Arc::new(source), Arc::new(order), options(2), state)
}

#[test]
fn every_k_of_three_epochs_resumes_to_the_tail() {
    let whole = run(loader(2));
    assert_eq!(whole.len(), 24);
    for workers in [0, 3] {
        for k in 0..=whole.len() {
            let mut first = loader(workers);
            for _ in 0..k {
                first.next_batch().unwrap().unwrap();
            }
            // Through text, as a checkpoint holds it.
            let text = serde_json::to_string(&first.state().unwrap()).unwrap();
            let state: LoaderState = serde_json::from_str(&text).unwrap();
            let rest = resume(&state, ToyOrder::new(29, 2, 2, 3), ToySource::new(29, 3)).unwrap();
            assert!(run(rest) == whole[k..], "k {k}, workers {workers}");
        }
    }
}

#[test]
fn the_state_is_small_and_says_what_it_belongs_to() {
    let mut loader = loader(2);
    for _ in 0..11 {
        loader.next_batch().unwrap();
    }
    let state = loader.state().unwrap();
    assert_eq!(
        (
            state.epoch,
            state.micro_step,
            state.global_micro_step,
            state.global_step
        ),
        (1, 3, 11, 4)
    );
    assert_eq!(state.consumed_samples, 29 + 12);
    assert_eq!(state.dataset.files, ["toy-0.arrow"]);
    assert_eq!(state.ceteris_version, env!("CARGO_PKG_VERSION"));
    assert!(serde_json::to_string(&state).unwrap().len() < 1000);
}

#[test]
fn consumption_is_counted_by_part_of_the_dataset() {
    let source = || ToySource {
        parts_at: Some(10),
        ..ToySource::new(29, 3)
    };
    let order = || Arc::new(ToyOrder::new(29, 2, 2, 3));
    // One rank of two counts what both consume.
    let ranks = ceteris_loader::pipeline::Ranks::Some(vec![1]);
    let options = || LoaderOptions {
        ranks: ranks.clone(),
        ..options(2)
    };
    let mut loader = Loader::new(Arc::new(source()), order(), options()).unwrap();
    for _ in 0..8 {
        loader.next_batch().unwrap();
    }
    let count = |state: &LoaderState| -> Vec<(String, u64)> {
        state
            .consumed_samples_per_source
            .iter()
            .map(|c| (c.source.clone(), c.samples))
            .collect()
    };
    let state = loader.state().unwrap();
    assert_eq!(count(&state), [("low".to_owned(), 10), ("high".to_owned(), 19)]);
    let mut again = Loader::resume(Arc::new(source()), order(), options(), &state).unwrap();
    for _ in 0..16 {
        again.next_batch().unwrap();
    }
    assert_eq!(
        count(&again.state().unwrap()),
        [("low".to_owned(), 30), ("high".to_owned(), 57)]
    );
}

#[test]
fn a_state_of_other_sources_is_refused() {
    let source = |parts_at| {
        Arc::new(ToySource {
            parts_at,
            ..ToySource::new(29, 3)
        })
    };
    let order = || Arc::new(ToyOrder::new(29, 2, 2, 3));
    let state = Loader::new(source(Some(10)), order(), options(1))
        .unwrap()
        .state()
        .unwrap();
    let error = Loader::resume(source(None), order(), options(1), &state).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("sources: the state has low, high, now "),
        "{error}"
    );
}

/// Nothing before the first sample needed is read: not one read of an earlier micro-step.
#[test]
fn resuming_reads_nothing_it_does_not_deliver() {
    let mut first = loader(0);
    for _ in 0..20 {
        first.next_batch().unwrap();
    }
    let state = first.state().unwrap();
    let source = Arc::new(ToySource::new(29, 3));
    let order = Arc::new(ToyOrder::new(29, 2, 2, 3));
    let mut again = Loader::resume(source.clone(), order, options(0), &state).unwrap();
    assert_eq!(source.reads.load(Ordering::Relaxed), 0);
    let batch = again.next_batch().unwrap().unwrap();
    let rows: Vec<u64> = batch
        .micro_batches()
        .flat_map(|m| m.rows[..m.valid_rows].to_vec())
        .collect();
    assert_eq!(*source.first_reads.lock().unwrap(), rows);
    assert_eq!((batch.step().epoch, batch.step().micro_step), (2, 4));
    assert_eq!(delivered(&batch), run(loader(0))[20]);
}

#[test]
fn states_of_other_runs_are_refused_by_name() {
    let state = loader(1).state().unwrap();
    let refuse = |state: &LoaderState, order: ToyOrder, source: ToySource, names: &[&str]| {
        let error = resume(state, order, source).unwrap_err().to_string();
        assert!(names.iter().all(|name| error.contains(name)), "{error}");
    };
    let order = || ToyOrder::new(29, 2, 2, 3);
    let mut other = order();
    other.spec = OrderSpec::from_options("shuffle", [("seed".to_owned(), 3.into())]).unwrap();
    refuse(
        &state,
        other,
        ToySource::new(29, 3),
        &["order.name", "sequential", "shuffle", "order.seed"],
    );
    refuse(
        &state,
        ToyOrder::new(30, 2, 2, 3),
        ToySource::new(30, 3),
        &["dataset size", "29", "30"],
    );
    let longer = LoaderState {
        seq_length: 4,
        ..state.clone()
    };
    refuse(
        &longer,
        order(),
        ToySource::new(29, 3),
        &["seq_length: the state has 4, now 3"],
    );
    let mut files = state.clone();
    files.dataset.files = vec!["other.arrow".to_owned()];
    refuse(
        &files,
        order(),
        ToySource::new(29, 3),
        &["dataset files", "other.arrow"],
    );
    let mut marked = state.clone();
    marked.dataset.fingerprint = "aa".to_owned();
    let options = LoaderOptions {
        dataset_fingerprint: "bb".to_owned(),
        ..options(1)
    };
    let error = Loader::resume(
        Arc::new(ToySource::new(29, 3)),
        Arc::new(order()),
        options,
        &marked,
    )
    .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("dataset fingerprint: the state has aa, now bb"),
        "{error}"
    );
    let past = LoaderState {
        micro_step: 8,
        ..state.clone()
    };
    refuse(
        &past,
        order(),
        ToySource::new(29, 3),
        &["micro-step 8 of epoch 0", "8 micro-steps"],
    );
    let torn = LoaderState {
        micro_step: 3,
        ..state.clone()
    };
    refuse(&torn, order(), ToySource::new(29, 3), &["contradict"]);
}

#[test]
fn state_files_are_written_whole_and_read_with_care() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("loader.json");
    let state = loader(1).state().unwrap();
    state.save(&path).unwrap();
    assert_eq!(LoaderState::load(&path).unwrap(), state);
    assert_eq!(
        std::fs::read_dir(folder.path()).unwrap().count(),
        1,
        "no temporary file stays"
    );
    let missing = LoaderState::load(&folder.path().join("none.json")).unwrap_err();
    assert!(missing.to_string().contains("none.json"), "{missing}");
    let text = std::fs::read_to_string(&path).unwrap();
    let broken = [
        (
            text.replace("  \"micro_step\": 0,\n", ""),
            "missing field `micro_step`",
        ),
        (text.replace("\"epoch\": 0", "\"epoch\": -1"), "-1"),
        (text[..text.len() / 2].to_owned(), "EOF"),
        (text.replace("\"epoch\"", "\"epoh\""), "epoh"),
    ];
    for (content, name) in broken {
        std::fs::write(&path, content).unwrap();
        let error = LoaderState::load(&path).unwrap_err();
        assert!(matches!(error, StateError::Format { .. }), "{error}");
        let text = error.to_string();
        assert!(
            text.contains(name) && text.contains("loader.json") && text.contains("cannot be resumed"),
            "{text}"
        );
    }
    std::fs::write(
        &path,
        text.replace("\"state_version\": 1", "\"state_version\": 2"),
    )
    .unwrap();
    let error = LoaderState::load(&path).unwrap_err();
    assert!(matches!(error, StateError::Version { found: 2 }), "{error}");
}
