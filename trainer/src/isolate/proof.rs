//! Proof, before anything is trained, that each factor moves its own part of a run and no other.
//!
//! Every cell is held against the cell that differs from it in one factor alone, that factor being at its first level.
//! A hash that moves and belongs to another part refuses the design, unless it cannot be otherwise: other shapes need
//! other weights, another corpus has other rows to order, larger global batches consume more rows. Those are said.

use serde::{Deserialize, Serialize};

use super::IsolateError;
use super::design::Design;
use super::factors::{Base, Factor, Part, owner};
use super::hashes::{Hasher, Hashes};
use crate::config::RunConfig;
use crate::model::parameters::named_parameters;

/// What turning one factor does to the hashes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Turned {
    /// The factor's key.
    pub factor: String,
    /// The part that it belongs to.
    pub part: Part,
    /// Its levels.
    pub levels: usize,
    /// How many different hashes each part has when the factor turns and the others stand at their first levels.
    pub distinct: Vec<(Part, usize)>,
    /// Why another part moves along, where it must.
    pub along: Vec<String>,
    /// What a reader should know: levels that are the same run.
    pub notes: Vec<String>,
    /// It moves no hash anywhere: its levels are the same run.
    pub flagged: bool,
}

/// The proof for a design.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Proof {
    /// Factor by factor.
    pub factors: Vec<Turned>,
    /// How many different hashes each part has over all cells.
    pub distinct: Vec<(Part, usize)>,
    /// Hashes of each cell.
    pub cells: Vec<Hashes>,
}

impl Proof {
    /// Factors that move nothing.
    pub fn flagged(&self) -> impl Iterator<Item = &Turned> {
        self.factors.iter().filter(|f| f.flagged)
    }

    /// A line for each factor.
    pub fn table(&self) -> String {
        let wide = self.factors.iter().map(|f| f.factor.len()).max().unwrap_or(0);
        let mut out = String::new();
        for turned in &self.factors {
            let moved: Vec<String> = turned
                .distinct
                .iter()
                .filter(|(_, n)| *n > 1)
                .map(|(part, n)| format!("{n} {} hashes", part.name()))
                .collect();
            let still: Vec<&str> = turned
                .distinct
                .iter()
                .filter(|(_, n)| *n == 1)
                .map(|(part, _)| part.name())
                .collect();
            let moved = if moved.is_empty() {
                "no hash".to_owned()
            } else {
                moved.join(", ")
            };
            out.push_str(&format!(
                "{:wide$}  {} levels: moves {moved}; one hash each of {}\n",
                turned.factor,
                turned.levels,
                still.join(", ")
            ));
            for line in turned.along.iter().chain(&turned.notes) {
                out.push_str(&format!("{:wide$}  {line}\n", ""));
            }
        }
        out
    }
}

/// Proves the isolation of a design. `tick` hears how many cells are hashed.
///
/// # Errors
/// [`IsolateError::Moves`] naming factor and hash; settings that do not compose; data that cannot be opened.
pub fn prove(
    base: &Base<'_>,
    factors: &[Factor],
    design: &Design,
    hasher: &mut Hasher,
    notice: &mut dyn FnMut(&str),
    tick: &mut dyn FnMut(usize),
) -> Result<Proof, IsolateError> {
    let mut known = Known {
        base,
        factors,
        hasher,
        cells: std::collections::BTreeMap::new(),
    };
    let mut cells = Vec::with_capacity(design.cells.len());
    for (at, cell) in design.cells.iter().enumerate() {
        cells.push(known.get(cell, notice)?.1);
        tick(at + 1);
    }
    let mut proof = Vec::with_capacity(factors.len());
    for (which, factor) in factors.iter().enumerate() {
        proof.push(turn(&mut known, design, which, factor, notice)?);
    }
    Ok(Proof {
        factors: proof,
        distinct: Part::ALL.iter().map(|p| (*p, distinct(&cells, *p))).collect(),
        cells,
    })
}

fn distinct(cells: &[Hashes], part: Part) -> usize {
    let mut all: Vec<&str> = cells.iter().map(|c| c.of(part)).collect();
    all.sort_unstable();
    all.dedup();
    all.len()
}

struct Known<'a> {
    base: &'a Base<'a>,
    factors: &'a [Factor],
    hasher: &'a mut Hasher,
    cells: std::collections::BTreeMap<Vec<usize>, (RunConfig, Hashes)>,
}

