//! Flash-linear-attention's preprocessing of the bundled text: token for token, for every `num_proc` recorded.

use std::path::{Path, PathBuf};

use ceteris_loader::prepare::tokenize::{Target, TokenizeOptions, tokenize};
use ceteris_loader::source::Source;
use ceteris_tests::golden::{check_digest, golden_dir, run_family, sha256_i32};
use ceteris_tests::tokens::{open, row, sha256_of_rows};

use crate::case::{list, number, numbers, same, text};

/// The text and tokenizer that the recording used: those of the set, or the bundled ones where it has none.
fn text_folder() -> PathBuf {
    let inside = golden_dir().join("text");
    if inside.is_dir() {
        inside
    } else {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/text")
    }
}

#[test]
fn rows_of_the_text() {
    run_family("fla_prepare.json", |case| {
        let seq_length = number(case, "seq_len")? as usize;
        let num_proc = number(case, "num_proc")?;
        let seed = number(case, "preprocess_seed")?;
        let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
        let out = folder.path().join("rows");
        let options = TokenizeOptions {
            inputs: vec![text_folder().join("speeches.parquet")],
            text_column: "text".to_owned(),
            tokenizer: text_folder(),
            special_tokens: true,
            out: out.clone(),
            target: Target::Rows {
                seq_length,
                seed: Some(seed),
                num_proc,
                batch_size: number(case, "batch_size")?,
            },
            // So little that a batch is done in many units.
            memory: 4 << 20,
            overwrite: false,
            restart: false,
        };
        let done = tokenize(&options, &|_, _, _| true).map_err(|e| e.to_string())?;
        same("documents", number(case, "documents")?, done.counts.documents)?;
        same("samples", number(case, "samples")?, done.counts.rows)?;
        let batches = list(&case["map_batches"])?;
        let sum = |key: &str| -> Result<u64, String> { batches.iter().map(|batch| number(batch, key)).sum() };
        same("tokens", sum("tokens")?, done.counts.tokens)?;
        same(
            "dropped_tail_tokens",
            sum("dropped_tail_tokens")?,
            done.counts.dropped_tail_tokens,
        )?;
        let order = ceteris_samplers::rng::numpy::Generator::default_rng(seed)
            .permutation(done.counts.documents)
            .map_err(|e| e.to_string())?;
        check_digest(
            &case["document_order_after_shuffle"],
            &order.iter().collect::<Vec<_>>(),
        )?;

        let rows = open(&out)?;
        let n = rows.num_samples();
        same("rows", number(case, "samples")?, n)?;
        same(
            "tokens_sha256_i32_in_saved_order",
            text(case, "tokens_sha256_i32_in_saved_order")?,
            &sha256_of_rows(&rows, 0..n)?,
        )?;
        for (key, id) in [("first_row", 0), ("last_row", n - 1)] {
            let got: Vec<u64> = row(&rows, id)?.iter().map(|&t| t as u64).collect();
            same(key, numbers(&case[key])?, got)?;
        }
        for (id, want) in list(&case["row_sha256_first8"])?.iter().enumerate() {
            same(
                "row_sha256",
                want.as_str(),
                Some(sha256_i32(&row(&rows, id as u64)?).as_str()),
            )?;
        }
        // Files and their lengths are those of save_to_disk.
        let mut files: Vec<String> = std::fs::read_dir(&out)
            .map_err(|e| e.to_string())?
            .map(|entry| {
                entry
                    .map(|e| e.file_name().to_string_lossy().into_owned())
                    .map_err(|e| e.to_string())
            })
            .collect::<Result<_, _>>()?;
        files.sort();
        let want: Vec<String> = list(&case["files"])?
            .iter()
            .map(|name| name.as_str().unwrap_or_default().to_owned())
            .collect();
        same("files", want, files.clone())?;
        let shards: Vec<u64> = files
            .iter()
            .filter(|name| name.ends_with(".arrow"))
            .map(|name| open(&out.join(name)).map(|shard| shard.num_samples()))
            .collect::<Result<_, _>>()?;
        same("rows_per_file", numbers(&case["rows_per_file"])?, shards)
    });
}
