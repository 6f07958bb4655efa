//! Tests that any executor must pass, as data: a [`Case`] is a small plan with one operator and its gradient, inputs,
//! and the outputs to compare. [`Case::compare`] runs it on an executor and on the CPU in f64 (the oracle);
//! [`Case::check_gradients`] checks the gradients of an f64 executor against central differences. The oracle itself
//! is held by the latter, by recorded values of the original implementations, and by [`recurrent`].

mod cases;
pub mod recurrent;
mod rng;

pub use cases::{
    ConvCase, DEVICE_LENGTHS, DeltaCase, LossCase, adamw, add_rms_norm, all, cross_entropy, delta_rule,
    device, documents_of, embedding, gated_rms_norm, gates, global_norm, linear, short_conv, swiglu,
};
pub use rng::Rng;

use crate::backend::{ExecError, Executor};
use crate::cpu::{self, Float};
use crate::plan::{BufferId, Columns, Plan, Role, Section};

/// One operator with its gradient.
#[derive(Clone, Debug)]
pub struct Case {
    /// For messages: operator and sizes.
    pub name: String,
    /// `Forward` holds the operator, `Backward` its gradient, or `Update` the operator.
    pub plan: Plan,
    /// Values of buffers, written before the run.
    pub values: Vec<(BufferId, Vec<f64>)>,
    /// Ids of buffers, written before the run.
    pub ids: Vec<(BufferId, Vec<i32>)>,
    /// What is compared.
    pub outputs: Vec<Columns>,
    /// Outputs of the forward operator and the buffers that hold their cotangents.
    pub cotangents: Vec<(Columns, Columns)>,
    /// Inputs and the buffers that hold their gradients.
    pub gradients: Vec<(Columns, Columns)>,
}

/// Difference of one output from the oracle's.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputError {
    /// The buffer's name.
    pub output: String,
    /// `‖x - ref‖ / ‖ref‖`, or `‖x‖` where the reference is 0; NaN if a value is.
    pub relative: f64,
}

/// Makes the executor under test.
pub type Make<'a> = &'a dyn Fn(Plan) -> Result<Box<dyn Executor>, ExecError>;

impl Case {
    /// The case with all real inputs rounded by `round`, so that an executor with a narrow type and the oracle get
    /// the same inputs.
    pub fn rounded(mut self, round: impl Fn(f64) -> f64) -> Self {
        for (id, values) in &mut self.values {
            if self.plan.buffer(*id).role != Role::Scalar {
                values.iter_mut().for_each(|x| *x = round(*x));
            }
        }
        self
    }

    /// Writes the inputs.
    ///
    /// # Errors
    /// Those of the executor.
    pub fn load(&self, executor: &mut dyn Executor) -> Result<(), ExecError> {
        for (id, values) in &self.values {
            executor.write_f64(*id, 0, values)?;
        }
        for (id, values) in &self.ids {
            executor.write_ids(*id, values)?;
        }
        Ok(())
    }

    /// Runs everything and returns the outputs.
    ///
    /// # Errors
    /// Those of the executor.
    pub fn run(&self, executor: &mut dyn Executor) -> Result<Vec<Vec<f64>>, ExecError> {
        self.load(executor)?;
        for section in &Section::ALL[..4] {
            executor.run(*section)?;
        }
        self.outputs.iter().map(|&c| read(executor, c)).collect()
    }

    /// Outputs of the CPU in f64.
    ///
    /// # Errors
    /// Those of the executor.
    pub fn oracle(&self) -> Result<Vec<Vec<f64>>, ExecError> {
        let mut executor = cpu::executor(self.plan.clone(), Float::F64, 1)?;
        executor.poison();
        self.run(executor.as_mut())
    }

    /// Errors of an executor's outputs against the oracle.
    ///
    /// # Errors
    /// Those of the executors.
    pub fn compare(&self, make: Make) -> Result<Vec<OutputError>, ExecError> {
        let want = self.oracle()?;
        let mut executor = make(self.plan.clone())?;
        let got = self.run(executor.as_mut())?;
        let names = self
            .outputs
            .iter()
            .map(|c| self.plan.buffer(c.buffer).name.clone());
        Ok(names
            .zip(got.iter().zip(&want))
            .map(|(output, (got, want))| OutputError {
                output,
                relative: relative_error(got, want),
            })
            .collect())
    }

