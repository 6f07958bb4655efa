//! Text to tokens: a saved Hugging Face folder of equal rows, or a Megatron `.bin/.idx`.
//!
//! Rows reproduce flash-linear-attention's legacy preprocessing over datasets 5.2.0: `shuffle(seed)`, then `map` in
//! batches, which with `num_proc` first cuts the shuffled documents into that many contiguous parts; the token lists of a
//! batch are laid end to end and cut into rows of `seq_length`, and what is left at the end of the batch is dropped. So
//! `num_proc` and `batch_size` are part of the result; the number of threads here is not.
//!
//! Megatron output reproduces `preprocess_data.py` of Megatron-LM: documents in the order they come, one sequence each,
//! the end-of-document token counted in its length; a document without a token gets a bound but no sequence.
//!
//! Work is done in units of documents and journalled, so a killed job goes on where it stood. Memory: the texts and
//! tokens of one unit, which the limit decides, the shuffled order (4 bytes a document) and the page cache.

use std::fs::{self, File};
use std::io::{BufReader, BufWriter, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use ceteris_samplers::Permutation;
use ceteris_samplers::rng::numpy::Generator;
use rayon::prelude::*;
use serde::Serialize;

use super::encoder::Encoder;
use super::journal::{Counts, Journal};
use super::save_to_disk::{self, Rows, num_shards};
use super::spool::Spool;
use super::{PrepareError, Progress, texts};
use crate::atomic;
use crate::source::mapped::MappedFile;
use crate::source::megatron::{bin_path, idx_path, with_suffix};
use crate::source::megatron_idx::TokenType;
use crate::source::megatron_writer::{WriteError, write_index};

/// Memory in use for each byte of text of a unit: the text, its tokens, and what the tokenizer holds meanwhile.
const MEMORY_PER_BYTE: u64 = 24;
/// Length that stands for a document without a sequence.
const NO_SEQUENCE: u32 = u32::MAX;

/// What becomes of the tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// A saved Hugging Face folder of rows of equal length.
    Rows {
        /// Tokens of a row.
        seq_length: usize,
        /// Seed of the shuffle of documents, `None` for the order they come in.
        seed: Option<u64>,
        /// `num_proc` of `map` and of `save_to_disk`.
        num_proc: u64,
        /// Documents of a batch.
        batch_size: u64,
    },
    /// A Megatron dataset.
    Megatron {
        /// Token put behind each document.
        append_eod: Option<i32>,
        /// Vocabulary size that decides the width; `None` is the tokenizer's.
        vocab_size: Option<u64>,
        /// What becomes of a document without a token.
        empty: EmptyDocuments,
    },
}

/// Documents that come to no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EmptyDocuments {
    /// A document bound without a sequence and without an end token, as Megatron's own script writes.
    Keep,
    /// Left out.
    Skip,
    /// A sequence of the end token alone.
    EndToken,
}

/// A job.
#[derive(Clone, Debug)]
pub struct TokenizeOptions {
    /// Files and folders of text, in order.
    pub inputs: Vec<PathBuf>,
    /// Column or field that holds the text.
    pub text_column: String,
    /// `tokenizer.json`, or a folder with one.
    pub tokenizer: PathBuf,
    /// Add what the tokenizer's post-processor adds.
    pub special_tokens: bool,
    /// Folder to make, or prefix of the Megatron files.
    pub out: PathBuf,
    /// What to make.
    pub target: Target,
    /// Memory to stay within, in bytes.
    pub memory: u64,
    /// Replace what is there.
    pub overwrite: bool,
    /// Throw an unfinished job away.
    pub restart: bool,
}

/// What a job came to.
#[derive(Clone, Debug, Serialize)]
pub struct Tokenized {
    /// Counters.
    pub counts: Counts,
    /// Files of the result.
    pub files: Vec<PathBuf>,
    /// Stored type of a token.
    pub token_type: &'static str,
    /// Units that an earlier, interrupted run had done.
    pub resumed_units: u64,
}

