//! Reports about `.bin/.idx` files and what writes them: V34 to V39.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ceteris_loader::index::build::{BuildOptions, build_split};
use ceteris_loader::prepare::tokenize::{EmptyDocuments, Target, TokenizeOptions, tokenize};
use ceteris_loader::source::Source;
use ceteris_loader::source::megatron::{Check, IndexedDataset, bin_path, idx_path};
use ceteris_loader::source::megatron_gpt::GptSource;
use ceteris_loader::source::megatron_idx::TokenType;
use ceteris_loader::source::megatron_writer::{IndexedWriter, merge, write_index};
use ceteris_samplers::orders::split::Split;
use ceteris_tests::golden::sha256_hex;
use ceteris_tests::tokens::row;
use serde_json::{Value, json};

use super::*;

/// huggingface/transformers#2825 and others: ids above 65,535 wrapped when stored in 16 bits.
#[test]
fn v34_ids_are_never_wrapped() {
    let dir = tempfile::tempdir().unwrap();
    let prefix = dir.path().join("data");
    let mut writer = IndexedWriter::create(&prefix, TokenType::U16, false).unwrap();
    writer.add_document(&[1, 65_535]).unwrap();
    let error = writer.add_document(&[7, 8, 65_536]).unwrap_err().to_string();
    assert!(
        error.contains("65536") && error.contains("document 1") && error.contains("position 2"),
        "{error}"
    );
    assert!(writer.add_document(&[-1]).is_err());
    writer.finish().unwrap();
    assert_eq!(row(&open(&prefix), 0).unwrap(), [1, 65_535]);

    // A file that holds an id of no vocabulary stops before the first step.
    write(
        &prefix,
        TokenType::U16,
        &[vec![vec![5, 6, 7, 8, 9]], vec![vec![1, 2, 4_096, 3, 4]]],
    );
    let mut config = whole(&[&prefix], None, 4, 1);
    config.num_samples[0] = Some(2);
    let options = BuildOptions {
        vocab_size: Some(4_096),
        ..BuildOptions::default()
    };
    let built = build_split(&config, Split::Train, &options).unwrap().unwrap();
    let data = built.parts.iter().map(|part| Arc::clone(&part.data)).collect();
    let source = GptSource::new(data, Arc::clone(&built.dataset), 4, true).unwrap();
    let mut errors = (0..source.num_samples()).filter_map(|id| row(&source, id).err());
    let error = errors.next().expect("an id of 4096 is refused");
    for part in ["4096", "document 1", "position 2", "0 to 4095"] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

/// NVIDIA/Megatron-LM PR#604 and others: the width changes at a vocabulary of 65,500.
#[test]
fn v35_the_width_is_megatrons() {
    for (vocabulary, code) in [(65_499, 8), (65_500, 4), (65_535, 4), (65_536, 4)] {
        assert_eq!(TokenType::for_vocab(vocabulary).code(), code, "{vocabulary}");
    }
    let dir = tempfile::tempdir().unwrap();
    let tokens = vec![0, 1, 65_499, 65_519];
    for token_type in [TokenType::U16, TokenType::I32] {
        let prefix = dir.path().join(token_type.name());
        write(&prefix, token_type, &[vec![tokens.clone()]]);
        let data = open(&prefix).with_vocab_size(65_520);
        assert_eq!(data.index().token_type(), token_type);
        assert_eq!(row(&data, 0).unwrap(), tokens);
    }
}

/// NVIDIA/Megatron-LM#718, #81: document bounds that do not end at the number of sequences.
#[test]
fn v36_merged_bounds_are_shifted_and_wrong_ones_refused() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let first = [
        vec![vec![1, 2], vec![3]],
        vec![vec![4]],
        vec![vec![5, 6, 7], vec![8], vec![9]],
    ];
    let second = [vec![vec![10], vec![11, 12]], vec![vec![13, 14, 15]]];
    write(&at("a"), TokenType::U16, &first);
    write(&at("b"), TokenType::U16, &second);
    let written = merge(&[at("a"), at("b")], &at("all"), false, |_| ()).unwrap();
    assert_eq!((written.documents, written.sequences), (5, 9));
    let all = open(&at("all"));
    assert_eq!(all.index().bounds().unwrap(), [0, 2, 3, 6, 8, 9]);
    let bytes = |prefix: &Path| fs::read(bin_path(prefix)).unwrap();
    assert_eq!(bytes(&at("all")), [bytes(&at("a")), bytes(&at("b"))].concat());

    write(&at("wide"), TokenType::I32, &second);
    let error = merge(&[at("a"), at("wide")], &at("mixed"), false, |_| ())
        .unwrap_err()
        .to_string();
    assert!(error.contains("int32") && error.contains("uint16"), "{error}");
    assert!(!idx_path(&at("mixed")).exists() && !bin_path(&at("mixed")).exists());

    let idx = idx_path(&at("all"));
    let mut damaged = fs::read(&idx).unwrap();
    let last = damaged.len() - 8;
    damaged[last..].copy_from_slice(&11i64.to_le_bytes());
    fs::write(&idx, &damaged).unwrap();
    let error = IndexedDataset::open(&at("all"), Check::Full)
        .unwrap_err()
        .to_string();
    assert!(error.contains("11") && error.contains("9 sequences"), "{error}");
}

