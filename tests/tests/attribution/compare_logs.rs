//! Readers of `trainer compare`: every kind of log, as programs write it and as it should not be.

use serde_json::{Value, json};

use super::compare::{Files, compare, refused, report};

/// The points of a log, read by comparing it with itself.
fn read(path: &str, words: &[&str]) -> Value {
    let (_, found) = report(&[&[path, path], words].concat());
    found
}

/// Steps and losses of a log.
fn losses(path: &str, words: &[&str]) -> Vec<(u64, f64)> {
    read(path, words)["against"][0]["series"]
        .as_array()
        .unwrap()
        .iter()
        .map(|place| {
            (
                place["at"].as_u64().unwrap(),
                place["a"].as_f64().unwrap_or(f64::NAN),
            )
        })
        .collect()
}

fn metrics(step: u64, loss: &str) -> String {
    format!(
        "{{\"step\":{step},\"epoch\":0,\"loss\":{loss},\"grad_norm\":1.5,\"lr\":0.001,\"tokens\":{},\"counted_tokens\":9,\
         \"tokens_per_s\":500.0,\"tflops_per_s\":0.25,\"step_s\":0.5,\"stall_ms\":0.0,\"batch_fingerprint\":\"ab\"}}\n",
        step * 256
    )
}

#[test]
fn our_own_metrics_by_file_and_by_folder() {
    let files = Files::new();
    std::fs::create_dir(files.path("run")).unwrap();
    let eval = "{\"step\":2,\"eval_loss\":3.5,\"eval_tokens\":10,\"eval_s\":0.1}\n";
    let text = format!(
        "{}{}{eval}{}",
        metrics(1, "5.25"),
        metrics(2, "4.5"),
        metrics(3, "null")
    );
    let file = files.put("run/metrics.jsonl", &text);
    let folder = files.path("run").display().to_string();
    assert_eq!(losses(&folder, &[])[..2], [(1, 5.25), (2, 4.5)]);
    let found = read(&folder, &[]);
    let run = &found["runs"][0];
    assert_eq!(
        (&run["kind"], &run["name"], &run["records"]),
        (&json!("metrics"), &json!("A run"), &json!(3))
    );
    assert_eq!(
        (
            &run["throughput"]["step_s"],
            &run["throughput"]["tokens_per_s"],
            &run["throughput"]["tflops_per_s"]
        ),
        (&json!(0.5), &json!(500.0), &json!(0.25))
    );
    // A run that is still going on: half a line at the end is left out, and said.
    files.put("run/metrics.jsonl", &format!("{text}{{\"step\":4,\"lo"));
    assert_eq!(losses(&file, &[]).len(), 3);
    assert!(
        read(&file, &[])["notes"][0]
            .as_str()
            .unwrap()
            .contains("line 5, the last, is not whole")
    );
    // Anywhere else it is an error with its line and field.
    for (line, words) in [
        ("{\"step\":4,\"lo\n", "line 5: line: not JSON"),
        ("{\"step\":4}\n", "line 5: loss: is missing"),
        ("{\"loss\":4.0}\n", "line 5: step: is missing"),
        (
            "{\"step\":-4,\"loss\":4.0}\n",
            "line 5: step: not a whole number: -4",
        ),
        (
            "{\"step\":4,\"loss\":\"x\"}\n",
            "line 5: loss: not a number: \"x\"",
        ),
        ("[]\n", "line 5: line: not a JSON object"),
    ] {
        files.put("run/metrics.jsonl", &format!("{text}{line}"));
        let error = refused(&[&file, &file]);
        assert!(
            error.contains(words) && error.contains("metrics.jsonl"),
            "{line}: {error}"
        );
    }
    std::fs::remove_file(files.path("run/metrics.jsonl")).unwrap();
    assert!(refused(&[&folder, &folder]).contains("a folder without metrics.jsonl or trainer_state.json"));
}

