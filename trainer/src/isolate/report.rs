//! The result of an isolation as data; `docs/isolate.md` says what each key of the JSON holds.

use std::path::PathBuf;

use serde::Serialize;
use serde_json::Value;

use super::IsolateError;
use super::anova::{Anova, Share};
use super::design::Design;
use super::effects::{Effect, Effects};
use super::execute::Planned;
use super::factors::Factor;
use super::orders::OrderDiff;
use super::proof::Proof;
use super::sentence;
use crate::compare::curve::{self, Curve};
use crate::run::folder::RunFolder;
use crate::run::manifest::Manifest;

/// Version of the JSON report; it moves with every key that changes its meaning.
pub const REPORT_VERSION: u32 = 1;
/// Steps at which the shares over time are listed, at most.
const TIMELINE: u64 = 400;

/// What the losses are summed up to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Response {
    /// `loss at step 25`, or the area under the curve.
    pub name: String,
    /// The step; none for the area.
    pub step: Option<u64>,
    /// Value of each run, in the order of `runs`.
    pub values: Vec<f64>,
    /// Mean over the runs.
    pub mean: f64,
    /// Standard deviation over the runs; none for a single run.
    pub standard_deviation: Option<f64>,
    /// Where the variance between the runs lies.
    pub variance: Vec<Named<Share>>,
    /// Each level against the first one of its factor.
    pub effects: Vec<Named<Effect>>,
    /// Differences of differences of two factors that are no seeds.
    pub interactions: Vec<Named<Effect>>,
    /// Standard deviation of each seed factor's means over its seeds.
    pub seed_spreads: Vec<Named<SeedSpread>>,
    /// In words.
    pub sentences: Vec<String>,
}

/// Something with its name for readers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Named<T> {
    /// `order`, `order x seeds.data`, `order: megatron against fla`.
    pub name: String,
    /// The thing.
    #[serde(flatten)]
    pub of: T,
}

/// How much a seed moves a response.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SeedSpread {
    /// Index of the factor.
    pub factor: usize,
    /// Its seeds.
    pub seeds: usize,
    /// Standard deviation of the means over the other factors.
    pub standard_deviation: f64,
}

/// A run of the design.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Run {
    /// Its name.
    pub name: String,
    /// Level of each factor.
    pub levels: Vec<usize>,
    /// Its folder.
    pub folder: PathBuf,
    /// Device and arithmetic.
    pub device: String,
    /// Hashes of its parts.
    pub hashes: super::hashes::Hashes,
    /// Loss of each step, from step 1.
    pub losses: Vec<f64>,
}

/// One cell, run twice.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NullCheck {
    /// The run repeated.
    pub run: String,
    /// Folder of the repetition.
    pub folder: PathBuf,
    /// Steps compared.
    pub steps: u64,
    /// Every loss and gradient norm has the same bits.
    pub exact: bool,
    /// First step that differs.
    pub first_difference: Option<u64>,
    /// Largest difference in loss.
    pub largest_difference: f64,
}

/// Shares of the variance at a step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Moment {
    /// The step.
    pub step: u64,
    /// Shares in the order of `variance` of a response.
    pub shares: Vec<f64>,
}

/// The whole result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// [`REPORT_VERSION`].
    pub ceteris_isolate: u32,
    /// Version of the writer.
    pub ceteris: String,
    /// The result in words.
    pub sentence: String,
    /// Confidence of the intervals.
    pub confidence: f64,
    /// Steps that all runs have.
    pub steps: u64,
    /// What is varied.
    pub factors: Vec<Factor>,
    /// Which factors are seeds.
    pub seeds: Vec<bool>,
    /// The cells.
    pub design: Design,
    /// What is confounded, in sentences.
    pub confounding: Vec<String>,
    /// How intervals and shares are computed for this design.
    pub method: String,
    /// Hashes moved by each factor.
    pub proof: Proof,
    /// One cell, run twice.
    pub null_check: Option<NullCheck>,
    /// Losses at chosen steps, ascending, and the area under the curve, last.
    pub responses: Vec<Response>,
    /// Shares over the steps.
    pub variance_over_steps: Vec<Moment>,
    /// The runs, in the order of the design's cells.
    pub runs: Vec<Run>,
    /// How the orders that were varied differ.
    pub orders: Vec<OrderDiff>,
    /// Settings of the first cell.
    pub settings: Value,
    /// What a reader should know.
    pub notes: Vec<String>,
}

