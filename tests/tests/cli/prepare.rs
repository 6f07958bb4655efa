//! `loader prepare`: there and back again, killed and gone on with, and what is refused.

use std::path::Path;

use ceteris_loader::source::megatron::{Check, IndexedDataset};
use ceteris_loader::source::{HfSource, Source, SourceOptions};

use super::{command, loader, root};

fn rows(source: &dyn Source) -> Vec<Vec<i32>> {
    (0..source.num_samples())
        .map(|id| {
            let mut tokens = vec![0; source.sample_len(id).expect("a length")];
            source.read(id, &mut tokens).expect("a row");
            tokens
        })
        .collect()
}

fn saved(folder: &Path) -> Vec<Vec<i32>> {
    rows(&HfSource::open(folder, &SourceOptions::default()).unwrap_or_else(|e| panic!("{e}")))
}

/// Rows of equal and of different lengths, none and one token among them, are the same after both conversions.
#[test]
fn hugging_face_to_megatron_and_back_is_the_same() {
    let dir = tempfile::tempdir().expect("a folder");
    let folders = [
        ("tests/data/shakespeare", "4096"),
        ("tests/data/shakespeare", "65500"),
        ("tests/golden/hf/ragged_list_int32_4shards", "100000"),
    ];
    for (i, (folder, vocab_size)) in folders.into_iter().enumerate() {
        let at = |name: &str| dir.path().join(format!("{name}{i}"));
        let (there, back) = (
            at("there").display().to_string(),
            at("back").display().to_string(),
        );
        loader([
            "prepare",
            "convert",
            "--cache-dir",
            folder,
            "--vocab-size",
            vocab_size,
            "--out",
            &there,
        ])
        .ok();
        loader(["prepare", "convert", "--data-path", &there, "--out", &back]).ok();
        let before = saved(&root().join(folder));
        assert_eq!(saved(&at("back")), before, "{folder}");
        let stored = IndexedDataset::open(&at("there"), Check::Full).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(stored.index().num_documents(), before.len() as u64);
        assert_eq!(
            stored.index().token_type().size(),
            if vocab_size == "4096" { 2 } else { 4 }
        );
        assert_eq!(rows(&stored), before, "{folder}");
    }
}

/// Whatever moment it is killed at, the same command ends with the same files.
#[test]
fn a_killed_tokenization_goes_on() {
    let dir = tempfile::tempdir().expect("a folder");
    let at = |name: &str| dir.path().join(name);
    let page = std::fs::read_to_string(root().join("docs/sources.md")).expect("docs/sources.md");
    let lines = page
        .lines()
        .map(|line| format!("{}\n", serde_json::json!({"text": line})));
    let text = at("text.jsonl");
    std::fs::write(&text, lines.collect::<String>().repeat(8)).expect("written");
    let text = text.display().to_string();
    let arguments = |out: &Path, extra: &[&str]| {
        let mut words: Vec<String> = [
            "prepare",
            "tokenize",
            "--input",
            text.as_str(),
            "--tokenizer",
            "tests/golden/text",
        ]
        .map(str::to_owned)
        .to_vec();
        words.extend(extra.iter().map(|word| (*word).to_owned()));
        words.extend(["--out".to_owned(), out.display().to_string()]);
        words
    };
    let forms: [(&str, &[&str]); 2] = [
        (
            "rows",
            &[
                "--seq-length",
                "128",
                "--seed",
                "42",
                "--num-proc",
                "4",
                "--batch-size",
                "64",
            ],
        ),
        ("megatron", &["--format", "megatron", "--append-eod", "</s>"]),
    ];
    for (name, extra) in forms {
        let whole = at(name);
        loader(arguments(&whole, extra)).ok();
        for millis in [30, 120, 350] {
            let out = at(&format!("{name}{millis}"));
            let mut child = command()
                .args(arguments(&out, extra))
                .spawn()
                .expect("the binary runs");
            std::thread::sleep(std::time::Duration::from_millis(millis));
            // It may have ended by then; after that there is nothing to go on with.
            let killed = child.try_wait().expect("a status").is_none();
            let _ = child.kill();
            child.wait().expect("it ends");
            if killed {
                let ran = loader(arguments(&out, extra));
                // Killed after the last rename: the output is whole, and a second run refuses to replace it.
                if ran.code != Some(0) {
                    assert!(ran.stderr.contains("exists"), "{}", ran.stderr);
                }
            }
            if name == "rows" {
                assert_eq!(saved(&out), saved(&whole), "{millis} ms");
            } else {
                for end in ["bin", "idx"] {
                    let read = |path: &Path| std::fs::read(path.with_extension(end)).expect("written");
                    assert_eq!(read(&out), read(&whole), "{millis} ms");
                }
            }
        }
    }
}

#[test]
fn what_cannot_be_prepared_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let out = dir.path().join("out").display().to_string();
    let cases: [(&str, &str); 6] = [
        (
            "convert --cache-dir tests/data/shakespeare --vocab-size 100",
            "0 to 99",
        ),
        ("convert --cache-dir tests/data/none --vocab-size 4096", "none"),
        ("convert --data-path tests/golden/megatron/none/data", "none"),
        (
            "tokenize --input tests/golden/text/speeches.parquet --tokenizer tests/golden/text --seq-length 8 --text-column body",
            "body",
        ),
        (
            "tokenize --input README.md --tokenizer tests/golden/text --seq-length 8",
            "README.md",
        ),
        (
            "merge --data-path tests/golden/megatron/u16/data tests/golden/megatron/i32/data",
            "int32",
        ),
    ];
    for (words, named) in cases {
        let words = format!("prepare {words} --out {out}");
        let error = loader(words.split_whitespace()).refused();
        assert!(error.contains(named), "{words}: {error}");
        for end in ["", ".bin", ".idx", ".partial"] {
            assert!(
                !Path::new(&format!("{out}{end}")).exists(),
                "{words}: nothing partial is left"
            );
        }
    }
}