/// Runs a job, or goes on with it.
///
/// # Errors
/// [`PrepareError`]; the work done so far is kept beside the output, in `OUT.partial`.
pub fn tokenize(options: &TokenizeOptions, progress: Progress<'_>) -> Result<Tokenized, PrepareError> {
    let inputs = texts::list_inputs(&options.inputs)?;
    let encoder = Encoder::open(&options.tokenizer, options.special_tokens)?;
    check(options, &encoder)?;
    let folder = with_suffix(&options.out, ".partial");
    fs::create_dir_all(&folder).map_err(|e| PrepareError::io(&folder, "create the folder", e))?;
    let lock_path = folder.join("lock");
    let lock = File::create(&lock_path).map_err(|e| PrepareError::io(&lock_path, "create", e))?;
    if let Err(fs::TryLockError::WouldBlock) = lock.try_lock() {
        return Err(PrepareError::Options(format!(
            "another process is at work in {}",
            folder.display()
        )));
    }
    if options.restart {
        // Under the lock, so that a job that runs keeps its files. Without these two the rest counts as not begun.
        for name in ["texts.done", "progress.json"] {
            remove_if_there(&folder.join(name))?;
        }
    }
    let mut journal = Journal::open(&folder, &job_hash(options, &inputs, &encoder)?)?;
    let unit_bytes = (options.memory / MEMORY_PER_BYTE).max(1 << 16);
    let longest = usize::try_from(unit_bytes).unwrap_or(usize::MAX);
    let spool =
        Spool::open_or_make(&folder, &inputs, &options.text_column, longest, progress).and_then(|spool| {
            match spool.len() {
                0 => Err(PrepareError::Options(
                    "there is no document in the input".to_owned(),
                )),
                _ => Ok(spool),
            }
        });
    let spool = match spool {
        // Nothing has come of input that cannot be read, so nothing of it stands in the way of the next try.
        Err(e) if journal.units() == 0 && !matches!(e, PrepareError::Stopped) => {
            let _ = fs::remove_dir_all(&folder);
            return Err(e);
        }
        spool => spool?,
    };
    let resumed_units = journal.units();
    let plan = Plan::new(&options.target, &spool, unit_bytes)?;
    plan.run(&mut journal, &encoder, &options.target, progress)?;
    let files = match &options.target {
        Target::Rows {
            seq_length, num_proc, ..
        } => finish_rows(options, &folder, &journal, *seq_length, *num_proc, progress)?,
        Target::Megatron { .. } => finish_megatron(options, &journal, token_type(&options.target, &encoder))?,
    };
    fs::remove_dir_all(&folder).map_err(|e| PrepareError::io(&folder, "remove", e))?;
    drop(lock);
    Ok(Tokenized {
        counts: journal.counts(),
        files,
        token_type: token_type(&options.target, &encoder).name(),
        resumed_units,
    })
}

/// Removes a file that may not be there.
fn remove_if_there(path: &Path) -> Result<(), PrepareError> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(PrepareError::io(path, "remove", e)),
        _ => Ok(()),
    }
}

fn check(options: &TokenizeOptions, encoder: &Encoder) -> Result<(), PrepareError> {
    let refuse = |problem: String| Err(PrepareError::Options(problem));
    let taken: Vec<PathBuf> = match &options.target {
        Target::Rows {
            seq_length,
            num_proc,
            batch_size,
            ..
        } => {
            for (name, value) in [
                ("seq_length", *seq_length as u64),
                ("num_proc", *num_proc),
                ("batch_size", *batch_size),
            ] {
                if value == 0 {
                    return refuse(format!("{name} is 0: it must be at least 1"));
                }
            }
            vec![options.out.clone()]
        }
        Target::Megatron {
            append_eod,
            vocab_size,
            empty,
        } => {
            if *empty == EmptyDocuments::EndToken && append_eod.is_none() {
                return refuse(
                    "empty documents cannot become an end token: none is appended (--append-eod)".to_owned(),
                );
            }
            if let Some(vocab_size) = vocab_size
                && *vocab_size < encoder.vocab_size()
            {
                return refuse(format!(
                    "a vocabulary of {vocab_size} is smaller than the tokenizer's ({})",
                    encoder.vocab_size()
                ));
            }
            let vocab_size = vocab_size.unwrap_or(encoder.vocab_size());
            if let Some(id) = append_eod
                && u64::try_from(*id).map_or(true, |id| id >= vocab_size)
            {
                return refuse(format!(
                    "--append-eod {id} lies outside the vocabulary of {vocab_size} (ids 0 to {}); give the end token \
                     by its text, or the --vocab-size of the model that has it",
                    vocab_size.saturating_sub(1)
                ));
            }
            vec![idx_path(&options.out), bin_path(&options.out)]
        }
    };
    for path in taken {
        if path.exists() && !options.overwrite {
            return refuse(format!(
                "{} exists already; choose another name, or ask for overwriting",
                path.display()
            ));
        }
    }
    Ok(())
}

fn token_type(target: &Target, encoder: &Encoder) -> TokenType {
    match target {
        Target::Rows { .. } => TokenType::I32,
        Target::Megatron { vocab_size, .. } => {
            TokenType::for_vocab(vocab_size.unwrap_or(encoder.vocab_size()))
        }
    }
}