#[test]
fn the_line_that_a_run_writes_reads_back() {
    let files = Files::new();
    let line = ceteris_trainer::run::metrics::StepMetrics {
        step: 1,
        epoch: 0,
        loss: 5.5,
        grad_norm: 1.0,
        lr: 0.1,
        tokens: 64,
        counted_tokens: 60,
        tokens_per_s: 10.0,
        tflops_per_s: 0.1,
        step_s: 0.25,
        stall_ms: 0.0,
        batch_fingerprint: "00ff".to_owned(),
    };
    let path = files.put(
        "metrics.jsonl",
        &format!("{}\n", serde_json::to_string(&line).unwrap()),
    );
    let curve = ceteris_trainer::compare::curve::read(path.as_ref(), &Default::default()).unwrap();
    let point = &curve.points[0];
    assert_eq!((point.step, point.tokens, point.loss), (1, Some(64), 5.5));
    assert_eq!(
        (point.grad_norm, point.lr, point.step_s),
        (Some(1.0), Some(0.1), Some(0.25))
    );
    assert_eq!(point.batch_fingerprint.as_deref(), Some("00ff"));
}

/// Recorded by `tests/scripts/hf_trainer_logs.py` with transformers 5.24.0.
#[test]
fn one_run_of_the_trainer_reads_the_same_whichever_way_it_was_logged() {
    let log = |how: &str| format!("tests/data/logs/hf_trainer.{how}");
    let exact = losses(&log("state.json"), &[]);
    let steps: Vec<u64> = exact.iter().map(|(step, _)| *step).collect();
    assert_eq!(steps, [1, 3, 6, 9, 12]);
    assert!((exact[4].1 - 1.507_168_134_053_548).abs() < 1e-15);
    // On the console there are four digits of them, and no steps.
    let every = ["--logging-steps", "3"];
    for (how, words) in [
        ("bar.log", &[][..]),
        ("tokens.log", &[][..]),
        ("plain.log", &every[..]),
    ] {
        let found = losses(&log(how), words);
        assert_eq!(
            found.iter().map(|(step, _)| *step).collect::<Vec<_>>(),
            steps,
            "{how}"
        );
        for ((_, printed), (_, exact)) in found.iter().zip(&exact) {
            assert!((printed - exact).abs() < 5.1e-4, "{how}: {printed} {exact}");
        }
    }
    let found = read(&log("tokens.log"), &["--skip-steps", "9"]);
    let run = &found["runs"][0];
    assert_eq!(run["throughput"]["tokens_per_s"], 592.6);
    // 0.324 − 0.2847 seconds for three steps.
    let step_s = run["throughput"]["step_s"].as_f64().unwrap();
    assert!((step_s - 0.0131).abs() < 1e-9, "{step_s}");
    let (_, by_tokens) = report(&[&log("tokens.log"), &log("tokens.log"), "--align", "tokens"]);
    assert_eq!(by_tokens["against"][0]["series"][4]["at"], 192);
}