    /// Checks the gradients of an executor that computes in f64 against central differences of `Σ output · cotangent`
    /// at up to `samples` places per input. Returns the largest error found, relative to the largest gradient of the
    /// input, with the input's name.
    ///
    /// # Errors
    /// Those of the executor.
    pub fn check_gradients(&self, make: Make, samples: usize) -> Result<Vec<OutputError>, ExecError> {
        const STEP: f64 = 1e-5;
        let mut executor = make(self.plan.clone())?;
        let executor = executor.as_mut();
        self.run(executor)?;
        let cotangents: Vec<Vec<f64>> = self
            .cotangents
            .iter()
            .map(|&(_, c)| read(executor, c))
            .collect::<Result<_, _>>()?;
        // All of them now: later runs overwrite them.
        let gradients: Vec<Vec<f64>> = self
            .gradients
            .iter()
            .map(|&(_, dx)| read(executor, dx))
            .collect::<Result<_, _>>()?;
        let mut rng = Rng::new(self.name.len() as u64);
        let mut errors = Vec::new();
        for (&(x, dx), analytic) in self.gradients.iter().zip(&gradients) {
            let start = self.initial(dx);
            let scale = analytic
                .iter()
                .zip(&start)
                .fold(1e-3, |m: f64, (a, s)| m.max((a - s).abs()));
            let mut worst = 0.0f64;
            for _ in 0..samples.min(analytic.len()) {
                let i = rng.below(analytic.len());
                let at = self.position(x, i);
                let mut loss = |delta: f64| -> Result<f64, ExecError> {
                    self.load(executor)?;
                    let value = self.value(x.buffer, at) + delta;
                    executor.write_f64(x.buffer, at, &[value])?;
                    executor.run(Section::Forward)?;
                    let mut total = 0.0;
                    for (&(out, _), cotangent) in self.cotangents.iter().zip(&cotangents) {
                        total += read(executor, out)?
                            .iter()
                            .zip(cotangent)
                            .map(|(a, b)| a * b)
                            .sum::<f64>();
                    }
                    Ok(total)
                };
                let numeric = (loss(STEP)? - loss(-STEP)?) / (2.0 * STEP);
                let error = (analytic[i] - start[i] - numeric).abs() / scale;
                worst = if error.is_nan() {
                    f64::NAN
                } else {
                    worst.max(error)
                };
            }
            errors.push(OutputError {
                output: self.plan.buffer(dx.buffer).name.clone(),
                relative: worst,
            });
        }
        Ok(errors)
    }

    /// What a gradient buffer held before the run: gradients of parameters are accumulated.
    fn initial(&self, c: Columns) -> Vec<f64> {
        let b = self.plan.buffer(c.buffer);
        let n = b.len() / b.width().max(1) * c.width;
        match self.values.iter().find(|(id, _)| *id == c.buffer) {
            Some((_, values)) if b.role == Role::Gradient => {
                (0..n).map(|i| values[self.position(c, i)]).collect()
            }
            _ => vec![0.0; n],
        }
    }

    /// Position in the buffer of the i-th value of its columns.
    fn position(&self, c: Columns, i: usize) -> usize {
        i / c.width * self.plan.buffer(c.buffer).width() + c.first + i % c.width
    }

    fn value(&self, id: BufferId, at: usize) -> f64 {
        self.values
            .iter()
            .find(|(other, _)| *other == id)
            .map_or(0.0, |(_, values)| values[at])
    }
}

/// Reads columns of a buffer, row by row.
///
/// # Errors
/// Those of the executor.
pub fn read(executor: &mut dyn Executor, c: Columns) -> Result<Vec<f64>, ExecError> {
    let b = executor.plan().buffer(c.buffer);
    let (len, width) = (b.len(), b.width());
    let mut all = vec![0.0; len];
    executor.read_f64(c.buffer, 0, &mut all)?;
    Ok(all
        .chunks(width.max(1))
        .flat_map(|row| &row[c.first..c.first + c.width])
        .copied()
        .collect())
}

/// `‖x - ref‖ / ‖ref‖`; `‖x‖` where the reference is 0.
pub fn relative_error(x: &[f64], reference: &[f64]) -> f64 {
    assert_eq!(x.len(), reference.len());
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
    let difference = norm(&mut x.iter().zip(reference).map(|(a, b)| a - b));
    let size = norm(&mut reference.iter().copied());
    if size > 0.0 { difference / size } else { difference }
}
