//! Hugging Face safetensors: read into named tensors, written tensor by tensor.
//!
//! Layout as `safetensors` 0.8 and transformers write it: tensors sorted by name, metadata `{"format": "pt"}`. Reading
//! takes one file or an index of several, float types of 16, 32 and 64 bits, and names every tensor that is missing,
//! too many or of another shape. Memory: the mapped file and one block of values.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use memmap2::Mmap;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, Metadata, TensorInfo, TensorView};

use crate::model::parameters::NamedTensor;

/// Why a safetensors file cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum SafetensorsError {
    /// The operating system refused.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// Why.
        source: std::io::Error,
    },
    /// Not a safetensors file, or a damaged one.
    #[error("{}: not a valid safetensors file: {problem}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The tensors are not those of the model.
    #[error("{}: does not fit the model: {problem}", path.display())]
    Mismatch {
        /// The file or folder.
        path: PathBuf,
        /// What is missing, too many or of another shape.
        problem: String,
    },
    /// Whoever receives the values refused.
    #[error("{0}")]
    Receiver(String),
}

/// Float type a file stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// 32 bits.
    F32,
    /// 64 bits.
    F64,
}

/// A mapped safetensors file.
struct Mapped {
    path: PathBuf,
    map: Mmap,
}

impl Mapped {
    fn open(path: &Path) -> Result<Self, SafetensorsError> {
        let io = |action, source| SafetensorsError::Io {
            path: path.to_owned(),
            action,
            source,
        };
        let file = File::open(path).map_err(|e| io("open", e))?;
        // SAFETY: the map is read-only and private to this value. A file that another process shortens meanwhile would
        // end this process with SIGBUS; checkpoints are complete before they get their name and never rewritten.
        let map = unsafe { Mmap::map(&file) }.map_err(|e| io("map", e))?;
        Ok(Mapped {
            path: path.to_owned(),
            map,
        })
    }

    fn tensors(&self) -> Result<SafeTensors<'_>, SafetensorsError> {
        SafeTensors::deserialize(&self.map).map_err(|e| SafetensorsError::Format {
            path: self.path.clone(),
            problem: e.to_string(),
        })
    }
}