/// What a report is made of.
pub struct Parts<'a> {
    /// Factors.
    pub factors: &'a [Factor],
    /// Cells.
    pub design: Design,
    /// The proof.
    pub proof: Proof,
    /// The runs, cell by cell.
    pub planned: &'a [Planned],
    /// The repetition of the first one.
    pub repetition: Option<&'a Planned>,
    /// Confidence.
    pub confidence: f64,
    /// Steps asked for; quarters of the run when empty.
    pub at: &'a [u64],
    /// How orders differ.
    pub orders: Vec<OrderDiff>,
}

/// Name of an effect of factors.
fn effect_name(factors: &[Factor], effect: &[usize]) -> String {
    if effect.is_empty() {
        return "interactions of three and more".to_owned();
    }
    effect
        .iter()
        .map(|f| factors[*f].key.as_str())
        .collect::<Vec<_>>()
        .join(" x ")
}

fn difference_name(factors: &[Factor], effect: &Effect) -> String {
    let of = |(f, l): (&usize, &usize)| {
        let factor = &factors[*f];
        format!(
            "{}: {} against {}",
            factor.key, factor.levels[*l], factor.levels[0]
        )
    };
    effect
        .factors
        .iter()
        .zip(&effect.levels)
        .map(of)
        .collect::<Vec<_>>()
        .join(" x ")
}

/// Reads the runs and computes the report.
///
/// # Errors
/// Metrics that cannot be read, runs of different devices, a step that no run has.
pub fn build(parts: Parts<'_>) -> Result<Report, IsolateError> {
    let Parts {
        factors,
        design,
        proof,
        ..
    } = parts;
    let mut notes = Vec::new();
    let (mut curves, mut devices) = (Vec::new(), Vec::new());
    for run in parts.planned {
        curves.push(curve_of(run)?);
        devices.push(Manifest::load(&RunFolder::new(&run.config.output_dir).manifest())?.device);
    }
    check_devices(parts.planned, &devices, factors)?;
    let steps = curves
        .iter()
        .filter_map(|c| c.points.last())
        .map(|p| p.step)
        .min()
        .unwrap_or(0);
    let longest = curves
        .iter()
        .filter_map(|c| c.points.last())
        .map(|p| p.step)
        .max()
        .unwrap_or(0);
    if steps < longest {
        notes.push(format!(
            "the data of some runs ends before step {longest}: all are compared up to step {steps}"
        ));
    }
    let losses: Vec<Vec<f64>> = curves
        .iter()
        .map(|c| c.losses().map(|(_, loss)| loss).take(steps as usize).collect())
        .collect();
    if losses.iter().any(|l: &Vec<f64>| l.len() as u64 != steps) {
        return Err(IsolateError::Design("a run's metrics lack a step".into()));
    }
    let at = chosen_steps(parts.at, steps)?;
    let seeds: Vec<bool> = factors.iter().map(Factor::is_seed).collect();
    let anova = Anova::new(&design);
    let effects = Effects::new(&design, &seeds, parts.confidence);
    let context = Context {
        factors,
        design: &design,
        seeds: &seeds,
        anova: &anova,
        effects: &effects,
        confidence: parts.confidence,
    };
    let column = |step: u64| -> Vec<f64> { losses.iter().map(|l| l[step as usize - 1]).collect() };
    let mut responses: Vec<Response> = at
        .iter()
        .map(|step| context.response(format!("loss at step {step}"), Some(*step), column(*step)))
        .collect();
    let area: Vec<f64> = losses
        .iter()
        .map(|l| l.iter().sum::<f64>() / l.len().max(1) as f64)
        .collect();
    responses.push(context.response(
        format!("mean loss over steps 1 to {steps} (area under the curve)"),
        None,
        area,
    ));
    let every = steps.div_ceil(TIMELINE).max(1);
    let variance_over_steps = (1..=steps)
        .filter(|s| s.is_multiple_of(every) || *s == steps || *s == 1)
        .map(|step| Moment {
            step,
            shares: anova.shares(&column(step)).iter().map(|s| s.share).collect(),
        })
        .collect();
    let null_check = parts
        .repetition
        .map(|run| null_check(&parts.planned[0], &curves[0], run))
        .transpose()?;
    let names: Vec<&str> = factors.iter().map(|f| f.key.as_str()).collect();
    let confounding = design.confounding_in_words(&names);
    let settings = parts.planned.first().map_or(Value::Null, |p| {
        serde_json::to_value(&p.config).unwrap_or_default()
    });
    let runs = parts
        .planned
        .iter()
        .zip(&design.cells)
        .zip(proof.cells.iter().zip(devices))
        .zip(losses)
        .map(|(((run, levels), (hashes, device)), losses)| Run {
            name: run.name.clone(),
            levels: levels.clone(),
            folder: run.config.output_dir.clone(),
            device,
            hashes: hashes.clone(),
            losses,
        })
        .collect();
    let mut report = Report {
        ceteris_isolate: REPORT_VERSION,
        ceteris: env!("CARGO_PKG_VERSION").into(),
        sentence: String::new(),
        confidence: parts.confidence,
        steps,
        factors: factors.to_vec(),
        method: sentence::method(&design, &seeds),
        seeds,
        confounding,
        proof,
        null_check,
        responses,
        variance_over_steps,
        runs,
        orders: parts.orders,
        settings,
        notes,
        design,
    };
    report.sentence = sentence::headline(&report);
    Ok(report)
}

