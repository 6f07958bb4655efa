//! The same global batches under another layout; other global batches only when asked for.

use std::sync::{Arc, Mutex};

use ceteris_loader::pipeline::{
    ElasticReport, Loader, LoaderError, LoaderOptions, LoaderState, Notice, NoticeSink, StateError,
};

use crate::toy::{ToyOrder, ToySource, entry};

const N: u64 = 100;

fn options() -> LoaderOptions {
    LoaderOptions {
        workers: 2,
        epochs: Some(2),
        ..LoaderOptions::new(2)
    }
}

fn loader(world: u64, micro: u64, accumulation: u64) -> Loader {
    let order = Arc::new(ToyOrder::new(N, world, micro, accumulation));
    Loader::new(Arc::new(ToySource::new(N, 2)), order, options()).unwrap()
}

fn resume(
    state: &LoaderState,
    layout: (u64, u64, u64),
    allow: bool,
) -> Result<(Loader, Vec<ElasticReport>), LoaderError> {
    let reports = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&reports);
    let notices = NoticeSink::new(move |notice| {
        if let Notice::Elastic(report) = notice {
            sink.lock().unwrap().push((**report).clone());
        }
    });
    let options = LoaderOptions {
        allow_global_batch_change: allow,
        notices,
        ..options()
    };
    let order = Arc::new(ToyOrder::new(N, layout.0, layout.1, layout.2));
    let loader = Loader::resume(Arc::new(ToySource::new(N, 2)), order, options, state)?;
    let reports = reports.lock().unwrap().clone();
    Ok((loader, reports))
}

/// Rows of each optimizer step, in deal order.
fn steps(loader: Loader) -> Vec<Vec<u64>> {
    let mut all: Vec<(u64, Vec<(u64, u64)>)> = Vec::new();
    for batch in loader {
        let batch = batch.unwrap();
        let step = batch.step().global_step;
        if all.last().is_none_or(|(last, _)| *last != step) {
            all.push((step, Vec::new()));
        }
        let rows = &mut all.last_mut().unwrap().1;
        for m in batch.micro_batches() {
            rows.extend((0..m.valid_rows).map(|i| (m.deal_indices[i], m.rows[i])));
        }
    }
    let in_deal_order = |(_, mut rows): (u64, Vec<(u64, u64)>)| {
        rows.sort_unstable();
        rows.into_iter().map(|(_, row)| row).collect()
    };
    all.into_iter().map(in_deal_order).collect()
}

fn state_after(mut loader: Loader, micro_steps: usize) -> LoaderState {
    for _ in 0..micro_steps {
        loader.next_batch().unwrap().unwrap();
    }
    loader.state().unwrap()
}

#[test]
fn every_factorisation_replays_the_same_global_batches() {
    let layouts = [(8, 1, 1), (4, 2, 1), (2, 2, 2), (1, 1, 8), (1, 8, 1), (1, 2, 4)];
    let whole = steps(loader(8, 1, 1));
    assert_eq!(whole.len(), 26);
    for from in layouts {
        assert_eq!(steps(loader(from.0, from.1, from.2)), whole, "{from:?}");
        for to in layouts {
            // After step 5 of the second epoch.
            let per_epoch = 100_u64.div_ceil(from.0 * from.1);
            let state = state_after(loader(from.0, from.1, from.2), (per_epoch + 5 * from.2) as usize);
            let (resumed, reports) = resume(&state, to, false).unwrap();
            assert_eq!(steps(resumed), whole[18..], "{from:?} to {to:?}");
            assert_eq!(reports.len(), usize::from(from != to));
            if let [report] = &reports[..] {
                assert!(report.repeated.is_empty() && report.skipped.is_empty());
                assert!(report.to_string().contains("same samples"), "{report}");
            }
        }
    }
}

#[test]
fn within_a_step_a_finer_layout_goes_on_and_a_coarser_one_is_refused() {
    // 12 samples consumed: half of the second step of 8.
    let state = state_after(loader(2, 2, 2), 3);
    let (resumed, _) = resume(&state, (1, 1, 8), false).unwrap();
    let first = steps(resumed).swap_remove(0);
    assert_eq!(first, (12..16).map(|k| entry(N, 0, k)).collect::<Vec<_>>());
    let error = resume(&state, (8, 1, 1), false).unwrap_err();
    assert!(
        matches!(
            error,
            LoaderError::State(StateError::Unaligned { consumed: 12, .. })
        ),
        "{error}"
    );
}

#[test]
fn another_global_batch_needs_consent_and_reports_what_repeats() {
    // 40 samples consumed; steps of 12 start at 36.
    let state = state_after(loader(4, 2, 1), 5);
    let error = resume(&state, (3, 4, 1), false).unwrap_err();
    assert!(
        matches!(
            error,
            LoaderError::State(StateError::GlobalBatch { saved: 8, now: 12 })
        ),
        "{error}"
    );
    assert!(error.to_string().contains("from 8 to 12"), "{error}");
    let (resumed, reports) = resume(&state, (3, 4, 1), true).unwrap();
    let [report] = &reports[..] else {
        panic!("{reports:?}")
    };
    assert_eq!(report.repeated, 36..40);
    assert_eq!(
        report.repeated_rows,
        (36..40).map(|k| entry(N, 0, k)).collect::<Vec<_>>()
    );
    let text = report.to_string();
    assert!(
        text.contains("4 samples of epoch 0 repeat (deal indices 36 to 39"),
        "{text}"
    );
    assert!(text.contains("none is skipped"), "{text}");
    let all = steps(resumed);
    assert_eq!(all[0], (36..48).map(|k| entry(N, 0, k)).collect::<Vec<_>>());
    assert_eq!(all.iter().map(Vec::len).sum::<usize>(), 64 + 100);
    // Consumption counts what was consumed, repeats included.
    let (mut resumed, _) = resume(&state, (3, 4, 1), true).unwrap();
    resumed.next_batch().unwrap();
    assert_eq!(resumed.state().unwrap().consumed_samples, 52);
}