impl Known<'_> {
    fn get(
        &mut self,
        levels: &[usize],
        notice: &mut dyn FnMut(&str),
    ) -> Result<(RunConfig, Hashes), IsolateError> {
        if let Some(known) = self.cells.get(levels) {
            return Ok(known.clone());
        }
        let config = self.base.cell(self.factors, levels)?.config;
        let hashes = self.hasher.hashes(&config, notice)?;
        self.cells
            .insert(levels.to_vec(), (config.clone(), hashes.clone()));
        Ok((config, hashes))
    }
}

fn turn(
    known: &mut Known<'_>,
    design: &Design,
    which: usize,
    factor: &Factor,
    notice: &mut dyn FnMut(&str),
) -> Result<Turned, IsolateError> {
    let part = owner(&factor.key).map_err(|problem| IsolateError::Vary {
        text: factor.key.clone(),
        problem,
    })?;
    let (mut along, mut notes) = (Vec::new(), Vec::new());
    let mut moves_somewhere = false;
    for cell in &design.cells {
        let mut first = cell.clone();
        first[which] = 0;
        if first == *cell {
            continue;
        }
        let (a, of_a) = known.get(&first, notice)?;
        let (b, of_b) = known.get(cell, notice)?;
        for other in Part::ALL.into_iter().filter(|p| of_a.of(*p) != of_b.of(*p)) {
            if other == part {
                moves_somewhere = true;
                continue;
            }
            let reason = must_move(part, other, &a, &b).ok_or_else(|| IsolateError::Moves {
                factor: factor.key.clone(),
                level: factor.levels[cell[which]].clone(),
                first: factor.levels[0].clone(),
                hash: other.name(),
                advice: advice(part, other),
            })?;
            if !along.contains(&reason) {
                along.push(reason);
            }
        }
    }
    let line: Vec<Hashes> = (0..factor.levels.len())
        .map(|level| {
            let mut cell = vec![0; known.factors.len()];
            cell[which] = level;
            Ok(known.get(&cell, notice)?.1)
        })
        .collect::<Result<_, IsolateError>>()?;
    let counts: Vec<(Part, usize)> = Part::ALL.iter().map(|p| (*p, distinct(&line, *p))).collect();
    for level in 1..line.len() {
        if let Some(same) = (0..level).find(|l| line[*l].of(part) == line[level].of(part)) {
            notes.push(format!(
                "{} and {} have the same {} hash: they are the same run",
                factor.levels[same],
                factor.levels[level],
                part.name()
            ));
        }
    }
    if !moves_somewhere {
        notes.push(format!("FLAGGED: turning {} moves no hash at all", factor.key));
    }
    Ok(Turned {
        factor: factor.key.clone(),
        part,
        levels: factor.levels.len(),
        distinct: counts,
        along,
        notes,
        flagged: !moves_somewhere,
    })
}

/// Why a part must move when another is turned; none when it must not.
fn must_move(turned: Part, moved: Part, a: &RunConfig, b: &RunConfig) -> Option<String> {
    match (turned, moved) {
        (Part::Model, Part::Init) => {
            let shapes = |c: &RunConfig| -> Vec<(String, Vec<usize>)> {
                named_parameters(&c.model)
                    .into_iter()
                    .map(|t| (t.name, t.shape))
                    .collect()
            };
            if shapes(a) != shapes(b) {
                Some("initial weights move along: the tensors have other shapes".to_owned())
            } else {
                (a.model.initializer_range != b.model.initializer_range).then(|| {
                    "initial weights move along: they are drawn with another initializer_range".to_owned()
                })
            }
        }
        (Part::Corpus | Part::Samples, Part::Order) => {
            (a.data != b.data).then(|| "the order moves along where the number of rows is another".to_owned())
        }
        // Whether a file holds rows of this length is part of what the rows are.
        (Part::Samples, Part::Corpus) => (a.data.on_ragged != b.data.on_ragged
            || a.data.seq_length != b.data.seq_length)
            .then(|| "the rows kept move along: they are chosen by their length".to_owned()),
        (Part::Batch, Part::Order) => {
            let rows = |c: &RunConfig| c.geometry().map(|g| g.global_batch_size()).ok();
            (rows(a) != rows(b))
                .then(|| "the order moves along: a step consumes another number of rows".to_owned())
        }
        _ => None,
    }
}

/// What to do about a part that moves along.
fn advice(turned: Part, moved: Part) -> &'static str {
    match (turned, moved) {
        (Part::Batch, Part::Order) => {
            "this order deals other rows under another layout of the same global batch; take an order that does not, or \
             give the layouts as parts of one experiment of their own"
        }
        (Part::Model, Part::Samples) => "it decides where documents start; set data.documents to none",
        _ => "nothing can be said of the one while the other moves along",
    }
}
