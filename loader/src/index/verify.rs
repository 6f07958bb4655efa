//! Audit of a folder of Megatron's cache: does each dataset in it hold what the data at hand gives?
//!
//! A description leaves out the extra token and the partial-sequence option, and Megatron reuses a cache after either was
//! changed. So where the files differ under the options asked for, the other ones are tried too, and the audit says for
//! which of them the files are right.
//!
//! What no audit of these files can see: tokens exchanged for others in sequences of the same lengths. The indices hold no
//! token, and the name is no hash of the data.

use std::fmt;
use std::path::{Path, PathBuf};

use ceteris_samplers::orders::megatron_epochs::GptIndexSpec;
use ceteris_samplers::orders::megatron_index::GptIndex;
use ceteris_samplers::orders::split::{Split, SplitMatrix};
use serde::Serialize;

use super::described::{Content, Described, GptDescription};
use super::megatron_cache::{Checked, compare_blend, compare_gpt};
use crate::source::megatron::{Check, IndexedDataset};

/// What an audit goes by.
#[derive(Clone, Debug)]
pub struct VerifyOptions {
    /// Where relative prefixes start (the folder Megatron was run in).
    pub root: Option<PathBuf>,
    /// The run draws the extra token.
    pub add_extra_token_to_sequence: bool,
    /// The run drops the last partial sequence of its valid split.
    pub drop_last_partial_validation_sequence: bool,
}

/// What became of one dataset of the folder.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Verdict {
    /// Every value is what the data gives.
    Same,
    /// The files are those of other options than the ones asked for.
    OtherOptions {
        /// The extra token is drawn.
        add_extra_token_to_sequence: bool,
        /// The last partial sequence of the valid split is dropped.
        drop_last_partial_validation_sequence: bool,
    },
    /// The files are not those of this data, whatever the options.
    Differs,
    /// The description or the data cannot be read.
    Unreadable {
        /// Why.
        reason: String,
    },
}

/// One dataset of the folder.
#[derive(Clone, Debug, Serialize)]
pub struct Audited {
    /// Name its files share.
    pub name: String,
    /// Class, split and prefixes.
    pub about: String,
    /// The name is the MD5 of the description.
    pub md5_fits: bool,
    /// The verdict.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// Each file, compared under the options asked for.
    pub files: Vec<Checked>,
}

impl Audited {
    /// Nothing differs.
    pub fn is_same(&self) -> bool {
        self.md5_fits && matches!(self.verdict, Verdict::Same)
    }
}

impl fmt::Display for Audited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.name, self.about)?;
        if !self.md5_fits {
            writeln!(
                f,
                "  the name is not the MD5 of its description: Megatron would not find it"
            )?;
        }
        match &self.verdict {
            Verdict::Same => writeln!(f, "  the same as the data gives, value by value"),
            Verdict::Unreadable { reason } => writeln!(f, "  cannot be checked: {reason}"),
            Verdict::OtherOptions {
                add_extra_token_to_sequence,
                drop_last_partial_validation_sequence,
            } => {
                writeln!(
                    f,
                    "  made with add_extra_token_to_sequence {add_extra_token_to_sequence} and \
                     drop_last_partial_validation_sequence {drop_last_partial_validation_sequence}; a run with the \
                     options given would use it all the same"
                )
            }
            Verdict::Differs => writeln!(f, "  not what the data gives:"),
        }?;
        if !matches!(self.verdict, Verdict::Same) {
            for checked in &self.files {
                let name = checked
                    .file
                    .file_name()
                    .map(|n| n.to_string_lossy())
                    .unwrap_or_default();
                writeln!(f, "    {name}: {}", checked.finding)?;
            }
        }
        Ok(())
    }
}

