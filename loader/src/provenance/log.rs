//! Logs of what a run consumed: one JSON object a line for each micro-batch of each rank.
//!
//! `python/ceteris_log.py` writes them from any training loop; `loader … --format jsonl` writes the same keys. A log is
//! one `.jsonl` file or a folder of them (one a rank). A first line `{"ceteris_log": 1, …}` is a header.
//!
//! | key | |
//! |---|---|
//! | `epoch` | from 0; without it micro-steps are counted through the run |
//! | `micro_step` | from 0 within the epoch; without it the lines of a rank are counted |
//! | `step` | optimizer step, which tells how many micro-steps make one |
//! | `rank` | data-parallel rank (default: the header's) |
//! | `num_samples` | samples of the micro-batch, where no other key tells |
//! | `fingerprint` | of the micro-batch, over its samples as the rank consumed them |
//! | `samples` | fingerprint of each sample |
//! | `tokens` | the tokens of each sample, hashed here |
//! | `ids`, `rows` | sample ids |
//!
//! At least one of the last four stands in every line. Memory: 16 bytes a sample, about 100 a line.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::fingerprint::{DEFINITION, Fingerprint};

/// The version of the header this reads.
pub const LOG_VERSION: u32 = 1;

/// One micro-batch of one rank, as logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedBatch {
    /// Epoch, where the run knew it.
    pub epoch: Option<u64>,
    /// Micro-step: within the epoch, or through the run where no epoch is logged.
    pub micro_step: u64,
    /// Optimizer step, where the line tells.
    pub step: Option<u64>,
    /// Data-parallel rank.
    pub rank: u64,
    /// Its samples, where the line tells.
    pub num_samples: Option<usize>,
    /// Digest over the samples' digests.
    pub fingerprint: Option<Fingerprint>,
    /// Digest of each sample.
    pub samples: Option<Vec<Fingerprint>>,
    /// Sample ids, as the run named them.
    pub ids: Option<Vec<u64>>,
    /// Tokens of each sample.
    pub tokens: Option<Vec<Vec<i32>>>,
}

impl LoggedBatch {
    /// Number of samples, where the line tells.
    pub fn rows(&self) -> Option<usize> {
        self.num_samples
    }
}

/// A whole log, sorted by epoch, micro-step and rank.
#[derive(Clone, Debug)]
pub struct RunLog {
    /// The path given.
    pub path: PathBuf,
    /// Ranks of the run: the header's, else one more than the highest rank logged.
    pub world_size: u64,
    /// Ranks that have lines here, ascending.
    pub ranks: Vec<u64>,
    /// The lines.
    pub batches: Vec<LoggedBatch>,
}

/// Why a log cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// It cannot be read.
    #[error("{}: cannot read the log", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A line is not what it should be.
    #[error("{}, line {line}: {problem}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: u64,
        /// What is wrong.
        problem: String,
    },
    /// The lines do not make one run.
    #[error("{}: {problem}", path.display())]
    Run {
        /// The log.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    ceteris_log: u32,
    definition: u32,
    #[serde(default)]
    rank: Option<u64>,
    #[serde(default)]
    world_size: Option<u64>,
}

/// A line; keys of our own output that say nothing about what was consumed are read and left.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    epoch: Option<u64>,
    micro_step: Option<u64>,
    rank: Option<u64>,
    num_samples: Option<usize>,
    fingerprint: Option<Fingerprint>,
    samples: Option<Vec<Fingerprint>>,
    tokens: Option<Vec<Vec<i64>>>,
    ids: Option<Vec<u64>>,
    rows: Option<Vec<u64>>,
    step: Option<u64>,
    #[serde(rename = "global_micro_step")]
    _global_micro_step: Option<u64>,
    #[serde(rename = "positions")]
    _positions: Option<Vec<u64>>,
    #[serde(rename = "sha256")]
    _sha256: Option<String>,
}