/// Hash of all that decides the output: inputs as they lie on disk, tokenizer, options.
fn job_hash(
    options: &TokenizeOptions,
    inputs: &[PathBuf],
    encoder: &Encoder,
) -> Result<String, PrepareError> {
    use std::os::unix::fs::MetadataExt;
    let files: Vec<(String, u64, i64, i64)> = inputs
        .iter()
        .map(|path| {
            let meta = fs::metadata(path).map_err(|e| PrepareError::io(path, "examine", e))?;
            Ok((
                path.display().to_string(),
                meta.len(),
                meta.mtime(),
                meta.mtime_nsec(),
            ))
        })
        .collect::<Result<_, PrepareError>>()?;
    let about = serde_json::json!({
        "files": files,
        "text_column": options.text_column,
        "tokenizer": encoder.hash(),
        "special_tokens": options.special_tokens,
        "target": options.target,
        // Units depend on it, and the journal counts them.
        "memory": options.memory,
    });
    Ok(blake3::hash(about.to_string().as_bytes()).to_hex().to_string())
}

/// Documents in the order they are tokenized, in units; batches end where rows must not run on.
struct Plan<'a> {
    spool: &'a Spool,
    order: Permutation,
    /// First document of each unit, and one past the last.
    units: Vec<u64>,
    /// Ends of batches, ascending; rows only.
    batch_ends: Vec<u64>,
}

impl<'a> Plan<'a> {
    fn new(target: &Target, spool: &'a Spool, unit_bytes: u64) -> Result<Self, PrepareError> {
        let n = spool.len();
        let (order, batch_ends) = match target {
            Target::Rows {
                seed,
                num_proc,
                batch_size,
                ..
            } => {
                let order = match seed {
                    Some(seed) => Generator::default_rng(*seed)
                        .permutation(n)
                        .map_err(|e| PrepareError::Options(e.to_string()))?,
                    None => Permutation::Identity(n),
                };
                // datasets lowers num_proc to the number of documents.
                (order, batch_ends(n, (*num_proc).min(n), *batch_size))
            }
            Target::Megatron { .. } => (Permutation::Identity(n), Vec::new()),
        };
        let (mut units, mut bytes) = (vec![0], 0);
        for i in 0..n {
            let size = spool.size(order.get(i).unwrap_or(i))?;
            if bytes > 0 && bytes + size > unit_bytes {
                units.push(i);
                bytes = 0;
            }
            bytes += size.max(1);
        }
        units.push(n);
        Ok(Plan {
            spool,
            order,
            units,
            batch_ends,
        })
    }

    fn run(
        &self,
        journal: &mut Journal,
        encoder: &Encoder,
        target: &Target,
        progress: Progress<'_>,
    ) -> Result<(), PrepareError> {
        let mut state = Assembly::new(target, token_type(target, encoder), journal.counts());
        let done = usize::try_from(journal.units()).unwrap_or(usize::MAX);
        if done > 0
            && done < self.units.len() - 1
            && let Target::Rows { .. } = target
        {
            self.refill(&mut state, self.units[done], encoder, progress)?;
        }
        for unit in self.units.windows(2).skip(done) {
            if !progress("tokenizing", unit[0], self.spool.len()) {
                return Err(PrepareError::Stopped);
            }
            let done = AtomicU64::new(unit[0]);
            let documents: Vec<Vec<i32>> = (unit[0]..unit[1])
                .into_par_iter()
                .map(|i| {
                    let done = done.fetch_add(1, Ordering::Relaxed);
                    // A unit takes seconds: the user is not to wait for its end.
                    if done.is_multiple_of(64) && !progress("tokenizing", done, self.spool.len()) {
                        return Err(PrepareError::Stopped);
                    }
                    self.encode(i, encoder)
                })
                .collect::<Result<_, _>>()?;
            for (i, tokens) in (unit[0]..).zip(documents) {
                state.add(i, &tokens, self.batch_ends.binary_search(&(i + 1)).is_ok())?;
            }
            journal.add(&state.tokens, &state.lengths, state.counts)?;
            state.tokens.clear();
            state.lengths.clear();
        }
        progress("tokenizing", self.spool.len(), self.spool.len());
        Ok(())
    }

    fn encode(&self, i: u64, encoder: &Encoder) -> Result<Vec<i32>, PrepareError> {
        encoder.encode(&self.spool.text(self.order.get(i).unwrap_or(i))?)
    }

