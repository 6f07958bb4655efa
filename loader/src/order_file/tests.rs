//! Lists of rows in every form, whole and damaged.

use ceteris_samplers::OrderSpec;
use npyz::WriterBuilder;
use serde_json::{Value, json};

use super::*;

/// Reads a file of five rows' dataset with the options of a `file` order.
fn read_with(name: &str, bytes: &[u8], options: Value) -> Result<Vec<u64>, String> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).expect("writes");
    let mut spec = json!({"name": "file", "path": path.to_str().expect("a path of text")});
    for (key, value) in options.as_object().expect("options") {
        spec[key] = value.clone();
    }
    let spec: OrderSpec = serde_json::from_value(spec).expect("a spec");
    let file = spec.downcast::<FileOrder>().expect("a file order");
    let (rows, _) = read(file, 5).map_err(|e| e.to_string())?;
    Ok(rows.iter().collect())
}

fn read_bytes(name: &str, bytes: &[u8]) -> Result<Vec<u64>, String> {
    read_with(name, bytes, json!({}))
}

fn npy<T: npyz::Serialize + npyz::AutoSerialize + Copy>(shape: &[u64], values: &[T]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let options = npyz::WriteOptions::new()
        .default_dtype()
        .shape(shape)
        .writer(&mut bytes);
    let mut writer = options.begin_nd().expect("a vector takes writes");
    writer
        .extend(values.iter().copied())
        .expect("a vector takes writes");
    writer.finish().expect("a vector takes writes");
    bytes
}

#[test]
fn every_form_reads_to_the_same_rows() {
    let rows = [3u64, 0, 2, 1, 4];
    let raw = |width: usize| -> Vec<u8> {
        rows.iter()
            .flat_map(|r| r.to_le_bytes()[..width].to_vec())
            .collect()
    };
    let want = Ok(rows.to_vec());
    assert_eq!(read_bytes("a.bin", &raw(4)), want);
    assert_eq!(read_bytes("a.bin", &raw(8)), want);
    let cut =
        |dtype: &str, rows: &str| read_with("a.bin", &raw(8)[..16], json!({"dtype": dtype, "rows": rows}));
    assert_eq!(cut("u64", "distinct"), Ok(vec![3, 0]));
    assert_eq!(cut("u32", "any"), Ok(vec![3, 0, 0, 0]));
    assert_eq!(read_bytes("a.npy", &npy(&[5], &rows)), want);
    assert_eq!(read_bytes("a.npy", &npy(&[5], &rows.map(|r| r as i64))), want);
    assert_eq!(read_bytes("a.npy", &npy(&[5], &rows.map(|r| r as i32))), want);
    assert_eq!(read_bytes("a.npy", &npy(&[5], &rows.map(|r| r as u16))), want);
    assert_eq!(read_bytes("a.npy", &npy(&[5], &rows.map(|r| r as i8))), want);
    assert_eq!(
        read_bytes("a.txt", b"# rows\n3\n0\n\n 2 \r\n1 # last but one\n4"),
        want
    );
    // Written by a big-endian machine: the same header but for the mark, the bytes of each value reversed.
    let mut big = npy(&[5], &rows.map(|r| r as u32));
    let values = big.len() - 20;
    big[values..].chunks_exact_mut(4).for_each(<[u8]>::reverse);
    let mark = big.iter().position(|b| *b == b'<').expect("a little-endian mark");
    big[mark] = b'>';
    assert_eq!(read_bytes("a.npy", &big), want);
}