#[test]
fn records_without_steps_are_counted_or_told() {
    let files = Files::new();
    let record = |loss: &str, epoch: &str| {
        format!("{{'loss': '{loss}', 'grad_norm': '1.2', 'learning_rate': '0.0003', 'epoch': '{epoch}'}}\n")
    };
    let text: String = [("8.31", "0.0002"), ("7.5", "0.02"), ("6.125", "0.04")]
        .map(|(loss, epoch)| record(loss, epoch))
        .concat();
    let path = files.put("a.log", &text);
    assert_eq!(losses(&path, &[]), [(1, 8.31), (2, 7.5), (3, 6.125)]);
    let note = read(&path, &[])["notes"][0].as_str().unwrap().to_owned();
    assert!(
        note.contains("one record taken for one step (--logging-steps N otherwise)"),
        "{note}"
    );
    // The first record's epoch tells that it is of one step.
    assert_eq!(
        losses(&path, &["--logging-steps", "100"]),
        [(1, 8.31), (100, 7.5), (200, 6.125)]
    );
    let even = files.put("b.log", &[record("8", "0.02"), record("7", "0.04")].concat());
    assert_eq!(
        losses(&even, &["--logging-steps", "100"]),
        [(100, 8.0), (200, 7.0)]
    );
    // Losses are printed as they are logged.
    let ran = compare(&[&path, &path]);
    assert!(
        ran.stdout.contains("| 1         |     8.31 |     8.31 | +0.00 |"),
        "{}",
        ran.stdout
    );
    // A progress bar redrawn after each record counts its steps.
    let bar = |n: u64| format!("\r  {n}%|▏         | {n}/100 [00:{n:02}<01:00,  1.00s/it]");
    let text = format!(
        "Map: 100%|██████████| 9/9 [00:00<00:00, 9.00 examples/s]\n{}\r{}{}\r{}{}\n{{'eval_loss': '5.0', 'epoch':          '1'}}\n{}{}{{'train_runtime': '60', 'train_samples_per_second': '1', 'train_steps_per_second': '1.667',          'train_loss': '6', 'epoch': '1'}}\n",
        bar(4),
        record("8", "0.1"),
        bar(5),
        record("7", "0.2"),
        bar(20),
        "  0%|          | 0/7 [00:00<?, ?it/s]\r",
        bar(100),
    );
    let path = files.put("c.log", &text);
    assert_eq!(losses(&path, &[]), [(5, 8.0), (20, 7.0)]);
    let found = read(&path, &["--tokens-per-step", "1200", "--devices", "2"]);
    let rates = &found["runs"][0]["throughput"];
    // 60 seconds for the bar's 100 steps, of 1200 tokens, on two devices.
    assert_eq!(
        (
            &rates["step_s"],
            &rates["run_s"],
            &rates["tokens_per_s"],
            &rates["step_s_is_mean_of_run"]
        ),
        (&json!(0.6), &json!(60.0), &json!(1000.0), &json!(true))
    );
    for (text, words) in [
        (
            "{'loss': '8.31', 'epoch': '1'}\n{'loss': 'high', 'epoch': '1'}\n",
            "line 2: loss: not a number: \"high\"",
        ),
        (
            "{'loss': 8.31}\n{'loss': 8.3, 'grad_norm': [1]}\n",
            "line 2: grad_norm: not a number: a list",
        ),
        ("{'loss': 8.31}\n{'loss': 8.3, 'epoch'\n", "line 2: record:"),
        ("{'loss': 8.31, 'step': 1.5}\n", "line 1: step: not a count: 1.5"),
    ] {
        let path = files.put("wrong.log", text);
        let error = refused(&[&path, &path]);
        assert!(
            error.contains(words) && error.contains("wrong.log"),
            "{text}: {error}"
        );
    }
}

#[test]
fn fla_s_own_log_of_lines() {
    let files = Files::new();
    let text = "{\"current_steps\": 32, \"total_steps\": 64, \"loss\": 80.5, \"eval_loss\": null, \"learning_rate\": 0.0003}\n\
                {\"current_steps\": 64, \"total_steps\": 64, \"loss\": 72.0, \"eval_loss\": null, \"learning_rate\": 0.0002}\n\
                {\"current_steps\": 64, \"total_steps\": 64, \"loss\": null, \"eval_loss\": null}\n";
    let path = files.put("trainer_log.jsonl", text);
    assert_eq!(
        losses(&path, &["--loss-divisor", "8"]),
        [(32, 10.0625), (64, 9.0)]
    );
    assert_eq!(read(&path, &[])["runs"][0]["kind"], "hf-console");
}

#[test]
fn trainer_state_with_what_python_calls_json() {
    let files = Files::new();
    let state = |history: &str| {
        format!(
            "{{\n  \"epoch\": 1.0,\n  \"global_step\": 30,\n  \"log_history\": [{history}],\n  \"max_steps\": 30\n}}\n"
        )
    };
    let text = state(
        "{\"epoch\": 0.1, \"grad_norm\": NaN, \"learning_rate\": 0.1, \"loss\": 11.965400695800781, \"step\": 10}, \
         {\"eval_loss\": 9.0, \"step\": 10}, {\"loss\": Infinity, \"step\": 20}, \
         {\"loss\": 3.5, \"step\": 30, \"num_input_tokens_seen\": 3000, \"train_runtime\": 12.0, \"train_tokens_per_second\": 250.0}, \
         {\"step\": 30, \"train_loss\": 5.0, \"train_runtime\": 15.0, \"train_steps_per_second\": 2.0}",
    );
    std::fs::create_dir(files.path("run")).unwrap();
    files.put("run/trainer_state.json", &text);
    let folder = files.path("run").display().to_string();
    let found = read(&folder, &["--devices", "2"]);
    assert_eq!(found["runs"][0]["kind"], "hf-state");
    assert_eq!(found["table"][0]["losses"][0], 11.965_400_695_800_781);
    assert_eq!(found["table"][1]["losses"][0], Value::Null);
    assert_eq!(found["runs"][0]["throughput"]["tokens_per_s"], 125.0);
    assert_eq!(found["runs"][0]["throughput"]["step_s"], 0.5);
    // A table prints four decimals of a log that has all.
    assert!(compare(&[&folder, &folder]).stdout.contains(" 11.9654 |"));
    for (text, words) in [
        (state("{\"loss\": 1.0}"), "line 1: log_history: step: is missing"),
        (
            state("{\"loss\": 1.0, \"step\": 1}, {\"loss\": {}, \"step\": 2}"),
            "line 2: log_history: loss: not a number",
        ),
        (state("{\"loss\": 1.0, \"step\": 1"), "not JSON"),
        (state(""), "no loss found in this hf-state log"),
        ("{\n\"a\": 1}".to_owned(), "no list \"log_history\""),
    ] {
        let path = files.put("trainer_state.json", &text);
        let error = refused(&[&path, &path]);
        assert!(
            error.contains(words) && error.contains("trainer_state.json"),
            "{text}: {error}"
        );
    }
}