impl Report {
    /// The last of the chosen steps.
    pub fn last(&self) -> Option<&Response> {
        self.responses.iter().rev().find(|r| r.step.is_some())
    }

    /// The report as JSON text.
    ///
    /// # Errors
    /// None that a report can cause.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        Ok(text)
    }
}

struct Context<'a> {
    factors: &'a [Factor],
    design: &'a Design,
    seeds: &'a [bool],
    anova: &'a Anova,
    effects: &'a Effects<'a>,
    confidence: f64,
}

impl Context<'_> {
    fn response(&self, name: String, step: Option<u64>, values: Vec<f64>) -> Response {
        let runs = values.len();
        let first = values.first().copied().unwrap_or(0.0);
        let mean = first + values.iter().map(|v| v - first).sum::<f64>() / runs.max(1) as f64;
        let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
        let named = |effect: Effect| Named {
            name: difference_name(self.factors, &effect),
            of: effect,
        };
        let shares = self.anova.shares(&values).into_iter().map(|share| Named {
            name: effect_name(self.factors, &share.effect),
            of: share,
        });
        let mut response = Response {
            name,
            step,
            mean,
            standard_deviation: (runs > 1).then(|| (squares / (runs - 1) as f64).sqrt()),
            variance: shares.collect(),
            effects: self.effects.main(&values).into_iter().map(named).collect(),
            interactions: self
                .effects
                .interactions(&values)
                .into_iter()
                .map(named)
                .collect(),
            seed_spreads: self.seed_spreads(&values),
            values,
            sentences: Vec::new(),
        };
        response.sentences = sentence::response(&response, self.factors, self.seeds, self.confidence);
        response
    }

    fn seed_spreads(&self, values: &[f64]) -> Vec<Named<SeedSpread>> {
        (0..self.factors.len())
            .filter(|f| self.seeds[*f])
            .map(|factor| {
                let seeds = self.design.sizes[factor];
                let means: Vec<f64> = (0..seeds)
                    .map(|level| {
                        let own: Vec<f64> = self
                            .design
                            .cells
                            .iter()
                            .zip(values)
                            .filter(|(cell, _)| cell[factor] == level)
                            .map(|(_, v)| *v)
                            .collect();
                        own.iter().sum::<f64>() / own.len().max(1) as f64
                    })
                    .collect();
                let mean = means.iter().sum::<f64>() / seeds as f64;
                let squares: f64 = means.iter().map(|m| (m - mean).powi(2)).sum();
                Named {
                    name: self.factors[factor].key.clone(),
                    of: SeedSpread {
                        factor,
                        seeds,
                        standard_deviation: (squares / (seeds - 1) as f64).sqrt(),
                    },
                }
            })
            .collect()
    }
}