#[test]
fn a_wrong_entry_is_named_by_line_or_byte() {
    let raw = |rows: &[u32]| -> Vec<u8> { rows.iter().flat_map(|r| r.to_le_bytes()).collect() };
    for (name, content, needle) in [
        (
            "a.txt",
            b"3\n\n# x\n0\n3\n1\n2\n".to_vec(),
            "a.txt, line 5: row 3 stands in the list a second time",
        ),
        (
            "a.txt",
            b"3\n#\n5\n".to_vec(),
            "a.txt, line 3: row 5 is out of range: the dataset has 5 rows",
        ),
        ("a.txt", b"1\n-2\n".to_vec(), "a.txt, line 2: `-2` is not a row"),
        (
            "a.txt",
            b"1\n99999999999999999999\n".to_vec(),
            "a.txt, line 2: `9999",
        ),
        (
            "a.txt",
            b"1\n3\n0\n2\n".to_vec(),
            "a.txt, line 4: the list ends after 4 of 5 rows: row 4 is missing",
        ),
        (
            "a.bin",
            raw(&[0, 1, 2, 3, 5]),
            "a.bin, entry 4 (byte 16): row 5 is out of range",
        ),
        (
            "a.bin",
            raw(&[0, 1, 2, 1, 4]),
            "a.bin, entry 3 (byte 12): row 1 stands",
        ),
        (
            "a.npy",
            npy(&[2], &[3i64, -1]),
            "a.npy, entry 1 (byte 136): -1 is not a row",
        ),
        (
            "a.npy",
            npy(&[2], &[3i8, -1]),
            "a.npy, entry 1 (byte 129): -1 is not a row",
        ),
    ] {
        let error = read_bytes(name, &content).expect_err(needle);
        assert!(error.contains(needle), "{error}");
    }
}

#[test]
fn what_is_no_list_of_rows_is_refused() {
    let bytes = npy(&[5], &[3i64, 0, 2, 1, 4]);
    let mut long_header = bytes.clone();
    long_header[6] = 2;
    long_header[8..12].fill(0xff);
    // Found by fuzzing: npyz takes hours over a hundred open braces.
    let mut nested = bytes.clone();
    nested[10..70].fill(b'{');
    for (name, content, needle) in [
        ("a.npy", npy(&[2, 1], &[3i64, 1]), "one dimension"),
        ("a.npy", npy(&[2], &[3f64, 1.0]), "rows are integers"),
        (
            "a.npy",
            bytes[..bytes.len() - 8].to_vec(),
            "5 entries announced, 4 found",
        ),
        (
            "a.npy",
            [&bytes[..], &[0; 8]].concat(),
            "5 entries announced, 6 found",
        ),
        ("a.npy", bytes[..40].to_vec(), "its header claims"),
        ("a.npy", long_header, "its header claims 4294967295 bytes"),
        ("a.npy", nested, "nests brackets deeper"),
        ("a.npy", b"rows".to_vec(), "not a numpy array"),
        ("a.npy", Vec::new(), "not a numpy array"),
        ("a.npz", b"PK".to_vec(), "save the one with the rows as .npy"),
        (
            "a.bin",
            vec![1, 0, 0, 0, 0, 0, 0, 0],
            "neither 5 rows of 4 nor of 8 bytes",
        ),
        ("a.txt", vec![b'1'; 5000], "line 1 is longer than 4096 bytes"),
        ("a.txt", vec![b'1', b'\n', 0xff, b'\n'], "line 2 is not text"),
    ] {
        let error = read_bytes(name, &content).expect_err(needle);
        assert!(error.contains(needle), "{error}");
    }
    let cut = read_with("a.bin", &[0; 7], json!({"dtype": "u32"})).expect_err("seven bytes");
    assert!(cut.contains("no whole number of 4-byte integers"), "{cut}");
    let typed = read_with("a.txt", b"1", json!({"dtype": "u32"})).expect_err("a text file");
    assert!(typed.contains("dtype is for .bin files"), "{typed}");
}

#[test]
fn the_digest_does_not_depend_on_the_form_and_another_list_is_refused() {
    let list = Permutation::Narrow(vec![3, 0, 2]);
    let bytes: Vec<u8> = [3u64, 0, 2].iter().flat_map(|row| row.to_le_bytes()).collect();
    let expected = blake3::hash(&bytes).to_hex().to_string();
    assert_eq!(digest(&list), expected);
    assert_eq!(digest(&list), digest(&Permutation::Wide(vec![3, 0, 2])));
    let options = json!({"rows": "distinct", "digest": expected});
    assert_eq!(
        read_with("a.txt", b"3\n0\n2\n", options.clone()),
        Ok(vec![3, 0, 2])
    );
    let other = read_with("a.txt", b"3\n2\n0\n", options).expect_err("another list");
    assert!(other.contains(&format!("expected {expected}")), "{other}");
}
