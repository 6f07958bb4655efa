//! Each kind of bad input is one error that names the file, what was expected and found, and the way out.

use std::fs;

use arrow_schema::DataType;
use ceteris_loader::source::{HfSource, Source, SourceOptions};
use ceteris_tests::datasets::{
    Layout, batch, batches, ints, list, save_cache, save_rows, save_to_disk, stream, uniform_rows, write_json,
};
use serde_json::json;

use super::{assert_says, refusal};

fn plain() -> SourceOptions {
    SourceOptions::default()
}

fn split(name: &str) -> SourceOptions {
    SourceOptions {
        split: Some(name.to_owned()),
        ..plain()
    }
}

#[test]
fn a_missing_directory_is_named_with_its_nearest_neighbour() {
    let dir = tempfile::tempdir().unwrap();
    save_rows(&dir.path().join("tokenized"), &uniform_rows(3, 4, 9), 1);
    let message = refusal(&dir.path().join("tokenised"), &plain());
    assert_says(
        &message,
        &["tokenised does not exist", "Did you mean \"tokenized\"?"],
    );
    assert_says(
        &refusal(&dir.path().join("no/such/place"), &plain()),
        &["does not exist, and neither does"],
    );
    assert_says(
        &refusal(&dir.path().join("tokenized/state.json"), &plain()),
        &["pass the directory that holds it"],
    );
}

#[test]
fn a_missing_shard_is_named_with_who_lists_it() {
    let dir = tempfile::tempdir().unwrap();
    save_rows(dir.path(), &uniform_rows(40, 4, 9), 4);
    fs::remove_file(dir.path().join("data-00002-of-00004.arrow")).unwrap();
    let message = refusal(dir.path(), &plain());
    assert_says(
        &message,
        &["state.json lists 4 files and 1 of them is missing, first data-00002-of-00004.arrow"],
    );
    assert_says(
        &message,
        &["Files there: data-00000-of-00004.arrow, data-00001-of-00004.arrow, data-00003"],
    );

    let dir = tempfile::tempdir().unwrap();
    let shards = vec![
        uniform_rows(5, 4, 9),
        uniform_rows(6, 4, 9),
        uniform_rows(7, 4, 9),
    ];
    save_cache(dir.path(), "json", &[("train", shards)]);
    assert_eq!(HfSource::open(dir.path(), &plain()).unwrap().num_samples(), 18);
    fs::remove_file(dir.path().join("json-train-00001-of-00003.arrow")).unwrap();
    let message = refusal(dir.path(), &plain());
    assert_says(
        &message,
        &[
            "dataset_info.json lists 3 files",
            "first json-train-00001-of-00003.arrow (6 rows)",
        ],
    );
}

#[test]
fn a_cache_file_with_other_rows_than_declared_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    save_cache(
        dir.path(),
        "json",
        &[("train", vec![uniform_rows(15, 4, 9), uniform_rows(6, 4, 9)])],
    );
    let short = stream(&batches(
        &uniform_rows(14, 4, 9),
        Layout::List,
        &DataType::Int32,
        10,
    ));
    fs::write(dir.path().join("json-train-00000-of-00002.arrow"), short).unwrap();
    let message = refusal(dir.path(), &plain());
    assert_says(
        &message,
        &[
            "json-train-00000-of-00002.arrow",
            "holds 14 rows in 2 record batches; dataset_info.json says 15 rows",
        ],
    );
}

#[test]
fn columns_are_listed_when_the_one_asked_for_is_not_there_or_no_token_column() {
    let dir = tempfile::tempdir().unwrap();
    save_rows(dir.path(), &uniform_rows(4, 4, 9), 1);
    let of = |column: &str| {
        refusal(
            dir.path(),
            &SourceOptions {
                column: column.to_owned(),
                ..plain()
            },
        )
    };
    assert_says(
        &of("input_idz"),
        &[
            "no column \"input_idz\"; it has id: int64, input_ids: list<item: int32>",
            "Did you mean \"input_ids\"?",
        ],
    );
    let message = of("tokens");
    assert_says(&message, &["no column \"tokens\""]);
    assert!(!message.contains("Did you mean"), "{message}");
    assert_says(
        &of("id"),
        &[
            "column \"id\" is int64",
            "token ids are a list of integers, as in \"input_ids\" (list<item: int32>)",
        ],
    );
}

