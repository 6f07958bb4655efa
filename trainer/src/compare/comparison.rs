//! Several runs against the first of them.

use super::align::{self, Axis, Pair};
use super::curve::Curve;
use super::gap::{self, Crossover, Gate, Warmup, Window, WindowSpec};
use super::noise::{self, Noise};
use super::rows;
use super::throughput::{self, Throughput};

/// A run with its repeats.
#[derive(Clone, Debug)]
pub struct Run {
    /// `A`, `B`, …
    pub key: String,
    /// Its curve.
    pub curve: Curve,
    /// Further runs of the same settings.
    pub repeats: Vec<Curve>,
}

/// What to look at.
#[derive(Clone, Debug)]
pub struct Options {
    /// Steps or tokens.
    pub axis: Axis,
    /// Places of the table; chosen where there are none.
    pub at: Vec<u64>,
    /// Windows of the averages; quarters where there are none.
    pub windows: Vec<WindowSpec>,
    /// Relative difference that is allowed.
    pub tolerance: Option<f64>,
    /// The first place that is held against the tolerance.
    pub tolerance_from: u64,
    /// Relative difference below which the gap counts as closed.
    pub warmup_tolerance: f64,
    /// Steps of warm-up; found out where not given.
    pub warmup_steps: Option<u64>,
    /// Steps at the start that throughput leaves out.
    pub skip_steps: u64,
    /// Average denser logs over the interval of the sparsest.
    pub average: bool,
    /// Each loss is the mean of so many last records; 1 leaves them as they are.
    pub smooth: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            axis: Axis::Steps,
            at: Vec::new(),
            windows: Vec::new(),
            tolerance: None,
            tolerance_from: 0,
            warmup_tolerance: 0.01,
            warmup_steps: None,
            skip_steps: 10,
            average: false,
            smooth: 1,
        }
    }
}

/// A run held against the first.
#[derive(Clone, Debug)]
pub struct Against {
    /// Which run, by its place in [`Comparison::runs`].
    pub run: usize,
    /// Every place that both have.
    pub pairs: Vec<Pair>,
    /// Where they first cross.
    pub crossover: Option<Crossover>,
    /// Averages.
    pub windows: Vec<Window>,
    /// Gap in warm-up; `None` where no place has two finite losses.
    pub warmup: Option<Warmup>,
    /// Run-to-run noise, where a run is repeated.
    pub noise: Option<Noise>,
    /// Check against the tolerance, where there is one.
    pub gate: Option<Gate>,
}

/// Everything that was found.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Steps or tokens.
    pub axis: Axis,
    /// Runs; the first is what the others are held against.
    pub runs: Vec<Run>,
    /// Rates, in the order of the runs.
    pub throughput: Vec<Throughput>,
    /// Steps that throughput leaves out.
    pub skip_steps: u64,
    /// The other runs against the first.
    pub against: Vec<Against>,
    /// Losses at chosen places.
    pub table: Vec<rows::Row>,
    /// What a reader should know.
    pub notes: Vec<String>,
}

impl Comparison {
    /// Whether every gap stays within the tolerance (also where none was asked for).
    pub fn passed(&self) -> bool {
        self.against
            .iter()
            .all(|against| against.gate.is_none_or(|gate| gate.exceeded.is_none()))
    }
}

/// Runs cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// Fewer than two runs.
    #[error("two runs are needed to compare, {0} given")]
    TooFew(usize),
    /// A log does not tell tokens.
    #[error(
        "{run} ({}): {problem}; give --tokens-per-step (of one step on all devices together), or align by steps",
        origin.display()
    )]
    Tokens {
        /// Its key.
        run: String,
        /// Its file.
        origin: std::path::PathBuf,
        /// What is wrong with its tokens.
        problem: &'static str,
    },
    /// No place is in both logs.
    #[error(
        "A and {run} have no {unit} in common: A has {a}, {run} has {b}; logs of other intervals can be averaged \
         (--average) or aligned by tokens (--align tokens)"
    )]
    Apart {
        /// Key of the other run.
        run: String,
        /// `step` or `number of tokens`.
        unit: &'static str,
        /// What A has.
        a: String,
        /// What the other has.
        b: String,
    },
    /// Nothing is asked of the table that the runs have.
    #[error("no two runs have a loss at {0} (--at)")]
    NoRow(String),
    /// Nothing lies behind the first place to check.
    #[error(
        "nothing to hold against the tolerance: A and {run} have no common record from {from} on, the last is at {last}"
    )]
    NothingToCheck {
        /// Key of the other run.
        run: String,
        /// First place to check.
        from: u64,
        /// Last common place.
        last: u64,
    },
    /// Averaging is by steps.
    #[error("--average is for --align steps: by tokens, losses between records are interpolated")]
    AverageByTokens,
}

