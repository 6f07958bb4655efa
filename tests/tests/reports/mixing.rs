//! Mixes of datasets: stopping rules, resume with a shuffle buffer, composition known beforehand.

use ceteris_samplers::composition::Composition;
use ceteris_samplers::dataset::{self, DatasetStep};
use ceteris_samplers::iterable::{Source, Stream, StreamState};
use ceteris_samplers::rng::numpy::Generator;
use serde_json::{Value, json};

const RULES: [&str; 3] = [
    "first_exhausted",
    "all_exhausted",
    "all_exhausted_without_replacement",
];

/// Rows of a mix of consecutive sources of these lengths.
fn mix(lengths: &[u64], mut options: Value) -> Vec<u64> {
    let mut start = 0;
    let sources = lengths.iter().map(|len| {
        start += len;
        json!([{"select": {"start": start - len, "stop": start}}])
    });
    options["sources"] = sources.collect();
    let steps: Vec<DatasetStep> = serde_json::from_value(json!([{"interleave": options}])).expect("a step");
    let rows = dataset::apply(&steps, lengths.iter().sum()).expect("the step applies");
    rows.iter().collect()
}

#[test]
fn v27_each_stopping_rule_gives_the_rows_it_says() {
    let elements = [0, 1, 2, 10, 11, 12, 13, 20, 21, 22];
    let want: [&[u64]; 3] = [
        &[0, 10, 20, 1, 11, 21, 2, 12, 22],
        &[0, 10, 20, 1, 11, 21, 2, 12, 22, 0, 13, 20],
        &[0, 10, 20, 1, 11, 21, 2, 12, 22, 13],
    ];
    for (rule, want) in RULES.iter().zip(want) {
        let rows = mix(&[3, 4, 3], json!({"stopping_strategy": rule}));
        let got: Vec<u64> = rows.iter().map(|row| elements[*row as usize]).collect();
        assert_eq!(got, want, "{rule}");
    }
}

#[test]
fn v28_a_buffer_shuffled_stream_resumes_exactly_at_every_row() {
    for buffer_size in [1, 4, 5, 12, 1000] {
        let shard = Source::Shards {
            shards: vec![0..12, 12..12],
            tables: false,
        };
        let source = shard.shuffle(&Generator::default_rng(42), buffer_size, 10);
        let whole = Stream::new(&source)
            .and_then(Stream::rest)
            .expect("the stream runs");
        let mut sorted = whole.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..12).collect::<Vec<u64>>());
        for k in 0..=12 {
            let mut stream = Stream::new(&source).expect("the stream starts");
            let head: Vec<u64> = (0..k)
                .map(|_| stream.next_row().expect("reads").expect("a row"))
                .collect();
            let saved = serde_json::to_string(&stream.state()).expect("the state is JSON");
            let state: StreamState = serde_json::from_str(&saved).expect("the state reads back");
            assert_eq!(state.delivered, k);
            let tail = Stream::resume(&source, &state)
                .and_then(Stream::rest)
                .expect("the stream resumes");
            assert_eq!(
                [head, tail].concat(),
                whole,
                "buffer {buffer_size}, saved after {k}"
            );

            // What was read and not yet given out is in the state: the buffer, and rows on their way.
            let saved: Value = serde_json::from_str(&saved).expect("JSON");
            let buffer = &saved["root"]["buffer"];
            assert!(
                buffer["buffer"].is_array() && buffer["draws"]["words_drawn"].is_u64(),
                "{saved}"
            );
        }
        // A state of another stream is refused.
        let other = Source::Shards {
            shards: std::iter::once(0..12).collect(),
            tables: false,
        };
        let state = Stream::new(&source).expect("the stream starts").state();
        assert!(Stream::resume(&other, &state).is_err());
    }
}

#[test]
fn v29_the_composition_is_known_before_training() {
    let lengths = [10, 100, 1000];
    let global_batch_size = 8;
    for rule in RULES {
        let rows = mix(
            &lengths,
            json!({"probabilities": [0.2, 0.3, 0.5], "seed": 42, "stopping_strategy": rule}),
        );
        let table = Composition::count(rows.iter().copied(), &lengths, Some(1000), global_batch_size)
            .expect("rows of the sources");
        let rows = &rows[..rows.len().min(1000)];
        assert_eq!(table.draws, rows.len() as u64);
        let mut start = 0;
        for (share, len) in table.sources.iter().zip(lengths) {
            // The recount: every row by itself.
            let of_source = |row: &u64| (start..start + len).contains(row);
            let drawn = rows.iter().filter(|row| of_source(row)).count() as u64;
            let repeat = (0..rows.len()).find(|&i| of_source(&rows[i]) && rows[..i].contains(&rows[i]));
            assert_eq!((share.rows, share.drawn), (len, drawn), "{rule}");
            assert_eq!(share.epochs, drawn as f64 / len as f64);
            assert_eq!(share.first_repeat_draw, repeat.map(|i| i as u64), "{rule}");
            assert_eq!(
                share.first_repeat_step,
                repeat.map(|i| i as u64 / global_batch_size)
            );
            start += len;
        }
        let epochs: Vec<f64> = table.sources.iter().map(|s| s.epochs).collect();
        let text = table.to_string();
        match rule {
            "all_exhausted" => {
                assert!(
                    (15.0..25.0).contains(&epochs[0]) && (2.5..3.5).contains(&epochs[1]),
                    "{text}"
                );
                assert!((0.4..0.6).contains(&epochs[2]), "{text}");
                assert!(
                    table.sources[0].first_repeat_step.is_some() && text.contains("step"),
                    "{text}"
                );
            }
            _ => assert!(
                table.sources.iter().all(|s| s.first_repeat_draw.is_none()),
                "{text}"
            ),
        }
        assert!(text.contains(&format!("{:.1}x", epochs[0])), "{text}");
    }
}