impl RunLog {
    /// Reads a file, or every `.jsonl` file of a folder. `keep_tokens` keeps the tokens of lines that hold them.
    ///
    /// # Errors
    /// [`LogError`] naming file and line.
    pub fn read(path: &Path, keep_tokens: bool) -> Result<Self, LogError> {
        let mut reader = Reader {
            keep_tokens,
            world_size: None,
            batches: Vec::new(),
        };
        for file in files_of(path)? {
            reader.file(&file)?;
        }
        let Reader {
            world_size,
            mut batches,
            ..
        } = reader;
        let wrong = |problem: String| LogError::Run {
            path: path.to_owned(),
            problem,
        };
        if batches.is_empty() {
            return Err(wrong("it holds no micro-batch".to_owned()));
        }
        batches.sort_by_key(|b| (b.epoch, b.micro_step, b.rank));
        let key = |b: &LoggedBatch| (b.epoch, b.micro_step, b.rank);
        if let Some(pair) = batches.windows(2).find(|pair| key(&pair[0]) == key(&pair[1])) {
            return Err(wrong(format!(
                "rank {} has micro-step {}{} twice: these are logs of two runs, or of one that was restarted; give the \
                 lines of one",
                pair[0].rank,
                pair[0].micro_step,
                pair[0]
                    .epoch
                    .map(|e| format!(" of epoch {e}"))
                    .unwrap_or_default(),
            )));
        }
        if let Some(pair) = batches
            .windows(2)
            .find(|pair| pair[0].epoch.is_some() != pair[1].epoch.is_some())
        {
            return Err(wrong(format!(
                "some lines name an epoch and some, as micro-step {} of rank {}, do not",
                pair[0].micro_step, pair[0].rank
            )));
        }
        let mut ranks: Vec<u64> = batches.iter().map(|b| b.rank).collect();
        ranks.sort_unstable();
        ranks.dedup();
        let highest = ranks.last().copied().unwrap_or(0);
        let world_size = world_size.unwrap_or(highest + 1);
        if highest >= world_size {
            return Err(wrong(format!(
                "rank {highest} does not exist in a world of {world_size}"
            )));
        }
        Ok(Self {
            path: path.to_owned(),
            world_size,
            ranks,
            batches,
        })
    }

    /// Samples of the largest micro-batch, where the lines tell.
    pub fn micro_batch_size(&self) -> Option<u64> {
        let sizes = self.batches.iter().filter_map(LoggedBatch::rows);
        sizes.max().map(|rows| rows as u64)
    }

    /// Micro-batches without a line between the first and the last micro-step of each epoch, over the ranks logged.
    pub fn lines_missing(&self) -> u64 {
        let epochs = self.batches.chunk_by(|a, b| a.epoch == b.epoch);
        epochs
            .map(|lines| match lines {
                [first, .., last] => {
                    let micro_steps = last.micro_step - first.micro_step + 1;
                    micro_steps
                        .saturating_mul(self.ranks.len() as u64)
                        .saturating_sub(lines.len() as u64)
                }
                _ => (self.ranks.len() as u64).saturating_sub(lines.len() as u64),
            })
            .fold(0, u64::saturating_add)
    }

    /// Samples of a micro-step on all ranks, where the lines tell.
    pub fn samples_per_micro_step(&self) -> Option<u64> {
        self.micro_batch_size()?.checked_mul(self.world_size)
    }

    /// Micro-steps of the longest optimizer step, where every line names its step.
    pub fn gradient_accumulation_steps(&self) -> Option<u64> {
        let of_one_rank: Vec<&LoggedBatch> = self
            .batches
            .iter()
            .filter(|b| Some(&b.rank) == self.ranks.first())
            .collect();
        if of_one_rank.iter().any(|b| b.step.is_none()) {
            return None;
        }
        let steps = of_one_rank.chunk_by(|a, b| (a.epoch, a.step) == (b.epoch, b.step));
        steps.map(|lines| lines.len() as u64).max()
    }

