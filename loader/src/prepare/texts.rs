//! Documents as text, out of parquet, JSON lines (plain, gzip, zstd) and Arrow files, one after another.
//!
//! Memory: one block of rows of one file. A line, or a value, of more than a limit is refused before it is held.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Seek};
use std::path::{Path, PathBuf};

use arrow_array::{Array, ArrayRef, LargeStringArray, RecordBatch, StringArray, StringViewArray};
use arrow_schema::{ArrowError, Schema};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};

use super::PrepareError;

/// Rows read at a time from columnar files.
const ROWS: usize = 1024;

/// How a file of text is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Parquet,
    JsonLines(Compression),
    Arrow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compression {
    None,
    Gzip,
    Zstd,
}

const ENDINGS: &str = ".parquet, .jsonl, .json, .ndjson (also with .gz or .zst behind) and .arrow";

fn form_of(path: &Path) -> Option<Form> {
    let name = path.file_name()?.to_str()?.to_lowercase();
    let (name, compression) = match (name.strip_suffix(".gz"), name.strip_suffix(".zst")) {
        (Some(inner), _) => (inner, Compression::Gzip),
        (_, Some(inner)) => (inner, Compression::Zstd),
        _ => (name.as_str(), Compression::None),
    };
    let plain = compression == Compression::None;
    match name.rsplit_once('.')?.1 {
        "parquet" if plain => Some(Form::Parquet),
        "arrow" if plain => Some(Form::Arrow),
        "jsonl" | "json" | "ndjson" => Some(Form::JsonLines(compression)),
        _ => None,
    }
}

/// The files behind a list of files and folders: a saved Hugging Face folder gives the files its `state.json` names, any
/// other folder all files of a known ending, by name.
///
/// # Errors
/// A path that is not there, a file of another ending, a folder without any file.
pub fn list_inputs(paths: &[PathBuf]) -> Result<Vec<PathBuf>, PrepareError> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            if !path.exists() {
                return Err(PrepareError::Options(format!(
                    "{}: no such file or folder",
                    path.display()
                )));
            }
            if form_of(path).is_none() {
                return Err(PrepareError::Options(format!(
                    "{}: not a file of text by its name; known are {ENDINGS}",
                    path.display()
                )));
            }
            files.push(path.clone());
            continue;
        }
        let before = files.len();
        let state = path.join("state.json");
        if state.is_file() {
            files.extend(files_of_state(path, &state)?);
        } else {
            let list = |e| PrepareError::io(path, "list", e);
            let mut inside = Vec::new();
            for entry in fs::read_dir(path).map_err(list)? {
                let file = entry.map_err(list)?.path();
                if file.is_file() && form_of(&file).is_some() {
                    inside.push(file);
                }
            }
            inside.sort();
            files.extend(inside);
        }
        if files.len() == before {
            return Err(PrepareError::Options(format!(
                "{}: the folder holds no file of text; known are {ENDINGS}",
                path.display()
            )));
        }
    }
    Ok(files)
}

fn files_of_state(folder: &Path, state: &Path) -> Result<Vec<PathBuf>, PrepareError> {
    #[derive(serde::Deserialize)]
    struct State {
        #[serde(rename = "_data_files")]
        data_files: Vec<DataFile>,
    }
    #[derive(serde::Deserialize)]
    struct DataFile {
        filename: String,
    }
    let text = fs::read_to_string(state).map_err(|e| PrepareError::io(state, "read", e))?;
    let state: State = serde_json::from_str(&text).map_err(|e| PrepareError::Text {
        path: state.to_owned(),
        place: "state".into(),
        problem: e.to_string(),
    })?;
    state
        .data_files
        .into_iter()
        .map(|file| {
            let path = folder.join(&file.filename);
            if file.filename.contains('/') || !path.is_file() {
                return Err(PrepareError::Options(format!(
                    "{}: state.json names {}, which is not there",
                    folder.display(),
                    file.filename
                )));
            }
            Ok(path)
        })
        .collect()
}

/// Gives every document of a file to `take`, in order; `progress` is told the bytes of the file read so far, and an error
/// of it ends the reading.
///
/// # Errors
/// A file that cannot be read, a value that is null or no text, a text longer than `longest` bytes, and what `take`
/// returns. Each names file and row (or line).
pub fn for_each_text(
    path: &Path,
    column: &str,
    longest: usize,
    progress: &mut dyn FnMut(u64) -> Result<(), PrepareError>,
    take: &mut dyn FnMut(&str) -> Result<(), PrepareError>,
) -> Result<(), PrepareError> {
    let mut take = |place: &dyn Fn() -> String, text: &str| {
        if text.len() > longest {
            return Err(PrepareError::Text {
                path: path.to_owned(),
                place: place(),
                problem: format!(
                    "a text of {} bytes; the memory limit allows {longest}",
                    text.len()
                ),
            });
        }
        take(text)
    };
    match form_of(path) {
        Some(Form::JsonLines(compression)) => {
            json_lines(path, compression, column, longest, progress, &mut take)
        }
        Some(Form::Parquet) => parquet(path, column, progress, &mut take),
        Some(Form::Arrow) => arrow(path, column, progress, &mut take),
        None => Err(PrepareError::Options(format!(
            "{}: known are {ENDINGS}",
            path.display()
        ))),
    }
}

