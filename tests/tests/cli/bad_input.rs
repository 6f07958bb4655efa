//! Bad input: one clear error that names file, row or field and what to do, exit code 2, nothing on stdout.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::builder::{Int32Builder, ListBuilder};
use arrow_array::{Array, Float32Array, RecordBatch};
use arrow_schema::{Field, Schema};
use tempfile::TempDir;

use super::{Ran, SHAKESPEARE, line, loader, root, shakespeare};

/// A copy of the bundled corpus that a test may damage.
fn copy() -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for entry in std::fs::read_dir(root().join(SHAKESPEARE)).expect("the bundled corpus") {
        let path = entry.expect("an entry").path();
        std::fs::copy(&path, folder.path().join(path.file_name().expect("a name"))).expect("copies");
    }
    folder
}

const SHARD: &str = "data-00001-of-00002.arrow";

/// Streams a folder of rows of `seq_length` tokens, one rank.
fn stream(folder: &Path, seq_length: usize, more: &[&str]) -> Ran {
    let seq_length = seq_length.to_string();
    let mut args = vec![
        "--order",
        "fla",
        "--seed",
        "42",
        "--seq-length",
        &seq_length,
        "--cache-dir",
    ];
    args.push(folder.to_str().expect("UTF-8"));
    args.extend(more);
    loader(args)
}

/// Writes one batch as a dataset saved with `save_to_disk`.
fn save(batch: &RecordBatch) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let name = "data-00000-of-00001.arrow";
    let file = std::fs::File::create(folder.path().join(name)).expect("creates");
    let mut writer = arrow_ipc::writer::StreamWriter::try_new(file, &batch.schema()).expect("a writer");
    writer.write(batch).expect("writes");
    writer.finish().expect("writes");
    let state = format!("{{\"_data_files\": [{{\"filename\": \"{name}\"}}], \"_split\": \"train\"}}");
    std::fs::write(folder.path().join("state.json"), state).expect("writes");
    std::fs::write(folder.path().join("dataset_info.json"), "{}").expect("writes");
    folder
}

fn table(columns: Vec<(&str, Arc<dyn Array>)>) -> TempDir {
    let fields: Vec<Field> = columns
        .iter()
        .map(|(name, column)| Field::new(*name, column.data_type().clone(), true))
        .collect();
    let columns = columns.into_iter().map(|(_, column)| column).collect();
    save(&RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).expect("a batch"))
}

/// A list column; `None` is a null row, an inner `None` a null value.
fn rows(rows: &[Option<Vec<Option<i32>>>]) -> Arc<dyn Array> {
    let mut builder = ListBuilder::new(Int32Builder::new());
    for row in rows {
        match row {
            Some(values) => {
                builder.values().append_slice(&[]);
                values
                    .iter()
                    .for_each(|value| builder.values().append_option(*value));
                builder.append(true);
            }
            None => builder.append(false),
        }
    }
    Arc::new(builder.finish())
}

fn tokens(list: &[i32]) -> Option<Vec<Option<i32>>> {
    Some(list.iter().map(|&token| Some(token)).collect())
}

#[track_caller]
fn assert_names(error: &str, needles: &[&str]) {
    for needle in needles {
        assert!(error.contains(needle), "lacks `{needle}`: {error}");
    }
}

#[test]
fn a_folder_that_does_not_exist() {
    let error = stream(Path::new("no/such/folder"), 128, &[]).refused();
    assert_names(&error, &["no/such/folder"]);
}