/// Compares.
///
/// # Errors
/// [`CompareError`].
pub fn compare(mut runs: Vec<Run>, options: &Options) -> Result<Comparison, CompareError> {
    if runs.len() < 2 {
        return Err(CompareError::TooFew(runs.len()));
    }
    let axis = options.axis;
    let mut notes = Vec::new();
    // Rates are of the records as they were logged.
    let throughput = runs
        .iter()
        .map(|run| throughput::throughput(&run.curve, options.skip_steps))
        .collect();
    if axis == Axis::Tokens {
        if options.average {
            return Err(CompareError::AverageByTokens);
        }
        for run in &runs {
            std::iter::once(&run.curve)
                .chain(&run.repeats)
                .try_for_each(|curve| tokens_ascend(&run.key, curve))?;
        }
    } else {
        intervals(&mut runs, options.average, &mut notes);
    }
    if options.smooth > 1 {
        for run in &mut runs {
            run.curve = align::smoothed(&run.curve, options.smooth);
            for repeat in &mut run.repeats {
                *repeat = align::smoothed(repeat, options.smooth);
            }
        }
        notes.push(format!(
            "every loss is the mean of the last {} records (--smooth)",
            options.smooth
        ));
    }
    let mut against = Vec::new();
    let first = &runs[0];
    for (i, run) in runs.iter().enumerate().skip(1) {
        against.push(hold_against(first, run, i, options, &mut notes)?);
    }
    let table = rows::table(&runs, &against, options, &mut notes)?;
    Ok(Comparison {
        axis,
        throughput,
        skip_steps: options.skip_steps,
        against,
        table,
        notes,
        runs,
    })
}

fn hold_against(
    a: &Run,
    b: &Run,
    run: usize,
    options: &Options,
    notes: &mut Vec<String>,
) -> Result<Against, CompareError> {
    let axis = options.axis;
    let pairs = align::align(&a.curve, &b.curve, axis);
    let (Some(first), Some(last)) = (pairs.first(), pairs.last()) else {
        return Err(CompareError::Apart {
            run: b.key.clone(),
            unit: match axis {
                Axis::Steps => "step",
                Axis::Tokens => "range of tokens",
            },
            a: extent(&a.curve, axis),
            b: extent(&b.curve, axis),
        });
    };
    if pairs.len() < a.curve.points.len() {
        notes.push(format!(
            "A and {}: compared at {} of A's {} records, {} to {}",
            b.key,
            pairs.len(),
            a.curve.points.len(),
            first.at,
            last.at
        ));
    }
    let gate =
        match options.tolerance {
            None => None,
            Some(tolerance) => Some(gap::gate(&pairs, tolerance, options.tolerance_from).ok_or_else(
                || CompareError::NothingToCheck {
                    run: b.key.clone(),
                    from: options.tolerance_from,
                    last: last.at,
                },
            )?),
        };
    let end = gap::warmup_end(
        [&a.curve, &b.curve],
        axis,
        options.warmup_steps,
        (first.at, last.at),
    );
    Ok(Against {
        run,
        crossover: gap::crossover(&pairs),
        windows: gap::windows(&pairs, &options.windows),
        warmup: gap::warmup(&pairs, end, options.warmup_tolerance),
        noise: noise::noise((&a.curve, &a.repeats), (&b.curve, &b.repeats), axis, &pairs),
        gate,
        pairs,
    })
}

fn extent(curve: &Curve, axis: Axis) -> String {
    let places: Vec<u64> = curve.points.iter().filter_map(|p| axis.of(p)).collect();
    match (places.first(), places.last()) {
        (Some(first), Some(last)) => format!("{} records from {first} to {last}", places.len()),
        _ => "none".to_owned(),
    }
}

/// By tokens, every record has to tell them, and they have to rise.
fn tokens_ascend(key: &str, curve: &Curve) -> Result<(), CompareError> {
    let wrong = |problem| CompareError::Tokens {
        run: key.to_owned(),
        origin: curve.origin.clone(),
        problem,
    };
    let tokens: Option<Vec<u64>> = curve.points.iter().map(|p| p.tokens).collect();
    let tokens =
        tokens.ok_or_else(|| wrong("the log does not tell how many tokens were consumed at each record"))?;
    if tokens.windows(2).any(|pair| pair[1] <= pair[0]) {
        return Err(wrong("its tokens do not rise from record to record"));
    }
    Ok(())
}

/// Logs of frameworks hold means since the record before: those of other intervals are not alike.
fn intervals(runs: &mut [Run], average: bool, notes: &mut Vec<String>) {
    let of = |run: &Run| align::interval(&run.curve);
    let sparsest = runs
        .iter()
        .filter_map(|run| of(run).map(|every| (every, run)))
        .max_by(|x, y| x.0.total_cmp(&y.0));
    let Some((most, sparse)) = sparsest else { return };
    let denser: Vec<String> = runs
        .iter()
        .filter(|run| of(run).is_some_and(|every| every < most))
        .map(|run| run.key.clone())
        .collect();
    if denser.is_empty() {
        return;
    }
    let key = sparse.key.clone();
    if !average {
        notes.push(format!(
            "{key} has a record every {most} steps, {} more often: if {key}'s losses are means since the record before, as \
             HF and Megatron log them, --average makes means of the others' as well",
            denser.join(", ")
        ));
        return;
    }
    let steps: Vec<u64> = sparse.curve.points.iter().map(|p| p.step).collect();
    for run in runs.iter_mut().filter(|run| denser.contains(&run.key)) {
        run.curve = align::averaged(&run.curve, &steps);
        for repeat in &mut run.repeats {
            *repeat = align::averaged(repeat, &steps);
        }
    }
    notes.push(format!(
        "losses of {} are means over the {most} steps between {key}'s records",
        denser.join(", ")
    ));
}