    /// The first sample, by line and slot, whose id is not below `num_samples`, in a log that holds nothing but ids.
    pub fn first_id_from(&self, num_samples: u64) -> Option<(&LoggedBatch, usize, u64)> {
        if self.batches.iter().any(|b| b.fingerprint.is_some()) {
            return None;
        }
        self.batches.iter().find_map(|batch| {
            let ids = batch.ids.as_ref()?;
            let slot = ids.iter().position(|id| *id >= num_samples)?;
            Some((batch, slot, ids[slot]))
        })
    }

    /// Every line has a digest for each sample.
    pub fn has_samples(&self) -> bool {
        self.batches.iter().all(|b| b.samples.is_some())
    }

    /// Samples in the log, as far as the lines tell.
    pub fn num_samples(&self) -> u64 {
        self.batches
            .iter()
            .filter_map(LoggedBatch::rows)
            .map(|rows| rows as u64)
            .sum()
    }
}

/// The files of a log, those of a folder in the sequence of their names.
fn files_of(path: &Path) -> Result<Vec<PathBuf>, LogError> {
    let io = |source| LogError::Io {
        path: path.to_owned(),
        source,
    };
    if !std::fs::metadata(path).map_err(io)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(io)? {
        let file = entry.map_err(io)?.path();
        if file.extension().is_some_and(|ending| ending == "jsonl") {
            files.push(file);
        }
    }
    files.sort();
    if files.is_empty() {
        return Err(LogError::Run {
            path: path.to_owned(),
            problem: "the folder holds no .jsonl file".to_owned(),
        });
    }
    Ok(files)
}

struct Reader {
    keep_tokens: bool,
    world_size: Option<u64>,
    batches: Vec<LoggedBatch>,
}

impl Reader {
    fn file(&mut self, path: &Path) -> Result<(), LogError> {
        let io = |source| LogError::Io {
            path: path.to_owned(),
            source,
        };
        let mut reader = BufReader::new(File::open(path).map_err(io)?);
        let (mut text, mut number, mut rank_of_file) = (String::new(), 0, None);
        // Micro-steps counted where the lines do not say: by epoch and rank, in a list as there are few.
        let mut counters: Vec<((Option<u64>, u64), u64)> = Vec::new();
        loop {
            text.clear();
            match reader.read_line(&mut text) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                    return Err(LogError::Line {
                        path: path.to_owned(),
                        line: number + 1,
                        problem: "it is not UTF-8 text".to_owned(),
                    });
                }
                Err(error) => return Err(io(error)),
            }
            number += 1;
            if number == 1 && text.starts_with('\u{feff}') {
                text.remove(0);
            }
            if text.trim().is_empty() {
                continue;
            }
            let wrong = |problem: String| LogError::Line {
                path: path.to_owned(),
                line: number,
                problem,
            };
            if text.contains("\"ceteris_log\"") {
                let header: Header = serde_json::from_str(&text).map_err(|e| wrong(e.to_string()))?;
                rank_of_file = self.header(&header).map_err(wrong)?;
                continue;
            }
            if !text.trim_start().starts_with('{') {
                return Err(wrong(
                    "it is no JSON object: a line is {\"micro_step\": …, …}".to_owned(),
                ));
            }
            let line: Line = serde_json::from_str(&text).map_err(|e| {
                // A run that was killed leaves half a line at its end.
                let hint = if text.ends_with('\n') {
                    ""
                } else {
                    "; the line is cut off"
                };
                wrong(format!("{e}{hint}"))
            })?;
            let rank = line.rank.or(rank_of_file).unwrap_or(0);
            let at = match counters.iter().position(|(key, _)| *key == (line.epoch, rank)) {
                Some(at) => at,
                None => {
                    counters.push(((line.epoch, rank), 0));
                    counters.len() - 1
                }
            };
            let micro_step = line.micro_step.unwrap_or(counters[at].1);
            counters[at].1 = micro_step.saturating_add(1);
            self.batches
                .push(batch(line, rank, micro_step, self.keep_tokens).map_err(wrong)?);
        }
    }

    /// Takes a header in; returns its rank.
    fn header(&mut self, header: &Header) -> Result<Option<u64>, String> {
        if header.ceteris_log != LOG_VERSION || header.definition != DEFINITION {
            return Err(format!(
                "a log of version {} with fingerprints of definition {}; this program reads {LOG_VERSION} and {DEFINITION}",
                header.ceteris_log, header.definition
            ));
        }
        match (self.world_size, header.world_size) {
            (Some(before), Some(now)) if before != now => {
                return Err(format!(
                    "the run had {now} ranks here and {before} in the files before: these are two runs"
                ));
            }
            (None, Some(now)) => self.world_size = Some(now),
            _ => {}
        }
        bounded([("world_size", header.world_size), ("rank", header.rank)])?;
        Ok(header.rank)
    }
}

