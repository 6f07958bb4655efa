//! Megatron data on the command line: what is refused before anything is written, and messages that say what to change.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use ceteris_loader::prepare::PrepareError;
use ceteris_loader::prepare::tokenize::{Target, TokenizeOptions, tokenize};
use ceteris_loader::source::megatron::{bin_path, idx_path};
use ceteris_loader::source::megatron_idx::TokenType;
use ceteris_loader::source::megatron_writer::{IndexedWriter, write_index};

use super::{line, loader, root};

const U16: &str = "tests/golden/megatron/u16/data";

/// Files in a folder, by name.
fn listed(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let mut names: Vec<String> = entries
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    names.sort();
    names
}

/// `n` documents of 8 tokens.
fn dataset(prefix: &Path, n: i32) {
    let mut writer = IndexedWriter::create(prefix, TokenType::U16, false).expect("a writer");
    for document in 0..n {
        let tokens: Vec<i32> = (0..8).map(|i| 8 * document + i).collect();
        writer.add_document(&tokens).expect("written");
    }
    writer.finish().expect("written");
}

#[test]
fn options_of_the_other_direction_are_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let out = dir.path().join("out").display().to_string();
    for (words, named) in [
        (
            format!("--data-path {U16} --vocab-size 50"),
            "--vocab-size is for --cache-dir",
        ),
        (
            format!("--data-path {U16} --append-eod 5"),
            "--append-eod is for --cache-dir",
        ),
        (
            format!("--data-path {U16} --column text"),
            "--column is for --cache-dir",
        ),
        (
            format!("--data-path {U16} --split train"),
            "--split is for --cache-dir",
        ),
        (
            "--cache-dir tests/data/shakespeare --vocab-size 4096 --documents".to_owned(),
            "--documents is for --data-path",
        ),
    ] {
        let error = line(&format!("prepare convert {words} --out {out}")).refused();
        assert!(
            error.contains(named) && error.contains("fix: leave"),
            "{words}: {error}"
        );
        assert!(listed(dir.path()).is_empty(), "{words}");
    }
}

#[test]
fn end_tokens_and_vocabularies_that_do_not_fit_are_refused_at_once() {
    let dir = tempfile::tempdir().expect("a folder");
    let out = dir.path().join("out").display().to_string();
    let convert = "convert --cache-dir tests/data/shakespeare";
    let tokenize =
        "tokenize --input tests/golden/text/speeches.parquet --tokenizer tests/golden/text --format megatron";
    for (words, named) in [
        (
            format!("{convert} --vocab-size 4096 --append-eod 4096"),
            "ids 0 to 4095",
        ),
        (
            format!("{convert} --vocab-size 4096 --append-eod -1"),
            "ids 0 to 4095",
        ),
        (format!("{convert} --vocab-size 0"), "from 1 to 2147483648"),
        (format!("{convert} --vocab-size -1"), "from 1 to 2147483648"),
        (
            format!("{tokenize} --append-eod 123456"),
            "--append-eod 123456 lies outside",
        ),
        (
            format!("{tokenize} --append-eod -3"),
            "--append-eod -3 lies outside",
        ),
        (format!("{tokenize} --append-eod <none>"), "no token \"<none>\""),
        (format!("{tokenize} --vocab-size -1"), "from 1 to 2147483648"),
    ] {
        let error = line(&format!("prepare {words} --out {out}")).refused();
        assert!(error.contains(named), "{words}: {error}");
        assert!(listed(dir.path()).is_empty(), "{words}");
    }
    // One that the model's vocabulary has is taken.
    line(&format!(
        "prepare {tokenize} --vocab-size 200000 --append-eod 123456 --out {out}"
    ))
    .ok();
}