/// A line as Megatron prints it.
fn iteration(step: u64, loss: &str) -> String {
    format!(
        " [2026-05-12 10:00:00] iteration {step:8}/     100 | consumed samples: {:12} | elapsed time per iteration (ms): 250.0 \
         | learning rate: 1.000000E-04 | global batch size:     4 | lm loss: {loss} | loss scale: 1.0 | grad norm: 1.000 |\n",
        step * 4
    )
}

#[test]
fn megatron_with_its_variants() {
    let files = Files::new();
    let variants = [
        // Fields with a mean behind the value, and Megatron 26.5's names.
        "iteration 1/ 9 | elapsed time per iteration (ms): 2000.0/2500.0 | throughput per GPU (TFLOP/s/GPU): 346.3/340.8 | \
         tokens/s/GPU inst/harmonic mean: 20502.6/20151.0 | lm loss: 1.192253E+01 | grad norm: 3.5 |",
        "iteration 2/ 9 | elapsed time per iteration (ms): 2000.0 | compute per GPU (TFLOP/s/GPU): 346.3 (avg 615.5) | tokens \
         per GPU (tokens/s/GPU): 20502.6 | lm loss: 1.1E+01 |",
        // Behind ranks and colours; Megatron-DeepSpeed; a carriage return at the end.
        "\u{1b}[1m[rank7]\u{1b}[0m: [x.py:25] : iteration 3/ 9 | consumed samples: 12 | consumed tokens: 24576 | elapsed time per \
         iteration (ms): 2000.0 | lm loss: 1.0E+01 | TFLOPs: 346.3 |\r",
        " validation loss at iteration 3 | lm loss value: 2.0E+00 | lm loss PPL: 7.0E+00 |",
        "iteration 4/ 9 | number of skipped iterations: 1 | number of nan iterations: 0 |",
        "iteration 5/ 9 | loss: 9.5E+00 |",
    ];
    let path = files.put("a.log", &variants.join("\n"));
    assert_eq!(
        losses(&path, &[]),
        [(1, 11.92253), (2, 11.0), (3, 10.0), (5, 9.5)]
    );
    let found = read(&path, &["--skip-steps", "0"]);
    assert_eq!(found["runs"][0]["kind"], "megatron");
    let rates = &found["runs"][0]["throughput"];
    assert_eq!(
        (&rates["step_s"], &rates["tflops_per_s"], &rates["tokens_per_s"]),
        (&json!(2.0), &json!(346.3), &json!(20502.6))
    );
    let notes = found["notes"].to_string();
    assert!(
        notes.contains("1 iterations are logged without lm loss, first 4"),
        "{notes}"
    );
    assert!(compare(&[&path, &path]).stdout.contains(" 11.9225 |"));
    // The argument dump gives tokens and devices.
    let dump = "  seq_length ...................................... 2048\n  world_size ...................................... 2\n";
    let path = files.put(
        "b.log",
        &format!("{dump}{}{}", iteration(1, "9.0"), iteration(2, "8.0")),
    );
    let found = read(&path, &["--align", "tokens"]);
    assert_eq!(found["against"][0]["series"][1]["at"], 2 * 4 * 2048);
    assert_eq!(
        found["runs"][0]["throughput"]["tokens_per_s"],
        4.0 * 2048.0 / 0.25 / 2.0
    );
    for (line, words) in [
        (iteration(3, "high"), "line 2: lm loss: not a number: \"high\""),
        (
            iteration(3, "1.0").replace("250.0", "fast"),
            "line 2: elapsed time per iteration (ms): not a number: \"fast\"",
        ),
        (
            iteration(3, "1.0").replace("12 |", "few |"),
            "line 2: consumed samples: not a whole number: \"few\"",
        ),
        (
            iteration(3, "1.0").replace("       3/", "99999999999999999999999/"),
            "line 2: iteration: not a step",
        ),
    ] {
        let path = files.put("wrong.log", &format!("{}{line}", iteration(1, "9.0")));
        let error = refused(&[&path, &path]);
        assert!(
            error.contains(words) && error.contains("wrong.log"),
            "{line}: {error}"
        );
    }
}