/// Numbers no run comes near: past them the line is damaged, and sums of such numbers could not be counted.
fn bounded<const N: usize>(named: [(&str, Option<u64>); N]) -> Result<(), String> {
    const MOST: u64 = u32::MAX as u64;
    match named.into_iter().find(|(_, n)| n.is_some_and(|n| n >= MOST)) {
        Some((key, Some(n))) => Err(format!(
            "{key} is {n}, and a run has fewer than {MOST}: the line is damaged"
        )),
        _ => Ok(()),
    }
}

fn batch(line: Line, rank: u64, micro_step: u64, keep_tokens: bool) -> Result<LoggedBatch, String> {
    bounded([
        ("rank", Some(rank)),
        ("micro_step", Some(micro_step)),
        ("epoch", line.epoch),
        ("num_samples", line.num_samples.map(|n| n as u64)),
    ])?;
    let tokens = line.tokens.map(token_rows).transpose()?;
    let hashed: Option<Vec<Fingerprint>> = tokens
        .as_ref()
        .map(|rows| rows.iter().map(|row| Fingerprint::of_sample(row)).collect());
    if let (Some(hashed), Some(said)) = (&hashed, &line.samples)
        && hashed != said
    {
        return Err("the fingerprints in `samples` are not those of `tokens`".to_owned());
    }
    let samples = line.samples.or(hashed);
    let ids = line.ids.or(line.rows);
    if let Some(id) = ids.iter().flatten().find(|id| **id >= u64::from(u32::MAX)) {
        return Err(format!(
            "{id} is no sample id that can be compared: those go up to {}",
            u32::MAX - 1
        ));
    }
    let counts = [
        line.num_samples,
        samples.as_ref().map(Vec::len),
        ids.as_ref().map(Vec::len),
    ];
    let num_samples = counts.iter().flatten().next().copied();
    if counts.iter().flatten().any(|count| Some(*count) != num_samples) {
        let counts: Vec<String> = counts.iter().flatten().map(usize::to_string).collect();
        return Err(format!(
            "its keys tell of different numbers of samples: {}",
            counts.join(", ")
        ));
    }
    let combined = samples
        .as_ref()
        .map(|samples| Fingerprint::combine(samples.iter().copied()));
    if let (Some(said), Some(combined)) = (line.fingerprint, combined)
        && said != combined
    {
        return Err(format!(
            "its fingerprint is {said}, that of its samples is {combined}"
        ));
    }
    let fingerprint = line.fingerprint.or(combined);
    if fingerprint.is_none() && ids.is_none() {
        return Err(
            "it says nothing of what was consumed: no fingerprint, samples, tokens or ids".to_owned(),
        );
    }
    Ok(LoggedBatch {
        epoch: line.epoch,
        micro_step,
        step: line.step,
        rank,
        num_samples,
        fingerprint,
        samples,
        ids,
        tokens: tokens.filter(|_| keep_tokens),
    })
}

fn token_rows(rows: Vec<Vec<i64>>) -> Result<Vec<Vec<i32>>, String> {
    let row = |row: Vec<i64>| {
        row.into_iter()
            .map(|token| match i32::try_from(token) {
                Ok(token) if token >= 0 => Ok(token),
                _ => Err(format!("{token} is no token id: those go from 0 to {}", i32::MAX)),
            })
            .collect::<Result<Vec<i32>, String>>()
    };
    rows.into_iter().map(row).collect()
}