#[test]
fn a_conversion_that_fails_leaves_nothing() {
    let dir = tempfile::tempdir().expect("a folder");
    let floats = dir.path().join("floats");
    std::fs::write(bin_path(&floats), 1.5f32.to_le_bytes().repeat(8)).expect("written");
    let mut index = Vec::new();
    write_index(&mut index, TokenType::F32, &[8], &[0, 1], None).expect("written");
    std::fs::write(idx_path(&floats), index).expect("written");
    let out = dir.path().join("out").display().to_string();
    let floats = floats.display().to_string();
    let error = loader(["prepare", "convert", "--data-path", &floats, "--out", &out]).refused();
    assert!(error.contains("dtype is float32"), "{error}");

    // An id that no row can hold is met when half of the folder is written.
    let wide = dir.path().join("wide");
    let mut bytes: Vec<u8> = (0..4000i64).flat_map(i64::to_le_bytes).collect();
    let at = bytes.len() - 8;
    bytes[at..].copy_from_slice(&(1i64 << 40).to_le_bytes());
    std::fs::write(bin_path(&wide), bytes).expect("written");
    let mut index = Vec::new();
    let bounds: Vec<u64> = (0..=2000).collect();
    write_index(&mut index, TokenType::I64, &[2; 2000], &bounds, None).expect("written");
    std::fs::write(idx_path(&wide), index).expect("written");
    let wide = wide.display().to_string();
    let error = loader(["prepare", "convert", "--data-path", &wide, "--out", &out]).refused();
    assert!(error.contains("1099511627776"), "{error}");
    assert_eq!(
        listed(dir.path()),
        ["floats.bin", "floats.idx", "wide.bin", "wide.idx"]
    );
}

#[test]
fn a_bad_source_is_found_before_the_first_index_is_cached() {
    let dir = tempfile::tempdir().expect("a folder");
    let at = |name: &str| dir.path().join(name);
    let cache = at("cache").display().to_string();
    for name in ["good", "short", "pointers"] {
        dataset(&at(name), 20);
    }
    let tokens = std::fs::read(bin_path(&at("short"))).expect("read");
    std::fs::write(bin_path(&at("short")), &tokens[..tokens.len() - 1]).expect("written");
    // The second pointer, behind header and lengths, which only a whole check reads.
    let mut index = std::fs::read(idx_path(&at("pointers"))).expect("read");
    let pointer = 9 + 8 + 1 + 8 + 8 + 4 * 20 + 8;
    index[pointer..pointer + 8].copy_from_slice(&u64::MAX.to_le_bytes());
    std::fs::write(idx_path(&at("pointers")), index).expect("written");
    for bad in ["short", "pointers"] {
        for paths in [
            vec!["--split", "90,10,0", "--data-path", "good", bad],
            vec!["--train-data-path", "good", "--valid-data-path", bad],
        ] {
            let paths = paths.iter().map(|word| match *word {
                name if name.starts_with("--") || name.contains(',') => name.to_owned(),
                name => at(name).display().to_string(),
            });
            let words = "index build --seq-length 4 --seed 1 --data-cache-path".split(' ');
            let words: Vec<String> = words
                .map(str::to_owned)
                .chain([cache.clone()])
                .chain(paths)
                .collect();
            let error = loader(&words).refused();
            assert!(error.contains(bad), "{error}");
            assert!(
                !Path::new(&cache).exists(),
                "{bad}: {:?}",
                listed(Path::new(&cache))
            );
        }
    }
}

