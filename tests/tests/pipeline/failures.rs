//! Failures reach the consumer, soon and by name.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ceteris_loader::pipeline::{Loader, LoaderError, LoaderOptions, Notice, NoticeSink, StopSignal};

use crate::stream::{quiet, run};
use crate::toy::{ToyOrder, ToySource, Trouble, entry};

const N: u64 = 200;

fn with_trouble(deal_index: u64, trouble: Trouble) -> ToySource {
    let mut source = ToySource::new(N, 4);
    source.trouble.insert(entry(N, 0, deal_index), trouble);
    source
}

fn start(source: ToySource, options: LoaderOptions) -> Loader {
    let options = LoaderOptions {
        epochs: Some(1),
        ..options
    };
    Loader::new(
        Arc::new(source),
        Arc::new(ToyOrder::new(N, 2, 2, 1)),
        quiet(options),
    )
    .unwrap()
}

/// Takes batches until one fails; how many came first.
fn until_error(loader: &mut Loader) -> (usize, LoaderError) {
    let mut count = 0;
    loop {
        match loader.next_batch() {
            Ok(Some(_)) => count += 1,
            Ok(None) => panic!("ended without an error after {count} batches"),
            Err(error) => return (count, error),
        }
    }
}

#[test]
fn panics_and_read_errors_come_in_micro_step_order_with_step_sample_and_file() {
    for workers in [0, 1, 4, 16] {
        for trouble in [Trouble::Panic, Trouble::Fail] {
            // Deal index 50 is micro-step 12, rank 1, slot 0.
            let options = LoaderOptions {
                workers,
                ..LoaderOptions::new(4)
            };
            let mut loader = start(with_trouble(50, trouble.clone()), options);
            let begun = Instant::now();
            let (delivered, error) = until_error(&mut loader);
            assert!(
                begun.elapsed() < Duration::from_secs(1),
                "took {:?}",
                begun.elapsed()
            );
            assert_eq!(delivered, 12, "what came before is good");
            let text = error.to_string();
            let sample = entry(N, 0, 50);
            let at = format!("sample {sample} (rank 1, slot 0) of toy-0.arrow");
            for part in ["micro-step 12 of epoch 0", &at] {
                assert!(text.contains(part), "{text}");
            }
            match trouble {
                Trouble::Panic => assert!(
                    text.contains(&format!("toy source panics at sample {sample}")),
                    "{text}"
                ),
                _ => assert!(text.contains("made to fail"), "{text}"),
            }
            let again = loader.next_batch().unwrap_err();
            assert!(
                matches!(&again, LoaderError::AlreadyFailed(first) if *first == text),
                "{again}"
            );
        }
    }
}

/// Micro-step 3 is stuck in a read while micro-step 5 fails: the failure must not wait for the read.
#[test]
fn a_failure_is_not_held_back_by_a_stuck_read() {
    let mut source = with_trouble(5 * 4, Trouble::Fail);
    source
        .trouble
        .insert(entry(N, 0, 3 * 4), Trouble::Sleep(Duration::from_secs(4)));
    let mut loader = start(
        source,
        LoaderOptions {
            workers: 4,
            ..LoaderOptions::new(4)
        },
    );
    let begun = Instant::now();
    let (delivered, error) = until_error(&mut loader);
    assert_eq!(delivered, 3);
    assert!(error.to_string().contains("micro-step 5"), "{error}");
    assert!(
        begun.elapsed() < Duration::from_millis(1500),
        "took {:?}",
        begun.elapsed()
    );
    let dropping = Instant::now();
    drop(loader);
    assert!(
        dropping.elapsed() < Duration::from_millis(1500),
        "a stuck worker is left behind"
    );
}

/// A consumer slower than a second a step hears of a failure at its next call, not after the batches before it.
#[test]
fn a_slow_consumer_is_told_at_its_next_call() {
    let mut loader = start(
        with_trouble(8 * 4, Trouble::Fail),
        LoaderOptions {
            workers: 4,
            ..LoaderOptions::new(4)
        },
    );
    drop(loader.next_batch().unwrap());
    std::thread::sleep(Duration::from_millis(1200));
    // Batches that are there are delivered first only while the failure is fresh.
    let error = loader.next_batch().unwrap_err();
    assert!(error.to_string().contains("micro-step 8"), "{error}");
}