#[test]
fn of_a_resumed_run_the_later_record_counts() {
    let files = Files::new();
    let steps = [
        (1, "9.0"),
        (2, "8.0"),
        (3, "7.0"),
        (2, "8.5"),
        (3, "7.5"),
        (4, "6.0"),
    ];
    let text: String = steps.iter().map(|(step, loss)| iteration(*step, loss)).collect();
    let path = files.put("a.log", &text);
    assert_eq!(losses(&path, &[]), [(1, 9.0), (2, 8.5), (3, 7.5), (4, 6.0)]);
    let notes = read(&path, &[])["notes"].to_string();
    assert!(
        notes.contains("2 steps (2 to 3) are logged more than once"),
        "{notes}"
    );
    // The same line from several ranks is no second run.
    let path = files.put(
        "b.log",
        &[iteration(1, "9.0"), iteration(1, "9.0"), iteration(2, "8.0")].concat(),
    );
    assert_eq!(losses(&path, &[]), [(1, 9.0), (2, 8.0)]);
    assert_eq!(read(&path, &[])["notes"], json!([]));
    let path = files.curve("c.csv", [(3, 1.0), (1, 3.0), (2, 2.0)]);
    assert_eq!(losses(&path, &[]), [(1, 3.0), (2, 2.0), (3, 1.0)]);
    assert!(
        read(&path, &[])["notes"]
            .to_string()
            .contains("steps go back 1 times in the file: sorted")
    );
}

#[test]
fn tables_of_any_separator() {
    let files = Files::new();
    for text in [
        "step,loss,lr\n1,3.5,0.1\n2,3.25,0.1\n",
        "# exported\nIteration\tLM loss\n1\t3.5\n2\t3.25\n",
        "\u{feff}\"Step\";\"run; 7 - train/loss\"\n1;3.5\n2;3.25\n",
        "_step,train/loss\r\n1,3.5\r\n,\r\n2,3.25\r\n",
    ] {
        let path = files.put("a.csv", text);
        assert_eq!(losses(&path, &[]), [(1, 3.5), (2, 3.25)], "{text:?}");
        assert_eq!(read(&path, &[])["runs"][0]["kind"], "csv");
    }
    for (text, words) in [
        (
            "step,accuracy\n1,0.5\n",
            "the header lacks a loss column; found: step, accuracy",
        ),
        (
            "time,loss\n1,0.5\n",
            "the header lacks a step (or iteration) column; found: time, loss",
        ),
        ("step,loss\n1,x\n", "line 2: loss: not a number: \"x\""),
        ("step,loss\n1,1\n1.5,2\n", "line 3: step: not a whole number: 1.5"),
        ("step,loss,lr\n1\n", "line 2: loss: the row has 1 of 3 columns"),
        ("step,loss\n,1.0\n", "line 2: step: is missing"),
        ("step,loss\n", "no loss found in this csv log"),
        ("", "is empty"),
        ("hello\nworld\n", "no loss found as any known program logs it"),
    ] {
        let path = files.put("wrong.csv", text);
        let error = refused(&[&path, &path]);
        assert!(
            error.contains(words) && error.contains("wrong.csv"),
            "{text:?}: {error}"
        );
    }
}

#[test]
fn a_kind_can_be_forced_and_lines_are_bounded() {
    let files = Files::new();
    let path = files.put("a.log", &format!("step,loss\n{}", iteration(7, "2.0")));
    let error = refused(&[&path, &path, "--format-of", "A=csv", "--format-of", "B=csv"]);
    assert!(error.contains("line 2: loss:"), "{error}");
    assert_eq!(
        losses(&path, &["--format-of", "A=megatron", "--format-of", "B=megatron"]),
        [(7, 2.0)]
    );
    let path = files.put(
        "long.log",
        &format!("{}{}", iteration(1, "2.0"), "x".repeat(1 << 21)),
    );
    let error = refused(&[&path, &path]);
    assert!(
        error.contains("long.log: line 2: line: longer than 1048576 bytes"),
        "{error}"
    );
}