    /// After an interruption: the tokens of the batch in hand that no row holds yet. Only their number is known without
    /// tokenizing the batch's documents again, from its first one on.
    fn refill(
        &self,
        state: &mut Assembly,
        next: u64,
        encoder: &Encoder,
        progress: Progress<'_>,
    ) -> Result<(), PrepareError> {
        let at = self.batch_ends.partition_point(|&end| end <= next);
        let first = if at == 0 { 0 } else { self.batch_ends[at - 1] };
        // In reverse, until there are as many tokens as can be left over; the count of the whole batch says how many are.
        let lengths: Vec<usize> = (first..next)
            .into_par_iter()
            .map(|i| {
                if i.is_multiple_of(64) && !progress("going on", i - first, next - first) {
                    return Err(PrepareError::Stopped);
                }
                self.encode(i, encoder).map(|tokens| tokens.len())
            })
            .collect::<Result<_, _>>()?;
        let left = lengths.iter().sum::<usize>() % state.seq_length;
        let mut carry: Vec<i32> = Vec::new();
        for i in (first..next).rev() {
            if carry.len() >= left {
                break;
            }
            let mut tokens = self.encode(i, encoder)?;
            tokens.extend(carry);
            carry = tokens;
        }
        state.carry = carry.split_off(carry.len() - left.min(carry.len()));
        Ok(())
    }
}

/// Ends of the batches that `map` makes of `n` documents in `num_proc` contiguous parts.
fn batch_ends(n: u64, num_proc: u64, batch_size: u64) -> Vec<u64> {
    let (each, longer) = (n / num_proc.max(1), n % num_proc.max(1));
    let (mut ends, mut start) = (Vec::new(), 0);
    for part in 0..num_proc {
        let end = start + each + u64::from(part < longer);
        while start < end {
            start = start.saturating_add(batch_size).min(end);
            ends.push(start);
        }
    }
    ends
}

/// Turns documents, one after another, into the bytes of the output.
struct Assembly<'a> {
    target: &'a Target,
    token_type: TokenType,
    seq_length: usize,
    /// Tokens of the batch that no row holds yet.
    carry: Vec<i32>,
    tokens: Vec<u8>,
    lengths: Vec<u8>,
    counts: Counts,
}

impl<'a> Assembly<'a> {
    fn new(target: &'a Target, token_type: TokenType, counts: Counts) -> Self {
        let seq_length = match target {
            Target::Rows { seq_length, .. } => *seq_length,
            Target::Megatron { .. } => 0,
        };
        Assembly {
            target,
            token_type,
            seq_length,
            carry: Vec::new(),
            tokens: Vec::new(),
            lengths: Vec::new(),
            counts,
        }
    }

    fn add(&mut self, document: u64, tokens: &[i32], batch_ends: bool) -> Result<(), PrepareError> {
        self.counts.documents += 1;
        self.counts.tokens += tokens.len() as u64;
        self.counts.empty_documents += u64::from(tokens.is_empty());
        match self.target {
            Target::Rows { .. } => {
                self.carry.extend_from_slice(tokens);
                let whole = self.carry.len() / self.seq_length * self.seq_length;
                self.tokens
                    .extend(self.carry[..whole].iter().flat_map(|t| t.to_le_bytes()));
                self.carry.drain(..whole);
                self.counts.rows += (whole / self.seq_length) as u64;
                if batch_ends {
                    self.counts.dropped_tail_tokens += self.carry.len() as u64;
                    self.carry.clear();
                }
            }
            Target::Megatron {
                append_eod, empty, ..
            } => {
                let end = match (tokens.is_empty(), empty) {
                    (true, EmptyDocuments::Skip) => return Ok(()),
                    (true, EmptyDocuments::Keep) => {
                        self.lengths.extend(NO_SEQUENCE.to_le_bytes());
                        self.counts.rows += 1;
                        return Ok(());
                    }
                    _ => *append_eod,
                };
                let mut length = 0u64;
                for &token in tokens.iter().chain(&end) {
                    self.push(document, length, token)?;
                    length += 1;
                }
                let stored = u32::try_from(length).ok().filter(|&n| n <= i32::MAX as u32);
                let stored = stored.ok_or(WriteError::TooLong { document, length })?;
                self.lengths.extend(stored.to_le_bytes());
                self.counts.rows += 1;
            }
        }
        Ok(())
    }