/// A tokenizer of whole words, so that texts have as many tokens as words.
fn word_tokenizer(folder: &Path) -> PathBuf {
    let words: serde_json::Map<String, Value> = ["</s>", "[UNK]", "a", "b", "c"]
        .iter()
        .zip(0..)
        .map(|(word, id)| ((*word).to_owned(), json!(id)))
        .collect();
    let path = folder.join("tokenizer.json");
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "[UNK]"},
    });
    fs::write(&path, tokenizer.to_string()).unwrap();
    path
}

fn tokenized(texts: &[&str], empty: EmptyDocuments, folder: &Path, name: &str) -> (PathBuf, u64) {
    let lines: String = texts
        .iter()
        .map(|text| format!("{}\n", json!({"text": text})))
        .collect();
    let input = folder.join(format!("{name}.jsonl"));
    fs::write(&input, lines).unwrap();
    let out = folder.join(name);
    let options = TokenizeOptions {
        inputs: vec![input],
        text_column: "text".to_owned(),
        tokenizer: word_tokenizer(folder),
        special_tokens: true,
        out: out.clone(),
        target: Target::Megatron {
            append_eod: Some(0),
            vocab_size: None,
            empty,
        },
        memory: 1 << 26,
        overwrite: false,
        restart: false,
    };
    let done = tokenize(&options, &|_, _, _| true).unwrap_or_else(|e| panic!("{e}"));
    (out, done.counts.empty_documents)
}

/// NVIDIA/Megatron-LM#431: the end token was appended but not counted.
#[test]
fn v37_lengths_count_the_end_token() {
    let dir = tempfile::tempdir().unwrap();
    let (out, _) = tokenized(
        &["a b c a", "b", "a b c a b c a"],
        EmptyDocuments::Keep,
        dir.path(),
        "data",
    );
    let data = open(&out);
    assert_eq!(data.index().lengths().unwrap(), [5, 2, 8]);
    for i in 0..3 {
        assert_eq!(row(&data, i).unwrap().last(), Some(&0));
    }
    assert_eq!(data.bin_bytes(), 15 * data.index().token_type().size());
}

/// NVIDIA/Megatron-LM#62, openai/gpt-2-output-dataset#51: empty documents crashed.
#[test]
fn v38_empty_documents_follow_a_rule() {
    let dir = tempfile::tempdir().unwrap();
    let texts = ["", "a b", "", "c", "   ", ""];
    let bounds = |rule, name: &str| {
        let (out, empty) = tokenized(&texts, rule, dir.path(), name);
        assert_eq!(empty, 4);
        let data = open(&out);
        (
            data.index().bounds().unwrap(),
            data.index().lengths().unwrap(),
            fs::read(idx_path(&out)).unwrap(),
        )
    };
    let (kept, lengths, bytes) = bounds(EmptyDocuments::Keep, "keep");
    assert_eq!((kept, lengths), (vec![0, 0, 1, 1, 2, 2, 2], vec![3, 2]));
    assert_eq!(bounds(EmptyDocuments::Keep, "again").2, bytes);
    let (skipped, lengths, _) = bounds(EmptyDocuments::Skip, "skip");
    assert_eq!((skipped, lengths), (vec![0, 1, 2], vec![3, 2]));
    let (ends, lengths, _) = bounds(EmptyDocuments::EndToken, "end");
    assert_eq!(
        (ends, lengths),
        (vec![0, 1, 2, 3, 4, 5, 6], vec![1, 3, 1, 2, 1, 1])
    );
}

/// Peak resident memory of this process so far, in bytes.
fn peak_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// bigcode-project/Megatron-LM#34: writing an index of 31 M documents ran out of memory.
#[test]
fn v39_an_index_takes_a_few_bytes_a_document() {
    let dir = tempfile::tempdir().unwrap();
    // The same bytes as a reference that spells the format out, on a cut.
    let lengths: Vec<u32> = (0..10_000u32).map(|i| (i * 7_919) % 800).collect();
    let bounds: Vec<u64> = (0..=10_000).collect();
    let mut got = Vec::new();
    write_index(&mut got, TokenType::U16, &lengths, &bounds, None).unwrap();
    let mut want = b"MMIDIDX\0\0".to_vec();
    want.extend(1u64.to_le_bytes());
    want.push(8);
    want.extend(10_000u64.to_le_bytes());
    want.extend(10_001u64.to_le_bytes());
    lengths
        .iter()
        .for_each(|&n| want.extend((n as i32).to_le_bytes()));
    let mut pointer = 0i64;
    for &n in &lengths {
        want.extend(pointer.to_le_bytes());
        pointer += i64::from(n) * 2;
    }
    bounds.iter().for_each(|&b| want.extend((b as i64).to_le_bytes()));
    assert_eq!(sha256_hex(&got), sha256_hex(&want));

    // 31 million documents keep below 1.5 GB when each takes fewer than 48 bytes; a tenth of them is written here.
    let documents = 3_100_000u64;
    let before = peak_memory();
    let mut writer = IndexedWriter::create(&dir.path().join("many"), TokenType::U16, false).unwrap();
    for _ in 0..documents {
        writer.add_document(&[]).unwrap();
    }
    let written = writer.finish().unwrap();
    let grown = peak_memory().saturating_sub(before);
    assert_eq!(written.documents, documents);
    assert!(grown < 48 * documents, "{grown} bytes for {documents} documents");
    println!("{} bytes a document", grown as f64 / documents as f64);
}