type Take<'a> = &'a mut dyn FnMut(&dyn Fn() -> String, &str) -> Result<(), PrepareError>;

fn open(path: &Path) -> Result<File, PrepareError> {
    File::open(path).map_err(|e| PrepareError::io(path, "open", e))
}

/// Counts the bytes that go through.
struct Counted<R> {
    inner: R,
    bytes: std::rc::Rc<std::cell::Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let n = self.inner.read(out)?;
        self.bytes.set(self.bytes.get() + n as u64);
        Ok(n)
    }
}

fn json_lines(
    path: &Path,
    compression: Compression,
    column: &str,
    longest: usize,
    progress: &mut dyn FnMut(u64) -> Result<(), PrepareError>,
    take: Take<'_>,
) -> Result<(), PrepareError> {
    let bytes = std::rc::Rc::new(std::cell::Cell::new(0));
    let file = Counted {
        inner: open(path)?,
        bytes: bytes.clone(),
    };
    let file = BufReader::with_capacity(1 << 20, file);
    let fail = |e| PrepareError::io(path, "read", e);
    let mut lines: Box<dyn BufRead> = match compression {
        Compression::None => Box::new(file),
        Compression::Gzip => Box::new(BufReader::with_capacity(
            1 << 20,
            flate2::bufread::MultiGzDecoder::new(file),
        )),
        Compression::Zstd => Box::new(BufReader::with_capacity(
            1 << 20,
            zstd::stream::read::Decoder::with_buffer(file).map_err(fail)?,
        )),
    };
    // A line holds the text with its escapes, and the other fields beside it.
    let limit = (longest as u64).saturating_mul(8).saturating_add(1 << 20);
    let (mut line, mut number, mut field) = (Vec::new(), 0u64, String::new());
    loop {
        line.clear();
        number += 1;
        let read = lines
            .by_ref()
            .take(limit)
            .read_until(b'\n', &mut line)
            .map_err(fail)?;
        if read == 0 {
            return progress(bytes.get());
        }
        let bad = |problem: String| PrepareError::Text {
            path: path.to_owned(),
            place: format!("line {number}"),
            problem,
        };
        if read as u64 == limit && line.last() != Some(&b'\n') {
            return Err(bad(format!("more than {limit} bytes; raise the memory limit")));
        }
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let mut json = serde_json::Deserializer::from_slice(&line);
        let found = Field {
            name: column,
            into: &mut field,
        }
        .deserialize(&mut json)
        .and_then(|found| json.end().map(|()| found))
        .map_err(|e| bad(e.to_string()))?;
        match found {
            Found::Text => take(&|| format!("line {number}"), &field)?,
            Found::Missing => return Err(bad(format!("no field {column:?}"))),
            Found::Null => return Err(bad(format!("{column:?} is null"))),
        }
        if number.is_multiple_of(1024) {
            progress(bytes.get())?;
        }
    }
}

/// What a line holds under the field's name; text goes into the string.
enum Found {
    Text,
    Null,
    Missing,
}

struct Field<'a> {
    name: &'a str,
    into: &'a mut String,
}

impl<'de> DeserializeSeed<'de> for Field<'_> {
    type Value = Found;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Found, D::Error> {
        struct Line<'a>(Field<'a>);
        impl<'de> Visitor<'de> for Line<'_> {
            type Value = Found;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object with one document")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Found, A::Error> {
                let mut found = Found::Missing;
                // Keys may hold escapes, so they cannot be borrowed. As in Python, the last of equal keys counts.
                while let Some(key) = map.next_key::<String>()? {
                    if key != self.0.name {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    }
                    found = match map.next_value::<Option<String>>()? {
                        Some(text) => {
                            *self.0.into = text;
                            Found::Text
                        }
                        None => Found::Null,
                    };
                }
                Ok(found)
            }
        }
        deserializer.deserialize_map(Line(self))
    }
}