#[test]
fn no_dataset_no_order_no_length() {
    assert_names(
        &line("--order fla --seed 1 --seq-length 8").refused(),
        &["no dataset is named", "--cache-dir"],
    );
    assert_names(
        &line(&format!("--cache-dir {SHAKESPEARE} --seq-length 8")).refused(),
        &["no order is named", "--order"],
    );
    let ragged = "tests/golden/hf/ragged_list_int32_4shards";
    let error = line(&format!("--order fla --seed 1 --cache-dir {ragged}")).refused();
    assert_names(&error, &["rows differ in length", "--seq-length"]);
    assert_names(&line("ids --order fla --seed 1").refused(), &["--num-samples"]);
    assert_names(
        &line("--order flo --seed 1").refused(),
        &["no order `flo`", "did you mean `fla`?"],
    );
}

#[test]
fn a_missing_shard_names_the_file_and_what_state_json_expects() {
    let folder = copy();
    std::fs::remove_file(folder.path().join(SHARD)).expect("removes");
    assert_names(&stream(folder.path(), 128, &[]).refused(), &[SHARD, "state.json"]);
}

#[test]
fn a_shard_cut_off_names_file_and_record_batch() {
    let folder = copy();
    let path = folder.path().join(SHARD);
    let bytes = std::fs::read(&path).expect("reads");
    std::fs::write(&path, &bytes[..bytes.len() / 2]).expect("writes");
    assert_names(
        &stream(folder.path(), 128, &[]).refused(),
        &[SHARD, "record batch"],
    );
}

/// A flipped bit in the metadata of a record batch is found at open. One in a token is a token; the vocabulary
/// tells.
#[test]
fn flipped_bits_name_file_and_record_batch_or_row() {
    let folder = copy();
    let path = folder.path().join(SHARD);
    let whole = std::fs::read(&path).expect("reads");
    // The second message of the stream is the first record batch: its length follows the schema's.
    let word = |at: usize| u32::from_le_bytes(whole[at..at + 4].try_into().expect("four bytes")) as usize;
    assert_eq!(
        word(0),
        0xffff_ffff,
        "an IPC stream starts with the continuation mark"
    );
    let batch = 8 + word(4);
    assert_eq!(word(batch), 0xffff_ffff, "the record batch follows the schema");
    let mut damaged = whole.clone();
    damaged[batch + 8] ^= 0x40;
    std::fs::write(&path, &damaged).expect("writes");
    assert_names(
        &stream(folder.path(), 128, &[]).refused(),
        &[SHARD, "record batch"],
    );
    std::fs::write(&path, &whole).expect("writes");
    // Row 0 lies in the first shard as uint16: its second token gets an id far above the vocabulary's 4096.
    let args = "--order sequential --seq-length 128 --steps 0..1 --emit tokens --format jsonl --cache-dir";
    let row = line(&format!("{args} {SHAKESPEARE}")).json_lines()[0]["tokens"][0].clone();
    let row = row
        .as_array()
        .expect("a row")
        .iter()
        .filter_map(serde_json::Value::as_u64);
    let row: Vec<u8> = row.flat_map(|token| (token as u16).to_le_bytes()).collect();
    let path = folder.path().join("data-00000-of-00002.arrow");
    let mut damaged = std::fs::read(&path).expect("reads");
    let at = damaged
        .windows(row.len())
        .position(|window| window == row)
        .expect("the row is in the shard");
    damaged[at + 3] |= 0x80;
    std::fs::write(&path, &damaged).expect("writes");
    let error = stream(folder.path(), 128, &["--vocab-size", "4096"]).refused();
    assert_names(
        &error,
        &["data-00000-of-00002.arrow", "row 0", "input_ids", "position 1"],
    );
}

#[test]
fn a_column_that_is_not_there_lists_those_that_are() {
    let error = shakespeare("--column tokens").refused();
    assert_names(&error, &["tokens", "input_ids"]);
    let folder = table(vec![("input_ids", Arc::new(Float32Array::from(vec![1.0, 2.0])))]);
    assert_names(&stream(folder.path(), 1, &[]).refused(), &["input_ids", "float"]);
}