/// Logs with bytes replaced, left out and repeated are read or refused; what is read can be compared and drawn.
#[test]
fn damaged_logs_never_end_in_a_panic() {
    use ceteris_trainer::compare::comparison::{Options, Run, compare};
    use ceteris_trainer::compare::curve::{LogKind, ReadOptions, read};
    use ceteris_trainer::compare::{align::Axis, html, json, table::Digits, text};

    let files = Files::new();
    let bar = |n: u64| format!("\r  {n}%|▏         | {n}/100 [00:{n:02}<01:00,  1.00s/it]\r");
    let logs = [
        (LogKind::Metrics, [metrics(1, "5.25"), metrics(2, "4.5"), metrics(9, "null")].concat()),
        (
            LogKind::HfConsole,
            format!(
                "{{'loss': '8.5', 'epoch': '0.1', 'x': tensor([1.0])}}\n{}{{'loss': 7.25, 'num_tokens': 9, 'throughput': \
                 2.5}}\n{}{{'train_runtime': 9.5, 'train_steps_per_second': 0.5, 'train_loss': 1}}\n",
                bar(5),
                bar(9)
            ),
        ),
        (
            LogKind::HfState,
            "{\n\"global_step\": 3, \"log_history\": [{\"loss\": 8.5, \"step\": 1, \"train_runtime\": 1.5}, {\"loss\": NaN, \
             \"step\": 3, \"train_runtime\": 2.5}]}"
                .to_owned(),
        ),
        (
            LogKind::Megatron,
            format!(
                "  seq_length ...................... 2048\n{}{}{}",
                iteration(1, "9.0E+00"),
                iteration(2, "8.0"),
                iteration(3, "nan")
            ),
        ),
        (LogKind::Csv, "step,loss,lr,tokens\n1,3.5,0.1,10\n2,\"3.25\",0.2,20\n5,nan,,50\n".to_owned()),
    ];
    let mut state = 7_u64;
    let mut draw = |below: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below.max(1)
    };
    let (mut whole, mut refused) = (0, 0);
    for (kind, log) in &logs {
        for _ in 0..400 {
            let mut bytes = log.clone().into_bytes();
            for _ in 0..=draw(4) {
                if bytes.len() < 2 {
                    break;
                }
                let at = draw(bytes.len());
                match draw(4) {
                    0 => bytes[at] = b"0123456789eE+-.,:|{}[]('\"\n\r\0\xff"[draw(29)],
                    1 => drop(bytes.remove(at)),
                    2 => bytes.truncate(at.max(1)),
                    _ => {
                        let piece = bytes[at..(at + 1 + draw(20)).min(bytes.len())].to_vec();
                        let to = draw(bytes.len());
                        bytes.splice(to..to, piece);
                    }
                }
            }
            let path = files.path("damaged");
            std::fs::write(&path, &bytes).unwrap();
            for kind in [None, Some(*kind)] {
                let options = ReadOptions {
                    kind,
                    ..ReadOptions::default()
                };
                let curve = match read(&path, &options) {
                    Ok(curve) => curve,
                    Err(error) => {
                        assert!(error.to_string().contains("damaged"), "{error}");
                        refused += 1;
                        continue;
                    }
                };
                assert!(curve.points.windows(2).all(|pair| pair[0].step < pair[1].step));
                for axis in [Axis::Steps, Axis::Tokens] {
                    let run = |key: &str| Run {
                        key: key.to_owned(),
                        curve: curve.clone(),
                        repeats: vec![curve.clone()],
                    };
                    let options = Options {
                        axis,
                        tolerance: Some(0.0),
                        ..Options::default()
                    };
                    if let Ok(found) = compare(vec![run("A"), run("B")], &options) {
                        let digits = Digits::default();
                        assert!(!text::text(&found, digits).is_empty());
                        assert!(html::page(&found, digits).ends_with("</html>\n"));
                        assert!(json::report(&found)["against"][0]["places"].is_number());
                        whole += 1;
                    }
                }
            }
        }
    }
    assert!(whole > 500 && refused > 500, "{whole} {refused}");
}