#[test]
fn nulls_are_named_by_row_and_position() {
    let dir = tempfile::tempdir().unwrap();
    let rows = uniform_rows(25, 4, 9);
    for layout in [
        Layout::List,
        Layout::LargeList,
        Layout::FixedSizeList,
        Layout::ListView,
    ] {
        let parts = |row_nulls: Option<Vec<bool>>, value_nulls: Option<Vec<bool>>| {
            let first = batch(0, list(&rows[..10], layout, &DataType::Int32, None, None));
            let second = batch(
                10,
                list(&rows[10..], layout, &DataType::Int32, row_nulls, value_nulls),
            );
            vec![vec![first.clone()], vec![first, second]]
        };
        save_to_disk(
            dir.path(),
            &parts(Some((0..15).map(|i| i != 12 && i != 13).collect()), None),
            None,
        );
        let message = refusal(dir.path(), &plain());
        assert_says(
            &message,
            &["data-00001-of-00002.arrow: row 32, column \"input_ids\": the row is null"],
        );
        save_to_disk(
            dir.path(),
            &parts(None, Some((0..60).map(|i| i != 4 * 9 + 2).collect())),
            None,
        );
        let message = refusal(dir.path(), &plain());
        assert_says(
            &message,
            &["row 29, column \"input_ids\": the value at position 2 is null"],
        );
        // A bitmap without a single null is no null.
        save_to_disk(
            dir.path(),
            &parts(Some(vec![true; 15]), Some(vec![true; 60])),
            None,
        );
        assert_eq!(HfSource::open(dir.path(), &plain()).unwrap().num_samples(), 35);
    }
}

#[test]
fn values_that_are_no_token_ids_are_named_at_the_read() {
    let dir = tempfile::tempdir().unwrap();
    let mut rows = uniform_rows(25, 4, 9);
    rows[7][3] = -2;
    rows[21][1] = 1 << 31;
    let parts = vec![batches(&rows, Layout::List, &DataType::Int64, 10)];
    save_to_disk(dir.path(), &parts, None);
    let source = HfSource::open(dir.path(), &plain()).unwrap();
    let message = source.read(7, &mut [0; 4]).unwrap_err().to_string();
    assert_says(
        &message,
        &[
            "row 7, column \"input_ids\": the value at position 3 is -2",
            "0 to 2147483647",
        ],
    );
    let message = source.read(21, &mut [0; 4]).unwrap_err().to_string();
    assert_says(&message, &["row 21", "position 1 is 2147483648"]);
    // Not read, not an error.
    source.read(7, &mut [0; 3]).unwrap();
}

#[test]
fn an_empty_dataset_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let none = batch(0, list(&[], Layout::List, &DataType::Int32, None, None));
    save_to_disk(dir.path(), &[vec![none]], None);
    assert_says(&refusal(dir.path(), &plain()), &["holds no rows"]);
    write_json(
        &dir.path().join("state.json"),
        &json!({"_data_files": [], "_split": null}),
    );
    assert_says(&refusal(dir.path(), &plain()), &["state.json lists no file"]);
}

#[test]
fn shards_of_different_types_are_not_one_dataset() {
    let dir = tempfile::tempdir().unwrap();
    let rows = uniform_rows(5, 4, 9);
    let of = |int: &DataType| batches(&rows, Layout::List, int, 10);
    save_to_disk(dir.path(), &[of(&DataType::Int32), of(&DataType::Int64)], None);
    let message = refusal(dir.path(), &plain());
    assert_says(
        &message,
        &[
            "data-00001-of-00002.arrow",
            "is list<item: int64>, but list<item: int32> in",
            "data-00000-of-00002.arrow",
        ],
    );
}

#[test]
fn a_state_that_is_not_one_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    save_rows(dir.path(), &uniform_rows(5, 4, 9), 1);
    let state = dir.path().join("state.json");
    for (text, says) in [
        ("{", "is not valid JSON"),
        ("{}", "_data_files"),
        (r#"{"_data_files": [{"name": "x"}]}"#, "filename"),
        (
            r#"{"_data_files": [{"filename": "../x.arrow"}]}"#,
            "not the name of a file beside it",
        ),
        (
            r#"{"_data_files": [{"filename": "/etc/passwd"}]}"#,
            "not the name of a file beside it",
        ),
        (
            r#"{"_data_files": [{"filename": "a"}, {"filename": "a"}]}"#,
            "lists a twice",
        ),
    ] {
        fs::write(&state, text).unwrap();
        assert_says(&refusal(dir.path(), &plain()), &["state.json", says]);
    }
}