#[test]
fn null_rows_and_values_name_the_row() {
    let folder = table(vec![(
        "input_ids",
        rows(&[tokens(&[1, 2]), None, tokens(&[3, 4])]),
    )]);
    assert_names(&stream(folder.path(), 2, &[]).refused(), &["row 1", "null"]);
    let folder = table(vec![(
        "input_ids",
        rows(&[tokens(&[1, 2]), tokens(&[3, 4]), Some(vec![Some(5), None])]),
    )]);
    assert_names(
        &stream(folder.path(), 2, &["--steps", "0..1"]).refused(),
        &["row 2", "null"],
    );
}

#[test]
fn ragged_and_short_rows_name_the_row_and_the_way_out() {
    let folder = table(vec![(
        "input_ids",
        rows(&[tokens(&[1, 2, 3]), tokens(&[4, 5]), tokens(&[6, 7, 8])]),
    )]);
    assert_names(&stream(folder.path(), 3, &[]).refused(), &["row 1", "on-ragged"]);
    let dropped = stream(
        folder.path(),
        3,
        &["--on-ragged", "drop", "--emit", "tokens", "--format", "jsonl"],
    )
    .json_lines();
    let mut kept: Vec<String> = dropped
        .iter()
        .map(|line| format!("{}{}", line["rows"], line["tokens"]))
        .collect();
    kept.sort();
    assert_eq!(
        kept,
        ["[0][[1,2,3]]", "[2][[6,7,8]]"],
        "rows keep the numbers of the stored table"
    );
    let pad = [
        "--on-ragged",
        "pad",
        "--pad-id",
        "9",
        "--emit",
        "tokens",
        "--format",
        "jsonl",
    ];
    let padded = stream(folder.path(), 3, &pad).json_lines();
    assert!(
        padded
            .iter()
            .any(|line| line["tokens"] == serde_json::json!([[4, 5, 9]])),
        "{padded:?}"
    );
    assert_names(
        &stream(folder.path(), 3, &["--on-ragged", "pad"]).refused(),
        &["pad"],
    );
    let longer = stream(folder.path(), 2, &[]).refused();
    assert_names(&longer, &["row 0", "truncate"]);
}

#[test]
fn a_length_above_that_of_the_rows() {
    let error = stream(&root().join(SHAKESPEARE), 129, &[]).refused();
    assert_names(&error, &["129", "128"]);
}

#[test]
fn an_empty_dataset() {
    let folder = table(vec![("input_ids", rows(&[]))]);
    assert_names(&stream(folder.path(), 4, &[]).refused(), &["holds no rows"]);
}

#[test]
fn a_token_outside_the_vocabulary_names_the_row_before_any_output() {
    let folder = table(vec![(
        "input_ids",
        rows(&[tokens(&[1, 2]), tokens(&[3, 500]), tokens(&[4, 5])]),
    )]);
    for emit in ["summary", "rows", "tokens", "sha256", "fingerprint"] {
        let ran = stream(
            folder.path(),
            2,
            &["--vocab-size", "500", "--emit", emit, "--format", "jsonl"],
        );
        assert_names(&ran.refused(), &["row 1", "500", "input_ids"]);
    }
    stream(folder.path(), 2, &["--vocab-size", "501"]).ok();
}

#[test]
fn negative_tokens_name_the_row() {
    let folder = table(vec![(
        "input_ids",
        rows(&[tokens(&[1, 2]), tokens(&[3, -4]), tokens(&[4, 5])]),
    )]);
    for emit in ["summary", "rows", "tokens"] {
        assert_names(
            &stream(folder.path(), 2, &["--emit", emit]).refused(),
            &["row 1", "-4"],
        );
    }
}

