//! Datasets found in a folder of Megatron's cache, read back from their descriptions.
//!
//! A description says everything an index is built from but three things: the extra token, the partial-sequence option,
//! and the data ([`super::description`]).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ceteris_samplers::orders::blend::Shares;
use ceteris_samplers::orders::split::Split;

use super::description::md5_hex;
use super::plan::{DataSpec, MegatronConfig};
use super::python_json::PyJson;
use crate::source::SourceError;

/// Longest description that is read; a blend of 30,000 datasets stays below it.
const LARGEST: u64 = 256 << 20;

/// The description of a GPT dataset.
#[derive(Clone, Debug, PartialEq)]
pub struct GptDescription {
    /// The prefix as Megatron was given it.
    pub dataset_path: String,
    /// Samples asked for, `None` for one epoch.
    pub num_samples: Option<u64>,
    /// Which split.
    pub index_split: Split,
    /// Seed of the run.
    pub random_seed: u64,
    /// Tokens of a sample.
    pub sequence_length: u64,
    /// The split string, `None` where the splits have data of their own.
    pub split: Option<String>,
    /// What the tokenizer calls itself.
    pub tokenizer: PyJson,
}

/// What one description speaks of.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// A GPT dataset.
    Gpt(Box<GptDescription>),
    /// A blend.
    Blend {
        /// Its datasets.
        datasets: Vec<GptDescription>,
        /// Which split.
        split: Split,
        /// How it shares its draws out.
        shares: Shares,
    },
}

/// A description file.
#[derive(Clone, Debug)]
pub struct Described {
    /// Folder and name up to the last `-`, which the array files share.
    pub base: PathBuf,
    /// The text has the MD5 that the file is named by.
    pub md5_fits: bool,
    /// What it says, or why it cannot be read.
    pub content: Result<Content, String>,
}

impl Described {
    /// A file of this dataset.
    pub fn path(&self, what: &str) -> PathBuf {
        let mut path = self.base.clone().into_os_string();
        path.push("-");
        path.push(what);
        PathBuf::from(path)
    }

    /// Name without the folder.
    pub fn name(&self) -> String {
        self.base
            .file_name()
            .map(|n| n.to_string_lossy().into_owned())
            .unwrap_or_default()
    }
}

/// Every description in a folder, by name.
///
/// # Errors
/// A folder or file that cannot be read.
pub fn in_folder(folder: &Path) -> Result<Vec<Described>, SourceError> {
    let fail = |action: &'static str| move |e: io::Error| SourceError::io(folder, action, e);
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(fail("list"))? {
        let name = entry.map_err(fail("list"))?.file_name();
        if let Some(base) = name.to_string_lossy().strip_suffix("-description.txt") {
            names.push(base.to_owned());
        }
    }
    names.sort();
    names.into_iter().map(|name| read(folder, &name)).collect()
}

fn read(folder: &Path, name: &str) -> Result<Described, SourceError> {
    let base = folder.join(name);
    let path = folder.join(format!("{name}-description.txt"));
    let size = fs::metadata(&path)
        .map_err(|e| SourceError::io(&path, "examine", e))?
        .len();
    if size > LARGEST {
        let content = Err(format!("{size} bytes are no description"));
        return Ok(Described {
            base,
            md5_fits: false,
            content,
        });
    }
    let bytes = fs::read(&path).map_err(|e| SourceError::io(&path, "read", e))?;
    let text = String::from_utf8_lossy(&bytes);
    let md5_fits = name.split('-').next() == Some(md5_hex(&text).as_str());
    let content = serde_json::from_str::<PyJson>(&text)
        .map_err(|e| e.to_string())
        .and_then(|json| parse(&json));
    Ok(Described {
        base,
        md5_fits,
        content,
    })
}

fn field<'a>(json: &'a PyJson, key: &str) -> Result<&'a PyJson, String> {
    json.get(key)
        .ok_or_else(|| format!("the description has no {key:?}"))
}

fn text(json: &PyJson, key: &str) -> Result<String, String> {
    match field(json, key)? {
        PyJson::Str(text) => Ok(text.clone()),
        _ => Err(format!("{key:?} is no text")),
    }
}

fn number(value: &PyJson, key: &str) -> Result<u64, String> {
    match value {
        PyJson::Int(n) => u64::try_from(*n).map_err(|_| format!("{key:?} is {n}")),
        _ => Err(format!("{key:?} is no integer")),
    }
}

fn optional(json: &PyJson, key: &str) -> Result<Option<u64>, String> {
    match field(json, key)? {
        PyJson::Null => Ok(None),
        value => number(value, key).map(Some),
    }
}

fn parse(json: &PyJson) -> Result<Content, String> {
    match text(json, "class")?.as_str() {
        "GPTDataset" => Ok(Content::Gpt(Box::new(gpt(json)?))),
        "BlendedDataset" => blend(json),
        class => Err(format!(
            "datasets of class {class} are not known here (GPTDataset and BlendedDataset are)"
        )),
    }
}

fn gpt(json: &PyJson) -> Result<GptDescription, String> {
    if text(json, "class")? != "GPTDataset" {
        return Err("a blend of something else than GPT datasets".to_owned());
    }
    Ok(GptDescription {
        dataset_path: text(json, "dataset_path")?,
        num_samples: optional(json, "num_samples")?,
        index_split: text(json, "index_split")?.parse()?,
        random_seed: number(field(json, "random_seed")?, "random_seed")?,
        sequence_length: number(field(json, "sequence_length")?, "sequence_length")?,
        split: match field(json, "split")? {
            PyJson::Null => None,
            PyJson::Str(split) => Some(split.clone()),
            _ => return Err("\"split\" is no text".to_owned()),
        },
        tokenizer: field(json, "tokenizer")?.clone(),
    })
}

fn blend(json: &PyJson) -> Result<Content, String> {
    let PyJson::List(datasets) = field(json, "datasets")? else {
        return Err("\"datasets\" is no list".to_owned());
    };
    let PyJson::List(weights) = field(json, "weights")? else {
        return Err("\"weights\" is no list".to_owned());
    };
    if datasets.len() != weights.len() {
        return Err(format!(
            "{} datasets with {} weights",
            datasets.len(),
            weights.len()
        ));
    }
    let shares = match optional(json, "size")? {
        Some(size) => Shares::Weighted {
            size,
            weights: weights
                .iter()
                .map(|w| match w {
                    PyJson::Float(w) => Ok(*w),
                    PyJson::Int(w) => Ok(*w as f64),
                    _ => Err("a weight is no number".to_owned()),
                })
                .collect::<Result<_, _>>()?,
        },
        None => Shares::Exhaustive {
            lengths: weights
                .iter()
                .map(|w| number(w, "weights"))
                .collect::<Result<_, _>>()?,
        },
    };
    Ok(Content::Blend {
        datasets: datasets.iter().map(gpt).collect::<Result<_, _>>()?,
        split: text(json, "split")?.parse()?,
        shares,
    })
}

impl GptDescription {
    /// True when a run of `config` asks for this dataset. The tokenizer is not compared.
    pub fn is_of(
        &self,
        config: &MegatronConfig,
        split: Split,
        prefix: &str,
        num_samples: Option<u64>,
    ) -> bool {
        let split_string = match &config.data {
            DataSpec::Cut { split, .. } => Some(split.as_str()),
            DataSpec::PerSplit(_) => None,
        };
        self.dataset_path == prefix
            && self.num_samples == num_samples
            && self.index_split == split
            && self.random_seed == config.random_seed
            && self.sequence_length == config.sequence_length
            && self.split.as_deref() == split_string
    }
}