#[test]
fn splits_are_named_when_the_one_asked_for_is_not_there() {
    let dir = tempfile::tempdir().unwrap();
    save_cache(
        dir.path(),
        "json",
        &[
            ("train", vec![uniform_rows(5, 4, 9)]),
            ("test", vec![uniform_rows(3, 4, 9)]),
        ],
    );
    assert_says(
        &refusal(dir.path(), &split("trian")),
        &["without a split \"trian\"", "Did you mean \"train\"?"],
    );
    assert_eq!(
        HfSource::open(dir.path(), &split("test")).unwrap().num_samples(),
        3
    );

    let dir = tempfile::tempdir().unwrap();
    for (name, n) in [("train", 5), ("test", 3)] {
        let parts = vec![batches(
            &uniform_rows(n, 4, 9),
            Layout::List,
            &DataType::Int32,
            10,
        )];
        save_to_disk(&dir.path().join(name), &parts, Some(name));
    }
    write_json(
        &dir.path().join("dataset_dict.json"),
        &json!({"splits": ["train", "test"]}),
    );
    assert_eq!(
        HfSource::open(dir.path(), &split("test")).unwrap().num_samples(),
        3
    );
    // The split's own folder, with or without its name.
    let train = dir.path().join("train");
    assert_eq!(HfSource::open(&train, &plain()).unwrap().num_samples(), 5);
    assert_eq!(HfSource::open(&train, &split("train")).unwrap().num_samples(), 5);
    assert_says(
        &refusal(&train, &split("test")),
        &["is one dataset (of split \"train\")", "or pass the DatasetDict"],
    );
    fs::remove_file(train.join("state.json")).unwrap();
    assert_says(
        &refusal(dir.path(), &split("train")),
        &["lists the split \"train\"", "no state.json"],
    );
}

#[test]
fn files_that_are_no_arrow_say_what_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.arrow");
    for (bytes, says) in [
        (&b""[..], "is empty: 0 bytes"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n",
            "Git LFS pointer",
        ),
        (b"PAR1............", "is a Parquet file"),
        (b"{\"a\": 1}\n{\"a\": 2}\n", "is not an Arrow IPC stream or file"),
        (b"ARROW1\0\0", "too few for an Arrow file"),
        (
            b"ARROW1\0\0................",
            "does not end with the 6 bytes ARROW1",
        ),
        (b"\xff\xff\xff\xff\0\0\0\0", "ends before its schema"),
        (
            b"\xff\xff\xff\xff\x10\0\0\0................",
            "the schema: its header is damaged",
        ),
    ] {
        fs::write(&path, bytes).unwrap();
        assert_says(&refusal(&path, &plain()), &["x.arrow", says]);
    }
}

#[test]
fn a_folder_above_datasets_names_them() {
    let dir = tempfile::tempdir().unwrap();
    save_rows(&dir.path().join("a/b/data"), &uniform_rows(3, 4, 9), 1);
    assert_says(
        &refusal(dir.path(), &plain()),
        &["is not a dataset but one lies below it: pass ", "a/b/data"],
    );
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("notes.txt"), "x").unwrap();
    assert_says(&refusal(dir.path(), &plain()), &["holds no dataset", "notes.txt"]);
}

#[test]
fn a_float_column_is_no_token_column() {
    let dir = tempfile::tempdir().unwrap();
    let values = ints(&[1, 2, 3, 4], &DataType::Float32, None);
    let item = std::sync::Arc::new(arrow_schema::Field::new("item", DataType::Float32, true));
    let floats = arrow_array::ListArray::new(
        item,
        arrow_buffer::OffsetBuffer::from_lengths([2, 2]),
        values,
        None,
    );
    save_to_disk(dir.path(), &[vec![batch(0, std::sync::Arc::new(floats))]], None);
    let message = refusal(dir.path(), &plain());
    assert_says(
        &message,
        &["column \"input_ids\" is list<item: float>, from row 0 on; token ids are a list of integers"],
    );
}