#[test]
fn a_world_a_rank_or_a_batch_that_cannot_be() {
    assert_names(&shakespeare("--world-size 0").refused(), &["world_size is 0"]);
    assert_names(
        &line("ids --order sequential --num-samples 5 --micro-batch-size 0").refused(),
        &["micro_batch_size is 0"],
    );
    assert_names(
        &shakespeare("--world-size 8 --rank 8").refused(),
        &["rank 8", "ranks 0 to 7"],
    );
    assert_names(
        &shakespeare("--world-size 4000 --drop-last").refused(),
        &["no micro-step", "--drop-last"],
    );
    assert_eq!(shakespeare("--world-size -1").code, Some(2));
}

#[test]
fn steps_past_the_epoch_need_epochs() {
    let error = shakespeare("--world-size 8 --steps 80..84").refused();
    assert_names(&error, &["80..84", "83 steps", "--epochs 2"]);
    let lines = shakespeare("--world-size 8 --steps 80..84 --epochs 2 --rank 0 --format jsonl").json_lines();
    let places: Vec<_> = lines
        .iter()
        .map(|line| (line["epoch"].as_u64(), line["step"].as_u64()))
        .collect();
    assert_eq!(
        places,
        [(0, 80), (0, 81), (0, 82), (1, 0)].map(|(epoch, step)| (Some(epoch), Some(step)))
    );
    assert_names(&shakespeare("--steps 5..5").refused(), &["empty"]);
    assert_names(&shakespeare("--epochs 0").refused(), &["--epochs is 0"]);
}

#[test]
fn an_indices_file_that_points_outside_the_table() {
    let indices: Arc<dyn Array> = Arc::new(arrow_array::UInt64Array::from(vec![0u64, 1, 2630]));
    let schema = Schema::new(vec![Field::new("indices", indices.data_type().clone(), false)]);
    let batch = RecordBatch::try_new(Arc::new(schema), vec![indices]).expect("a batch");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path: PathBuf = folder.path().join("cache-1234.arrow");
    let file = std::fs::File::create(&path).expect("creates");
    let mut writer = arrow_ipc::writer::StreamWriter::try_new(file, &batch.schema()).expect("a writer");
    writer.write(&batch).expect("writes");
    writer.finish().expect("writes");
    let error = stream(
        &root().join(SHAKESPEARE),
        128,
        &["--indices", path.to_str().expect("UTF-8")],
    )
    .refused();
    assert_names(&error, &["cache-1234.arrow", "2630"]);
}

/// `inspect` reports the whole folder, and still says by its exit code that it cannot be opened.
#[test]
fn inspecting_a_damaged_folder_reports_the_rest() {
    let folder = copy();
    let path = folder.path().join(SHARD);
    let bytes = std::fs::read(&path).expect("reads");
    std::fs::write(&path, &bytes[..bytes.len() / 2]).expect("writes");
    let ran = loader([
        "inspect",
        "--json",
        "--cache-dir",
        folder.path().to_str().expect("UTF-8"),
    ]);
    assert_eq!(ran.code, Some(2));
    assert_names(&ran.stderr, &["cannot be opened"]);
    let report: serde_json::Value = serde_json::from_str(&ran.text()).expect("a whole report");
    assert_eq!(
        report["splits"][0]["rows"], 1315,
        "the rows of the shard that can be read"
    );
    assert_names(&report["splits"][0]["problems"].to_string(), &[SHARD]);
}

#[test]
fn a_format_that_cannot_hold_the_content() {
    assert_names(
        &shakespeare("--emit summary --format npy").refused(),
        &["npy", "summary"],
    );
    assert_names(
        &line("ids --order sequential --num-samples 4 --emit tokens").refused(),
        &["reads no dataset"],
    );
}

#[test]
fn usage_errors_are_code_2_and_leave_stdout_empty() {
    for words in [
        "--steps x",
        "--rank y",
        "--emit z",
        "--format csv",
        "--seq-length -3",
        "frobnicate",
    ] {
        let ran = line(&format!("--order fla --seed 1 {words}"));
        assert_eq!(
            (ran.code, ran.text().as_str()),
            (Some(2), ""),
            "{words}: {}",
            ran.stderr
        );
    }
}