#[test]
fn a_slow_read_prints_stall_lines_and_changes_nothing() {
    let expected = run(start(ToySource::new(N, 4), LoaderOptions::new(4)));
    for workers in [0, 3] {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&lines);
        let options = LoaderOptions {
            workers,
            epochs: Some(1),
            stall_period: Duration::from_millis(200),
            notices: NoticeSink::new(move |notice| sink.lock().unwrap().push(notice.clone())),
            ..LoaderOptions::new(4)
        };
        let source = with_trouble(42, Trouble::Sleep(Duration::from_millis(750)));
        let loader = Loader::new(Arc::new(source), Arc::new(ToyOrder::new(N, 2, 2, 1)), options).unwrap();
        assert!(run(loader) == expected, "workers {workers}");
        let lines = lines.lock().unwrap();
        assert!(
            (2..=4).contains(&lines.len()),
            "one line each 200 ms of 750: {lines:?}"
        );
        for line in lines.iter() {
            assert!(
                matches!(
                    line,
                    Notice::Stall {
                        global_micro_step: 10,
                        ..
                    }
                ),
                "{line}"
            );
            let sample = format!(
                "is reading sample {} (rank 1, slot 0) of toy-0.arrow",
                entry(N, 0, 42)
            );
            assert!(line.to_string().contains(&sample), "{line}");
        }
    }
}

#[test]
fn a_request_to_stop_wakes_a_waiting_consumer_and_can_be_told_from_the_end() {
    let stop = StopSignal::new();
    let options = LoaderOptions {
        workers: 2,
        stop: Some(stop.clone()),
        ..LoaderOptions::new(4)
    };
    let mut loader = start(with_trouble(40, Trouble::Sleep(Duration::from_secs(3))), options);
    for _ in 0..10 {
        loader.next_batch().unwrap().unwrap();
    }
    let state = loader.state().unwrap();
    let asker = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        stop.request();
    });
    let begun = Instant::now();
    let error = loader.next_batch().unwrap_err();
    assert!(
        matches!(
            error,
            LoaderError::Interrupted {
                signal: 0,
                global_micro_step: 10
            }
        ),
        "{error}"
    );
    assert!(begun.elapsed() < Duration::from_secs(1));
    assert_eq!(loader.state().unwrap(), state, "a state can be saved after it");
    asker.join().unwrap();
}

#[test]
fn a_dataset_that_changes_is_noticed_during_the_run_and_at_its_end() {
    for workers in [0, 2] {
        let source = Arc::new(with_trouble(100, Trouble::Sleep(Duration::from_millis(1500))));
        let order = Arc::new(ToyOrder::new(N, 2, 2, 1));
        let options = LoaderOptions {
            workers,
            epochs: Some(1),
            ..LoaderOptions::new(4)
        };
        let mut loader = Loader::new(source.clone(), order.clone(), options.clone()).unwrap();
        source.changed.store(true, Ordering::Relaxed);
        let (delivered, error) = until_error(&mut loader);
        assert!(
            delivered < 50,
            "noticed while micro-step 25 was read, not at the end ({delivered} batches)"
        );
        assert!(
            error
                .to_string()
                .contains("toy-0.arrow: the file changed while it was in use"),
            "{error}"
        );

        let source = Arc::new(ToySource::new(N, 4));
        let mut loader = Loader::new(source.clone(), order, options).unwrap();
        for _ in 0..50 {
            loader.next_batch().unwrap().unwrap();
        }
        source.changed.store(true, Ordering::Relaxed);
        assert!(
            matches!(loader.state(), Err(LoaderError::Changed(_))),
            "no state of unknown data"
        );
    }
}

#[test]
fn an_epoch_that_cannot_be_built_is_named() {
    for workers in [0, 3] {
        let mut order = ToyOrder::new(20, 2, 2, 1);
        order.fail_epoch = Some(2);
        let options = LoaderOptions {
            workers,
            epochs: Some(4),
            ..LoaderOptions::new(4)
        };
        let mut loader =
            Loader::new(Arc::new(ToySource::new(20, 4)), Arc::new(order), quiet(options)).unwrap();
        let (delivered, error) = until_error(&mut loader);
        assert_eq!(delivered, 10, "two epochs");
        let text = error.to_string();
        assert!(
            text.starts_with("building epoch 2 panicked: ") && text.contains("toy order panics"),
            "{text}"
        );
    }
}