fn curve_of(run: &Planned) -> Result<Curve, IsolateError> {
    let metrics = RunFolder::new(&run.config.output_dir).metrics();
    Ok(curve::read(&metrics, &curve::ReadOptions::default())?)
}

/// All runs on devices of one kind, unless the device is what is varied.
fn check_devices(planned: &[Planned], devices: &[String], factors: &[Factor]) -> Result<(), IsolateError> {
    if factors.iter().any(|f| f.key.starts_with("train.")) {
        return Ok(());
    }
    // Which of several equal devices it was changes nothing.
    let kind = |name: &str| match name.strip_prefix("cuda:") {
        Some(rest) => rest.trim_start_matches(|c: char| c.is_ascii_digit()).to_owned(),
        None => name.to_owned(),
    };
    let first = devices.first().map(|d| kind(d)).unwrap_or_default();
    match planned
        .iter()
        .zip(devices)
        .find(|(_, device)| kind(device) != first)
    {
        None => Ok(()),
        Some((run, device)) => Err(IsolateError::Folder {
            path: run.config.output_dir.clone(),
            problem: format!(
                "was run on {device}, the first run on {}: the device rides along; remove that folder and run it again",
                devices[0]
            ),
        }),
    }
}

/// Steps at which losses are compared: those asked for, or quarters of the run.
///
/// # Errors
/// A step that the runs do not have.
pub(super) fn chosen_steps(asked: &[u64], steps: u64) -> Result<Vec<u64>, IsolateError> {
    let mut at: Vec<u64> = if asked.is_empty() {
        (1..=4).map(|quarter| (steps * quarter).div_ceil(4)).collect()
    } else {
        asked.to_vec()
    };
    at.sort_unstable();
    at.dedup();
    match at.iter().find(|s| **s == 0 || **s > steps) {
        Some(step) => Err(IsolateError::Design(format!(
            "--at {step}: the runs have steps 1 to {steps}"
        ))),
        None => Ok(at),
    }
}

fn null_check(first: &Planned, curve: &Curve, run: &Planned) -> Result<NullCheck, IsolateError> {
    let repeated = curve_of(run)?;
    let same = |i: usize| match (curve.points.get(i), repeated.points.get(i)) {
        (Some(a), Some(b)) => {
            a.loss.to_bits() == b.loss.to_bits()
                && a.grad_norm.map(f64::to_bits) == b.grad_norm.map(f64::to_bits)
                && a.batch_fingerprint == b.batch_fingerprint
        }
        (a, b) => a.is_none() == b.is_none(),
    };
    let steps = curve.points.len().max(repeated.points.len());
    let differs = (0..steps).find(|i| !same(*i));
    let largest = curve
        .losses()
        .zip(repeated.losses())
        .map(|(a, b)| (a.1 - b.1).abs())
        .fold(0.0, f64::max);
    Ok(NullCheck {
        run: first.name.clone(),
        folder: run.config.output_dir.clone(),
        steps: steps as u64,
        exact: differs.is_none(),
        first_difference: differs.map(|i| i as u64 + 1),
        largest_difference: largest,
    })
}