fn parquet(
    path: &Path,
    column: &str,
    progress: &mut dyn FnMut(u64) -> Result<(), PrepareError>,
    take: Take<'_>,
) -> Result<(), PrepareError> {
    let bad = |problem: String| PrepareError::Text {
        path: path.to_owned(),
        place: "parquet".into(),
        problem,
    };
    let file = open(path)?;
    let size = file
        .metadata()
        .map_err(|e| PrepareError::io(path, "examine", e))?
        .len();
    let builder = ParquetRecordBatchReaderBuilder::try_new(file).map_err(|e| bad(e.to_string()))?;
    let at = column_of(path, builder.schema(), column)?;
    let mask = ProjectionMask::roots(builder.parquet_schema(), [at]);
    let rows = u64::try_from(builder.metadata().file_metadata().num_rows())
        .unwrap_or(0)
        .max(1);
    let reader = builder
        .with_projection(mask)
        .with_batch_size(ROWS)
        .build()
        .map_err(|e| bad(e.to_string()))?;
    let mut row = 0;
    for batch in reader {
        let batch = batch.map_err(|e| bad(format!("row {row} or later: {e}")))?;
        texts_of(path, batch.column(0), column, &mut row, take)?;
        progress((size as f64 * (row as f64 / rows as f64)) as u64)?;
    }
    progress(size)
}

fn arrow(
    path: &Path,
    column: &str,
    progress: &mut dyn FnMut(u64) -> Result<(), PrepareError>,
    take: Take<'_>,
) -> Result<(), PrepareError> {
    let bad = |e: ArrowError| PrepareError::Text {
        path: path.to_owned(),
        place: "arrow".into(),
        problem: e.to_string(),
    };
    let mut file = open(path)?;
    let size = file
        .metadata()
        .map_err(|e| PrepareError::io(path, "examine", e))?
        .len();
    let mut magic = [0u8; 6];
    let is_file = file.read_exact(&mut magic).is_ok() && &magic == b"ARROW1";
    file.rewind().map_err(|e| PrepareError::io(path, "read", e))?;
    let bytes = std::rc::Rc::new(std::cell::Cell::new(0));
    let mut row = 0;
    let mut each = |batch: Result<RecordBatch, ArrowError>| {
        let batch = batch.map_err(bad)?;
        texts_of(path, batch.column(0), column, &mut row, &mut *take)
    };
    if is_file {
        let reader = arrow_ipc::reader::FileReader::try_new_buffered(file, None).map_err(bad)?;
        let at = column_of(path, &reader.schema(), column)?;
        let file = open(path)?;
        let batches = arrow_ipc::reader::FileReader::try_new_buffered(file, Some(vec![at])).map_err(bad)?;
        let all = batches.num_batches().max(1) as u64;
        for (done, batch) in (1u64..).zip(batches) {
            each(batch)?;
            progress((u128::from(size) * u128::from(done) / u128::from(all)) as u64)?;
        }
    } else {
        let counted = Counted {
            inner: file,
            bytes: bytes.clone(),
        };
        let reader =
            arrow_ipc::reader::StreamReader::try_new(BufReader::with_capacity(1 << 20, counted), None);
        let reader = reader.map_err(bad)?;
        let at = column_of(path, &reader.schema(), column)?;
        for batch in reader {
            each(batch.and_then(|batch| batch.project(&[at])))?;
            progress(bytes.get())?;
        }
    }
    progress(size)
}

fn column_of(path: &Path, schema: &Schema, column: &str) -> Result<usize, PrepareError> {
    schema.index_of(column).map_err(|_| {
        let names: Vec<&str> = schema.fields().iter().map(|f| f.name().as_str()).collect();
        PrepareError::Options(format!(
            "{}: no column {column:?}; there are {} (--text-column)",
            path.display(),
            names.join(", ")
        ))
    })
}

fn texts_of<'a>(
    path: &Path,
    array: &'a ArrayRef,
    column: &str,
    row: &mut u64,
    take: Take<'_>,
) -> Result<(), PrepareError> {
    let any = array.as_any();
    let get: Box<dyn Fn(usize) -> &'a str + 'a> = if let Some(a) = any.downcast_ref::<StringArray>() {
        Box::new(|i| a.value(i))
    } else if let Some(a) = any.downcast_ref::<LargeStringArray>() {
        Box::new(|i| a.value(i))
    } else if let Some(a) = any.downcast_ref::<StringViewArray>() {
        Box::new(|i| a.value(i))
    } else {
        return Err(PrepareError::Options(format!(
            "{}: column {column:?} holds {}, not text",
            path.display(),
            array.data_type()
        )));
    };
    for i in 0..array.len() {
        let here = *row;
        if array.is_null(i) {
            return Err(PrepareError::Text {
                path: path.to_owned(),
                place: format!("row {here}"),
                problem: format!("{column:?} is null"),
            });
        }
        take(&|| format!("row {here}"), get(i))?;
        *row += 1;
    }
    Ok(())
}