/// The files a checkpoint consists of: `path` itself, its `model.safetensors`, or the shards its index names.
fn files_of(path: &Path) -> Result<Vec<PathBuf>, SafetensorsError> {
    if path.is_file() {
        return Ok(vec![path.to_owned()]);
    }
    let single = path.join("model.safetensors");
    if single.is_file() {
        return Ok(vec![single]);
    }
    let index = path.join("model.safetensors.index.json");
    let text = std::fs::read_to_string(&index).map_err(|source| SafetensorsError::Io {
        path: path.to_owned(),
        action: "find model.safetensors or model.safetensors.index.json in",
        source,
    })?;
    let format = |problem: String| SafetensorsError::Format {
        path: index.clone(),
        problem,
    };
    let value: serde_json::Value = serde_json::from_str(&text).map_err(|e| format(e.to_string()))?;
    let map = value["weight_map"]
        .as_object()
        .ok_or_else(|| format("no weight_map".into()))?;
    let mut names: Vec<&str> = map.values().filter_map(|v| v.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    if names.is_empty() || names.iter().any(|n| Path::new(n).components().count() != 1) {
        return Err(format("weight_map names no files of this folder".into()));
    }
    Ok(names.into_iter().map(|n| path.join(n)).collect())
}

/// Receives the values of a tensor: its name, the index of the first value, values. An error is a reason in words.
pub type Receiver<'a, T> = dyn FnMut(&str, usize, &[T]) -> Result<(), String> + 'a;

/// Gives values of a tensor, by its index in the list written, from an index on.
pub type Giver<'a, E> = dyn FnMut(usize, usize, &mut [f64]) -> Result<(), E> + 'a;

/// Values converted at once.
const BLOCK: usize = 1 << 16;

/// Reads the tensors of a model from `path` (a file, or a folder with one file or an index) and hands them to `sink`, in
/// blocks with the index of their first value, as float32, rounding where the file stores more.
///
/// # Errors
/// [`SafetensorsError`]; a tensor that is missing, unknown or of another shape is named. A stored head that equals the
/// embedding bit for bit is accepted for a tied model.
pub fn read_f32(
    path: &Path,
    expected: &[NamedTensor],
    sink: &mut Receiver<'_, f32>,
) -> Result<(), SafetensorsError> {
    read(path, expected, sink)
}

/// As [`read_f32`], with every float type exact.
///
/// # Errors
/// As [`read_f32`].
pub fn read_f64(
    path: &Path,
    expected: &[NamedTensor],
    sink: &mut Receiver<'_, f64>,
) -> Result<(), SafetensorsError> {
    read(path, expected, sink)
}

fn read<T: Decoded>(
    path: &Path,
    expected: &[NamedTensor],
    sink: &mut Receiver<'_, T>,
) -> Result<(), SafetensorsError> {
    let files: Vec<Mapped> = files_of(path)?
        .iter()
        .map(|p| Mapped::open(p))
        .collect::<Result<_, _>>()?;
    let mut stored: BTreeMap<String, (usize, TensorView<'_>)> = BTreeMap::new();
    for (index, file) in files.iter().enumerate() {
        for (name, view) in file.tensors()?.tensors() {
            stored.insert(name, (index, view));
        }
    }
    let mismatch = |problem: String| SafetensorsError::Mismatch {
        path: path.to_owned(),
        problem,
    };
    let missing: Vec<&str> = expected
        .iter()
        .filter(|t| !stored.contains_key(&t.name))
        .map(|t| t.name.as_str())
        .collect();
    if !missing.is_empty() {
        return Err(mismatch(format!("missing: {}", some_of(&missing))));
    }
    let mut extra: Vec<&str> = stored
        .keys()
        .filter(|name| !expected.iter().any(|t| t.name == **name))
        .map(String::as_str)
        .collect();
    if extra == ["lm_head.weight"]
        && let (Some((_, head)), Some((_, table))) = (
            stored.get("lm_head.weight"),
            stored.get("model.embeddings.weight"),
        )
    {
        if head.dtype() != table.dtype() || head.data() != table.data() {
            return Err(mismatch(
                "lm_head.weight differs from model.embeddings.weight, but tie_word_embeddings is true".into(),
            ));
        }
        extra.clear();
    }
    if !extra.is_empty() {
        return Err(mismatch(format!("not of this model: {}", some_of(&extra))));
    }
    let mut buffer = Vec::new();
    for tensor in expected {
        let Some((_, view)) = stored.get(&tensor.name) else {
            continue;
        };
        if view.shape() != tensor.shape {
            return Err(mismatch(format!(
                "{} has shape {:?}, the model needs {:?}",
                tensor.name,
                view.shape(),
                tensor.shape
            )));
        }
        let size = size_of_element(view.dtype()).map_err(|p| mismatch(format!("{}: {p}", tensor.name)))?;
        for (block, bytes) in view.data().chunks(BLOCK * size).enumerate() {
            decode(view.dtype(), bytes, &mut buffer);
            sink(&tensor.name, block * BLOCK, &buffer).map_err(SafetensorsError::Receiver)?;
        }
    }
    Ok(())
}

fn some_of(names: &[&str]) -> String {
    let shown = names.iter().take(5).copied().collect::<Vec<_>>().join(", ");
    match names.len() {
        0..=5 => shown,
        n => format!("{shown} and {} more", n - 5),
    }
}

/// Types values are decoded to.
trait Decoded: Sized {
    fn from_f32(value: f32) -> Self;
    fn from_f64(value: f64) -> Self;
}

impl Decoded for f32 {
    fn from_f32(value: f32) -> f32 {
        value
    }
    fn from_f64(value: f64) -> f32 {
        value as f32
    }
}

impl Decoded for f64 {
    fn from_f32(value: f32) -> f64 {
        f64::from(value)
    }
    fn from_f64(value: f64) -> f64 {
        value
    }
}

fn size_of_element(dtype: Dtype) -> Result<usize, String> {
    match dtype {
        Dtype::F64 => Ok(8),
        Dtype::F32 => Ok(4),
        Dtype::F16 | Dtype::BF16 => Ok(2),
        other => Err(format!(
            "values of type {other:?} are not weights; allowed: F64, F32, F16, BF16"
        )),
    }
}

/// Decodes values of a type that [`size_of_element`] allows.
fn decode<T: Decoded>(dtype: Dtype, bytes: &[u8], out: &mut Vec<T>) {
    fn words<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> + '_ {
        bytes.as_chunks::<N>().0.iter().copied()
    }
    out.clear();
    match dtype {
        Dtype::F64 => out.extend(words(bytes).map(|b| T::from_f64(f64::from_le_bytes(b)))),
        Dtype::F16 => out.extend(words(bytes).map(|b| T::from_f32(f16::from_le_bytes(b).to_f32()))),
        Dtype::BF16 => out.extend(words(bytes).map(|b| T::from_f32(bf16::from_le_bytes(b).to_f32()))),
        _ => out.extend(words(bytes).map(|b| T::from_f32(f32::from_le_bytes(b)))),
    }
}

/// Writes a safetensors file block by block: `values` fills the numbers of a tensor from an index on.
///
/// # Errors
/// What `out` or `values` returns.
pub(super) fn write<E>(
    out: &mut dyn Write,
    tensors: &[(String, Vec<usize>)],
    stored: Stored,
    mut values: impl FnMut(usize, usize, &mut [f64]) -> Result<(), E>,
) -> Result<(), WriteError<E>> {
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.sort_by(|&a, &b| tensors[a].0.cmp(&tensors[b].0));
    let (dtype, size) = match stored {
        Stored::F32 => (Dtype::F32, 4),
        Stored::F64 => (Dtype::F64, 8),
    };
    let mut at = 0;
    let infos = order
        .iter()
        .map(|&i| {
            let (name, shape) = &tensors[i];
            let len = shape.iter().product::<usize>() * size;
            at += len;
            let info = TensorInfo {
                dtype,
                shape: shape.clone(),
                data_offsets: (at - len, at),
            };
            (name.clone(), info)
        })
        .collect();
    let format = [("format".to_owned(), "pt".to_owned())].into();
    let header = Metadata::new(Some(format), infos).map_err(|e| WriteError::Header(e.to_string()))?;
    let mut header = serde_json::to_vec(&header).map_err(|e| WriteError::Header(e.to_string()))?;
    header.resize(header.len().next_multiple_of(8), b' ');
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;
    let mut numbers = vec![0.0; BLOCK];
    let mut bytes = Vec::with_capacity(BLOCK * size);
    for i in order {
        let len: usize = tensors[i].1.iter().product();
        for first in (0..len).step_by(BLOCK) {
            let block = &mut numbers[..BLOCK.min(len - first)];
            values(i, first, block).map_err(WriteError::Values)?;
            bytes.clear();
            match stored {
                Stored::F32 => block.iter().for_each(|&x| bytes.extend((x as f32).to_le_bytes())),
                Stored::F64 => block.iter().for_each(|&x| bytes.extend(x.to_le_bytes())),
            }
            out.write_all(&bytes)?;
        }
    }
    Ok(())
}

/// Why writing failed.
#[derive(Debug, thiserror::Error)]
pub enum WriteError<E> {
    /// The file.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The header.
    #[error("{0}")]
    Header(String),
    /// The values.
    #[error("cannot read the values")]
    Values(E),
}

/// Writes weights as a folder that transformers and flash-linear-attention load: `config.json`, `model.safetensors`.
///
/// # Errors
/// [`SafetensorsError::Io`], also when the folder holds one of the files already.
pub fn write_model(
    folder: &Path,
    tensors: &[NamedTensor],
    weights: &[Vec<f32>],
    config_json: &serde_json::Value,
) -> Result<(), SafetensorsError> {
    let io = |path: &Path, action| {
        let path = path.to_owned();
        move |source| SafetensorsError::Io { path, action, source }
    };
    std::fs::create_dir_all(folder).map_err(io(folder, "create"))?;
    let path = folder.join("config.json");
    let mut file = File::create_new(&path).map_err(io(&path, "create"))?;
    serde_json::to_writer_pretty(&mut file, config_json).map_err(|e| io(&path, "write")(e.into()))?;
    let path = folder.join("model.safetensors");
    let file = File::create_new(&path).map_err(io(&path, "create"))?;
    let mut out = std::io::BufWriter::new(file);
    let list: Vec<(String, Vec<usize>)> = tensors
        .iter()
        .map(|t| (t.name.clone(), t.shape.clone()))
        .collect();
    write(&mut out, &list, Stored::F32, |tensor, first, block| {
        for (to, from) in block.iter_mut().zip(&weights[tensor][first..]) {
            *to = f64::from(*from);
        }
        Ok::<(), std::convert::Infallible>(())
    })
    .map_err(|e| match e {
        WriteError::Io(e) => io(&path, "write")(e),
        WriteError::Header(problem) => SafetensorsError::Format {
            path: path.clone(),
            problem,
        },
        WriteError::Values(never) => match never {},
    })?;
    let file = out.into_inner().map_err(|e| io(&path, "write")(e.into_error()))?;
    file.sync_all().map_err(io(&path, "sync"))
}
