//! `--config`: a run as a file, and what it refuses.

use super::{Ran, SHAKESPEARE, loader};

fn with_config(text: &str, more: &[&str]) -> Ran {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("run.yaml");
    std::fs::write(&path, text).expect("writes");
    let mut args = vec!["--config", path.to_str().expect("UTF-8")];
    args.extend(more);
    loader(args)
}

fn run_yaml() -> String {
    format!(
        "data:\n  cache_dir: {SHAKESPEARE}\n  seq_length: 128\norder:\n  name: fla\n  seed: 42\nrun:\n  world_size: 8\n  \
         micro_batch_size: 4\n"
    )
}

#[test]
fn a_file_says_what_flags_say() {
    let filed = with_config(&run_yaml(), &[]).ok();
    assert_eq!(filed, super::shakespeare("--world-size 8").ok());
}

#[test]
fn flags_win_over_the_file_and_say_so() {
    let ran = with_config(
        &run_yaml(),
        &["--seed", "7", "--world-size", "2", "--micro-batch-size", "4"],
    );
    assert!(
        ran.stderr
            .contains("note: --seed 7 overrides order.seed = 42 of "),
        "{}",
        ran.stderr
    );
    assert!(
        ran.stderr
            .contains("note: --world-size 2 overrides run.world_size = 8 of "),
        "{}",
        ran.stderr
    );
    assert!(
        !ran.stderr.contains("micro-batch-size"),
        "the same value is no override: {}",
        ran.stderr
    );
    let flags = "--order fla --seed 7 --world-size 2 --micro-batch-size 4 --seq-length 128 --cache-dir";
    let plain = loader(flags.split_whitespace().chain([SHAKESPEARE]));
    assert_eq!(ran.ok(), plain.ok());
}

/// Three mistakes, three different errors, each naming the key and the nearest valid one.
#[test]
fn v16_an_option_that_is_not_used_is_an_error() {
    let replace = |from: &str, to: &str| with_config(&run_yaml().replace(from, to), &[]).refused();
    let misspelt = replace("seed: 42", "sede: 42");
    assert!(
        misspelt.contains("`sede`") && misspelt.contains("did you mean `seed`?"),
        "{misspelt}"
    );
    let foreign = replace("seed: 42", "seed: 42\n  even_batches: true");
    assert!(
        foreign.contains("`even_batches`") && foreign.contains("not of order `fla`"),
        "{foreign}"
    );
    let twice = replace("seed: 42", "seed: 42\n  seed: 42");
    assert!(twice.contains("given twice") && twice.contains("seed"), "{twice}");
    let of_data = replace("seq_length", "seqlength");
    assert!(
        of_data.contains("`data.seqlength`") && of_data.contains("did you mean `seq_length`?"),
        "{of_data}"
    );
    for error in [&misspelt, &foreign, &twice, &of_data] {
        assert!(error.contains("run.yaml"), "names the file: {error}");
    }
    // The same on the command line.
    let flag = with_config(&run_yaml(), &["--even-batches"]).refused();
    assert!(flag.contains("not of order `fla`"), "{flag}");
}

/// Nothing random without a seed that is recorded.
#[test]
fn v25_an_order_without_a_seed_is_refused() {
    let refused = with_config(&run_yaml().replace("  seed: 42\n", ""), &[]).refused();
    assert!(refused.contains("needs a `seed`"), "{refused}");
    let refused = loader(["ids", "--order", "hf-trainer", "--num-samples", "4"]).refused();
    assert!(refused.contains("needs a `seed`"), "{refused}");
}

#[test]
fn a_file_that_is_none_is_refused() {
    let refused = loader(["--config", "no/such.yaml"]).refused();
    assert!(refused.contains("no/such.yaml"), "{refused}");
    for (text, needle) in [
        ("run: {", "run.yaml"),
        ("[1]", "a configuration is a map"),
        ("run: {workers: x}", "`run.workers`"),
    ] {
        let refused = with_config(
            &format!("{text}\n"),
            &["--order", "sequential", "--cache-dir", SHAKESPEARE],
        )
        .refused();
        assert!(refused.contains(needle), "{text}: {refused}");
    }
}
