//! `file`: an order given row by row.
//!
//! This project's own. The list is what one epoch consumes, obeyed to the letter, the same in every epoch; no
//! shuffle is applied. Reading the file is the caller's part: the order is built over the list it read.
//!
//! Bias: the file's. Memory: 4 bytes an entry (8 when a row number needs it), once for all epochs.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Needs, OptionHelp, OrderEntry, OwnDeal, options, to_json};
use crate::composed::{ComposedOrder, Parts};
use crate::order::Order;
use crate::permute::Permutation;
use crate::sampler::Sampler;
use crate::spec::{Fields, OrderError, OrderInput, OrderOptions, OrderSpec, Seed, SpecError};

/// The registry's line.
pub static ENTRY: OrderEntry = OrderEntry {
    name: "file",
    summary: "rows in the sequence a file gives: .npy, .bin of u32 or u64, or text with one row number a line",
    source: "this project's own",
    for_whom: "You have an order of your own (a curriculum, or the recorded order of another stack) that every later \
               stage must obey.",
    options: &[
        OptionHelp {
            key: "path",
            values: "path of a .npy, .bin or .txt file",
            default: "required",
            help: "the list of rows, first consumed first",
        },
        OptionHelp {
            key: "dtype",
            values: "u32, u64",
            default: "the width at which a .bin file holds as many rows as the dataset",
            help: "element type of a .bin file (little-endian)",
        },
        OptionHelp {
            key: "rows",
            values: "permutation, distinct, any",
            default: "permutation",
            help: "what the list must be: every row once, no row twice, or anything in range (a curriculum may repeat rows)",
        },
        OptionHelp {
            key: "digest",
            values: "64 hex digits",
            default: "not checked; filled in when the file is read",
            help: "BLAKE3 of the row numbers as little-endian u64: another list is refused",
        },
        options::DEAL,
        options::DROP_LAST,
        options::EVEN_BATCHES,
    ],
    needs: Needs::List,
    parse: |fields| Ok(OrderSpec::new(FileOrder::parse(fields)?)),
    examples: &[
        r#"{"name":"file","path":"order.npy"}"#,
        r#"{"name":"file","path":"order.txt","deal":"strided","even_batches":true}"#,
        r#"{"name":"file","path":"order.bin","dtype":"u64","rows":"any","drop_last":true}"#,
    ],
};

/// Options of `file`.
#[derive(Clone, Debug, Serialize)]
pub struct FileOrder {
    path: String,
    dtype: Option<BinDtype>,
    rows: Rows,
    digest: Option<String>,
    #[serde(flatten)]
    deal: OwnDeal,
}

/// Element type of a `.bin` list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BinDtype {
    /// 4 bytes, little-endian.
    U32,
    /// 8 bytes, little-endian.
    U64,
}

/// What a list must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rows {
    /// Every row of the dataset exactly once.
    Permutation,
    /// No row twice.
    Distinct,
    /// Any rows in range.
    Any,
}

impl FileOrder {
    fn parse(fields: &mut Fields) -> Result<Self, SpecError> {
        let path = fields.take("path")?;
        let options = FileOrder {
            path: path
                .ok_or_else(|| fields.refuse("path", "it is required: the file that holds the list"))?,
            dtype: fields.take("dtype")?,
            rows: fields.or("rows", Rows::Permutation)?,
            digest: fields.take("digest")?,
            deal: OwnDeal::parse(fields)?,
        };
        let hex = |d: &String| d.len() == 64 && d.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if !options.digest.as_ref().is_none_or(hex) {
            return Err(fields.refuse("digest", "it is not 64 lower-case hex digits"));
        }
        Ok(options)
    }

    /// Path of the list, as written.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Element type of a `.bin` list, when given.
    pub fn dtype(&self) -> Option<BinDtype> {
        self.dtype
    }

    /// What the list must be.
    pub fn rows(&self) -> Rows {
        self.rows
    }

    /// Expected digest, when given.
    pub fn digest(&self) -> Option<&str> {
        self.digest.as_deref()
    }

    /// The same options with the digest of the list that was read.
    pub fn with_digest(&self, digest: String) -> Self {
        FileOrder {
            digest: Some(digest),
            ..self.clone()
        }
    }
}

/// A fault of a list at one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListFault {
    /// Which entry, from 0.
    pub entry: u64,
    /// What is wrong with it.
    pub why: String,
}

/// Checks a list of rows against a dataset of `num_samples` rows.
///
/// # Errors
/// The first fault; a list that ends too early has it past its last entry.
pub fn check_list(list: &Permutation, num_samples: u64, rows: Rows) -> Result<(), ListFault> {
    let fault = |entry: u64, why: String| Err(ListFault { entry, why });
    if let Some((at, row)) = (0..).zip(list.iter()).find(|(_, row)| *row >= num_samples) {
        return fault(
            at,
            format!("row {row} is out of range: the dataset has {num_samples} rows"),
        );
    }
    if rows == Rows::Any {
        return Ok(());
    }
    // Every row is in range, so `num_samples` bits are about a list that exists.
    let words = usize::try_from(num_samples.div_ceil(64)).unwrap_or(usize::MAX);
    let mut seen: Vec<u64> = Vec::new();
    if seen.try_reserve_exact(words).is_err() {
        return fault(
            0,
            format!("{num_samples} rows are too many to check for repeats in memory"),
        );
    }
    seen.resize(words, 0);
    for (at, row) in (0u64..).zip(list.iter()) {
        let (word, bit) = ((row / 64) as usize, 1u64 << (row % 64));
        if seen[word] & bit != 0 {
            return fault(at, format!("row {row} stands in the list a second time"));
        }
        seen[word] |= bit;
    }
    if rows == Rows::Permutation && list.len() != num_samples {
        let missing = (0..num_samples).find(|row| seen[(row / 64) as usize] & (1 << (row % 64)) == 0);
        return fault(
            list.len(),
            format!(
                "the list ends after {} of {num_samples} rows: row {} is missing (rows: distinct allows that)",
                list.len(),
                missing.unwrap_or_default()
            ),
        );
    }
    Ok(())
}

/// The list itself, in every epoch.
#[derive(Clone, Debug)]
struct List(Arc<Permutation>);

impl Sampler for List {
    fn len(&self, _positions: u64) -> u64 {
        self.0.len()
    }

    fn list(&self, _epoch: u64, _positions: u64) -> Result<Arc<Permutation>, OrderError> {
        Ok(Arc::clone(&self.0))
    }
}

impl OrderOptions for FileOrder {
    fn entry(&self) -> &'static OrderEntry {
        &ENTRY
    }

    fn to_json(&self) -> serde_json::Value {
        to_json(self)
    }

    fn seeds(&self) -> Vec<(&'static str, Seed)> {
        Vec::new()
    }

    fn build(&self, spec: &OrderSpec, input: &OrderInput) -> Result<Arc<dyn Order>, OrderError> {
        let list = input.list.clone().ok_or(OrderError::Input {
            order: ENTRY.name,
            what: "the list that its file holds",
        })?;
        check_list(&list, input.num_samples, self.rows).map_err(|fault| OrderError::List {
            order: ENTRY.name,
            index: fault.entry,
            why: fault.why,
        })?;
        let parts = Parts {
            dataset: Vec::new(),
            sampler: Box::new(List(list)),
            law: self.deal.law(),
            tail: self.deal.tail(),
            geometry: input.geometry,
        };
        Ok(Arc::new(ComposedOrder::new(spec, input, parts)?))
    }
}