    fn push(&mut self, document: u64, position: u64, token: i32) -> Result<(), PrepareError> {
        let max = self.token_type.max_token().unwrap_or(0);
        if token as u32 > max {
            let token_type = self.token_type;
            let position = usize::try_from(position).unwrap_or(usize::MAX);
            return Err(WriteError::TokenTooLarge {
                document,
                position,
                token,
                token_type,
                max,
            }
            .into());
        }
        match self.token_type.size() {
            2 => self.tokens.extend((token as u16).to_le_bytes()),
            _ => self.tokens.extend(token.to_le_bytes()),
        }
        Ok(())
    }
}

/// Rows of equal length in a file of i32.
struct FileRows {
    map: MappedFile,
    seq_length: usize,
}

impl Rows for FileRows {
    fn len(&self) -> u64 {
        self.map.len() / (4 * self.seq_length as u64)
    }

    fn tokens(&self) -> u64 {
        self.map.len() / 4
    }

    fn push(&self, i: u64, out: &mut Vec<i32>) -> Result<(), PrepareError> {
        let mut bytes = vec![0; 4 * self.seq_length];
        self.map.copy(i * bytes.len() as u64, &mut bytes)?;
        out.extend(
            bytes
                .as_chunks::<4>()
                .0
                .iter()
                .map(|word| i32::from_le_bytes(*word)),
        );
        Ok(())
    }
}

fn finish_rows(
    options: &TokenizeOptions,
    folder: &Path,
    journal: &Journal,
    seq_length: usize,
    num_proc: u64,
    progress: Progress<'_>,
) -> Result<Vec<PathBuf>, PrepareError> {
    let path = journal.tokens_path();
    let file = File::open(&path).map_err(|e| PrepareError::io(&path, "open", e))?;
    let rows = FileRows {
        map: MappedFile::new(&path, &file)?,
        seq_length,
    };
    if rows.is_empty() {
        return Err(PrepareError::Options(format!(
            "{} tokens in {} documents make no row of {seq_length}: every batch is shorter than that",
            journal.counts().tokens,
            journal.counts().documents
        )));
    }
    let work = folder.join("folder");
    let shards = num_shards(
        rows.len(),
        rows.tokens(),
        num_proc.min(journal.counts().documents),
    );
    let names = save_to_disk::write(&rows, shards, &work, &options.out, progress)?;
    Ok(names.into_iter().map(|name| options.out.join(name)).collect())
}

fn finish_megatron(
    options: &TokenizeOptions,
    journal: &Journal,
    token_type: TokenType,
) -> Result<Vec<PathBuf>, PrepareError> {
    let path = journal.lengths_path();
    let file = File::open(&path).map_err(|e| PrepareError::io(&path, "open", e))?;
    let mut reader = BufReader::with_capacity(1 << 20, file);
    let (mut lengths, mut bounds) = (Vec::new(), vec![0u64]);
    for _ in 0..journal.counts().rows {
        let mut word = [0; 4];
        reader
            .read_exact(&mut word)
            .map_err(|e| PrepareError::io(&path, "read", e))?;
        let length = u32::from_le_bytes(word);
        if length != NO_SEQUENCE {
            lengths.push(length);
        }
        bounds.push(lengths.len() as u64);
    }
    let (bin, idx) = (bin_path(&options.out), idx_path(&options.out));
    let mut out = BufWriter::new(atomic::begin(&idx).map_err(|e| PrepareError::io(&idx, "create", e))?);
    write_index(&mut out, token_type, &lengths, &bounds, None)
        .map_err(|e| PrepareError::io(&idx, "write", e))?;
    let index = out
        .into_inner()
        .map_err(|e| PrepareError::io(&idx, "write", e.into_error()))?;
    // The tokens keep their first name until the index is there: a kill in between loses nothing.
    for old in [&idx, &bin] {
        remove_if_there(old)?;
    }
    let tokens = journal.tokens_path();
    if fs::hard_link(&tokens, &bin).is_err() {
        let mut from = File::open(&tokens).map_err(|e| PrepareError::io(&tokens, "open", e))?;
        let mut copy = atomic::begin(&bin).map_err(|e| PrepareError::io(&bin, "create", e))?;
        std::io::copy(&mut from, &mut copy).map_err(|e| PrepareError::io(&bin, "write", e))?;
        atomic::commit(copy, &bin).map_err(|e| PrepareError::io(&bin, "finish", e))?;
    }
    atomic::commit(index, &idx).map_err(|e| PrepareError::io(&idx, "finish", e))?;
    Ok(vec![bin, idx])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_end_with_the_parts_of_map() {
        assert_eq!(batch_ends(10, 1, 4), [4, 8, 10]);
        assert_eq!(batch_ends(10, 3, 3), [3, 4, 7, 10]);
        assert_eq!(batch_ends(2, 2, 100), [1, 2]);
    }
}