/// Audits one dataset.
pub fn audit(described: &Described, options: &VerifyOptions) -> Audited {
    let path = |what: &str| described.path(what);
    let (about, verdict, files) = match &described.content {
        Err(reason) => (
            String::new(),
            Verdict::Unreadable {
                reason: reason.clone(),
            },
            Vec::new(),
        ),
        Ok(Content::Gpt(gpt)) => {
            let about = format!(
                "GPT dataset {}, {} split, {} samples of {} tokens, seed {}",
                gpt.dataset_path,
                gpt.index_split,
                gpt.num_samples
                    .map_or("one epoch's".to_owned(), |n| n.to_string()),
                gpt.sequence_length,
                gpt.random_seed
            );
            match audit_gpt(&path, gpt, options) {
                Ok((verdict, files)) => (about, verdict, files),
                Err(reason) => (about, Verdict::Unreadable { reason }, Vec::new()),
            }
        }
        Ok(Content::Blend {
            datasets,
            split,
            shares,
        }) => {
            let prefixes: Vec<&str> = datasets.iter().take(4).map(|d| d.dataset_path.as_str()).collect();
            let more = if datasets.len() > 4 {
                format!(" and {} more", datasets.len() - 4)
            } else {
                String::new()
            };
            let about = format!(
                "blend of {}{more}, {split} split, {} draws",
                prefixes.join(", "),
                shares.size()
            );
            match shares.build() {
                Ok(blend) => {
                    let files = compare_blend(&path, &blend);
                    (about, verdict_of(&files), files)
                }
                Err(e) => (
                    about,
                    Verdict::Unreadable {
                        reason: e.to_string(),
                    },
                    Vec::new(),
                ),
            }
        }
    };
    Audited {
        name: described.name(),
        about,
        md5_fits: described.md5_fits,
        verdict,
        files,
    }
}

fn verdict_of(files: &[Checked]) -> Verdict {
    if files.iter().all(|checked| checked.finding.is_same()) {
        Verdict::Same
    } else {
        Verdict::Differs
    }
}

fn audit_gpt(
    path: &dyn Fn(&str) -> PathBuf,
    gpt: &GptDescription,
    options: &VerifyOptions,
) -> Result<(Verdict, Vec<Checked>), String> {
    let prefix = Path::new(&gpt.dataset_path);
    let prefix = match &options.root {
        Some(root) if prefix.is_relative() => root.join(prefix),
        _ => prefix.to_owned(),
    };
    let data = IndexedDataset::open(&prefix, Check::Full).map_err(|e| e.to_string())?;
    let matrix = match &gpt.split {
        Some(split) => SplitMatrix::parse(split).map_err(|e| e.to_string())?,
        None => SplitMatrix::only(gpt.index_split),
    };
    let num_sequences = data.index().num_sequences();
    let sequences = matrix.sequences(gpt.index_split, num_sequences).ok_or_else(|| {
        format!(
            "the description's split {:?} has no {} part",
            gpt.split, gpt.index_split
        )
    })?;
    let lengths = data.index().lengths().map_err(|e| e.to_string())?;
    let longest = data.totals().map_or(i32::MAX as u32, |totals| totals.longest);
    let compare = |extra: bool, drop_partial: bool| -> Result<Vec<Checked>, String> {
        let spec = GptIndexSpec {
            sequence_length: gpt.sequence_length,
            add_extra_token: extra,
            random_seed: gpt.random_seed,
            num_samples: gpt.num_samples,
            drop_last_partial_sequence: gpt.index_split != Split::Valid || drop_partial,
        };
        let index = GptIndex::build(&lengths, sequences.clone(), &spec).map_err(|e| e.to_string())?;
        Ok(compare_gpt(path, &index, num_sequences, longest))
    };
    let asked = (
        options.add_extra_token_to_sequence,
        options.drop_last_partial_validation_sequence,
    );
    let files = compare(asked.0, asked.1)?;
    if let Verdict::Same = verdict_of(&files) {
        return Ok((Verdict::Same, files));
    }
    for (extra, drop_partial) in [(true, true), (false, true), (true, false), (false, false)] {
        let has_partial = gpt.index_split == Split::Valid;
        if (extra, drop_partial) == asked || (!has_partial && drop_partial != asked.1) {
            continue;
        }
        // Other options may not build at all; then the files are not theirs.
        if let Ok(other) = compare(extra, drop_partial)
            && let Verdict::Same = verdict_of(&other)
        {
            let verdict = Verdict::OtherOptions {
                add_extra_token_to_sequence: extra,
                drop_last_partial_validation_sequence: drop_partial,
            };
            return Ok((verdict, files));
        }
    }
    Ok((Verdict::Differs, files))
}