#[test]
fn a_random_sampler_without_sharding_gives_the_steps_that_are_defined() {
    let dir = tempfile::tempdir().expect("a folder");
    // 7 samples over 3 ranks: rank 0 has a batch more than the others in an epoch.
    let prefix = dir.path().join("seven");
    dataset(&prefix, 7);
    let run = format!(
        "--order megatron-random --data-path {} --split 100,0,0 --seq-length 8 --add-extra-token-to-sequence=false --seed 3 \
         --data-sharding=false --world-size 3 --format jsonl --emit rows",
        prefix.display()
    );
    assert_eq!(
        line(&run).json_lines().len(),
        2 * 3,
        "two micro-steps of three ranks"
    );
    let error = line(&format!("{run} --epoch 1")).refused();
    assert!(error.contains("epoch 1 does not exist"), "{error}");
    let error = line(&format!("{run} --epochs 2")).refused();
    assert!(error.contains("epoch 1 does not exist"), "{error}");

    // A resumed run goes on with the batches it would have had: the message names them.
    let sharded = run.replace("--data-sharding=false", "--data-sharding=true");
    let error = line(&format!("{sharded} --consumed-samples 9")).refused();
    assert!(error.contains("--epoch 1 --steps 1.."), "{error}");
    assert_eq!(
        line(&format!("{sharded} --epoch 1 --steps 1.."))
            .json_lines()
            .len(),
        3
    );
    let error = line(&format!("{sharded} --consumed-samples 4")).refused();
    assert!(error.contains("fix: give the --world-size"), "{error}");
    assert_eq!(
        line(&format!("{sharded} --consumed-samples 0"))
            .json_lines()
            .len(),
        6
    );
}

#[test]
fn messages_say_what_to_change() {
    let run = |rest: &str| {
        line(&format!(
            "--seq-length 16 --seed 1 --split 100,0,0 --emit rows --format jsonl {rest}"
        ))
        .refused()
    };
    let one = format!("--data-path {U16}");
    for (rest, named) in [
        (
            format!("--order megatron {one} --samples 10 --world-size 1000000"),
            "--drop-last=false",
        ),
        (
            format!("--order megatron {one} --consumed-samples 100000000"),
            "fix: give a smaller --consumed-samples",
        ),
        (
            format!("--order megatron-random {one} --world-size 100000000"),
            "fix: use a smaller --world-size",
        ),
        (
            format!("--order megatron --samples 10 --data-path 1e308 {U16} 1e308 {U16}"),
            "sum of the weights overflows",
        ),
        (
            format!("--order megatron --samples 10 --data-path 0.5 {U16} 0.5"),
            "a weight without a path",
        ),
    ] {
        let error = run(&rest);
        assert!(error.contains(named), "{rest}: {error}");
    }
}

/// A request to stop is heeded within a file and within a unit of work, not only between them.
#[test]
fn preparing_stops_inside_long_loops() {
    let dir = tempfile::tempdir().expect("a folder");
    let text = dir.path().join("text.jsonl");
    // What is not the text makes the file longer than one read, and costs nothing to tokenize.
    let document = serde_json::json!({"text": "To be, or not to be", "note": "-".repeat(200)});
    std::fs::write(&text, format!("{document}\n").repeat(20_000)).expect("written");
    let options = |name: &str| TokenizeOptions {
        inputs: vec![text.clone()],
        text_column: "text".to_owned(),
        tokenizer: root().join("tests/golden/text"),
        special_tokens: true,
        out: dir.path().join(name),
        target: Target::Rows {
            seq_length: 16,
            seed: None,
            num_proc: 1,
            batch_size: 1000,
        },
        memory: 1 << 30,
        overwrite: false,
        restart: false,
    };
    let stop_at = |stage: &'static str, upto: u64, options: &TokenizeOptions| {
        let seen = AtomicU64::new(0);
        let result = tokenize(options, &|now, done, _| {
            if now != stage {
                return true;
            }
            seen.fetch_max(done, Ordering::Relaxed);
            done < upto
        });
        assert!(
            matches!(result, Err(PrepareError::Stopped)),
            "{stage}: {result:?}"
        );
        seen.into_inner()
    };
    let bytes = std::fs::metadata(&text).expect("there").len();
    let reading = options("reading");
    assert!(stop_at("reading", 1, &reading) < bytes * 9 / 10);
    // All documents are one unit.
    assert!(stop_at("tokenizing", 2_000, &reading) < 10_000);
    let whole = tokenize(&reading, &|_, _, _| true).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(whole.counts.documents, 20_000);
    let left: Vec<PathBuf> = std::fs::read_dir(dir.path())
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.display().to_string().contains("partial"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}
