//! From a request to runs: cells, proof, folders; and from finished runs to the report.

use std::path::{Path, PathBuf};

use super::IsolateError;
use super::design::Design;
use super::execute::{ExecuteOptions, Planned, cell_name, execute};
use super::factors::{Base, Factor, check_apart};
use super::hashes::Hasher;
use super::io;
use super::orders;
use super::proof::{Proof, prove};
use super::report::{self, Parts, Report};
use crate::run::write_atomic;

/// What is asked for.
pub struct Request<'a> {
    /// Settings of every run.
    pub base: Base<'a>,
    /// What is varied.
    pub factors: Vec<Factor>,
    /// Most runs, the repetition not counted.
    pub budget: Option<usize>,
    /// Run the first cell twice.
    pub null_check: bool,
    /// Confidence of the intervals, between 0 and 1.
    pub confidence: f64,
    /// Steps at which losses are compared; quarters of the run when empty.
    pub at: Vec<u64>,
}

/// Runs to be made, proven to be what they should be.
pub struct Plan<'a> {
    request: Request<'a>,
    /// Cells.
    pub design: Design,
    /// The proof.
    pub proof: Proof,
    /// Runs, cell by cell.
    pub runs: Vec<Planned>,
    /// The repetition of the first one.
    pub repetition: Option<Planned>,
    /// Folder of the isolation.
    pub folder: PathBuf,
    hasher: Hasher,
}

/// How an isolation ended.
pub enum Ended {
    /// With a report.
    Done(Box<Report>),
    /// By a signal (0: the program); the same request goes on.
    Stopped(i32),
}

/// Files of an isolation's folder.
pub const JSON: &str = "isolate.json";
/// The page.
pub const PAGE: &str = "report.html";
/// The same as Markdown.
pub const MARKDOWN: &str = "report.md";

/// Chooses the cells and proves that each factor moves alone. `notice` hears what a user should be told, `tick` how many
/// cells of how many are hashed.
///
/// # Errors
/// [`IsolateError`]; nothing has been trained.
pub fn plan<'a>(
    request: Request<'a>,
    notice: &mut dyn FnMut(&str),
    tick: &mut dyn FnMut(usize, usize),
) -> Result<Plan<'a>, IsolateError> {
    if !(request.confidence > 0.0 && request.confidence < 1.0) {
        return Err(IsolateError::Design(format!(
            "--confidence {}: allowed: above 0 and below 1, for example 0.95",
            request.confidence
        )));
    }
    check_apart(&request.factors)?;
    let folder = request.base.load()?.config.output_dir;
    if folder.join("metrics.jsonl").exists() {
        return Err(IsolateError::Folder {
            path: folder,
            problem: "holds a training run; give the isolation a folder of its own: --set output_dir=…"
                .into(),
        });
    }
    let design = Design::new(&request.factors, request.budget)?;
    let mut hasher = Hasher::default();
    let cells = design.cells.len();
    let proof = prove(
        &request.base,
        &request.factors,
        &design,
        &mut hasher,
        notice,
        &mut |done| tick(done, cells),
    )?;
    let mut runs = Vec::with_capacity(cells);
    for (levels, hashes) in design.cells.iter().zip(&proof.cells) {
        let mut config = request.base.cell(&request.factors, levels)?.config;
        let steps = hasher.data(&config, &mut |_| {})?.steps(&config);
        let name = cell_name(&request.factors, levels);
        config.output_dir = folder.join("cells").join(&name);
        runs.push(Planned {
            name,
            config,
            hashes: hashes.clone(),
            steps,
        });
    }
    let shortest = runs.iter().map(|r| r.steps).min().unwrap_or(0);
    report::chosen_steps(&request.at, shortest)?;
    let repetition = runs.first().filter(|_| request.null_check).map(|first| {
        let mut again = first.clone();
        again.name = "null-check".into();
        again.config.output_dir = folder.join("cells").join("null-check");
        again
    });
    Ok(Plan {
        request,
        design,
        proof,
        runs,
        repetition,
        folder,
        hasher,
    })
}

impl Plan<'_> {
    /// Refuses seeds that decide nothing: runs that are the same are no replicates.
    ///
    /// # Errors
    /// [`IsolateError::Design`].
    pub fn check_seeds(&self) -> Result<(), IsolateError> {
        let seed = |f: &&super::proof::Turned| f.factor.starts_with("seeds.");
        match self.proof.flagged().find(seed) {
            None => Ok(()),
            Some(turned) => Err(IsolateError::Design(format!(
                "--vary {}: turning it moves no hash at all: all its runs would be the same run, and no replicates (an order \
                 without a seed?)",
                turned.factor
            ))),
        }
    }

    /// Makes the runs that are not there yet, computes the report and writes it into the folder.
    ///
    /// # Errors
    /// [`IsolateError`]; the same request goes on where this one ended.
    pub fn run(mut self, options: &ExecuteOptions) -> Result<Ended, IsolateError> {
        self.check_seeds()?;
        std::fs::create_dir_all(&self.folder).map_err(io(&self.folder, "create"))?;
        let lock = self.folder.join(".lock");
        let held = std::fs::File::create(&lock).map_err(io(&lock, "create"))?;
        if held.try_lock().is_err() {
            return Err(IsolateError::Folder {
                path: self.folder,
                problem: "another process is working in it; wait for it, or set another output_dir".into(),
            });
        }
        let factors = &self.request.factors;
        let all: Vec<Planned> = self.runs.iter().chain(&self.repetition).cloned().collect();
        if let Some(signal) = execute(&all, factors, options)? {
            return Ok(Ended::Stopped(signal));
        }
        let orders = orders::differences(&self.request.base, factors, &mut self.hasher)?;
        let report = report::build(Parts {
            factors,
            design: self.design,
            proof: self.proof,
            planned: &self.runs,
            repetition: self.repetition.as_ref(),
            confidence: self.request.confidence,
            at: &self.request.at,
            orders,
        })?;
        write(&self.folder, &report)?;
        Ok(Ended::Done(Box::new(report)))
    }
}

fn write(folder: &Path, report: &Report) -> Result<(), IsolateError> {
    let path = folder.join(JSON);
    let json = report.to_json().map_err(|e| io(&path, "write")(e.into()))?;
    write_atomic(&path, &json)?;
    write_atomic(&folder.join(PAGE), &super::html::page(report))?;
    write_atomic(&folder.join(MARKDOWN), &super::markdown::report(report))?;
    Ok(())
}
