//! Batch-invariant products: a row of `x · weightᵀ` has the same bits whatever rows are around it, and however many.
//!
//! cuBLASLt promises nothing of the kind, so three things are done. Products run in calls of whole multiples of [`ROWS`]
//! rows (what is left over is computed among rows that nobody reads), so no kernel meets a partly filled tile. All of them
//! use one algorithm, taken from what the library offers for [`REFERENCE`] rows without splitting the sum over k: the first
//! of that list, not the fastest of a measurement, so that every process on a machine takes the same. And the algorithm is
//! checked before it is used: rows are computed in calls of several sizes from several places of a large batch, and one that
//! gives other bits than the large batch is refused.

use std::collections::BTreeSet;

use cudarc::cublaslt::sys;

use super::call::{Address, Call, Kernel, Modules, Program, digest, fill_random};
use super::device::{Block, Device};
use super::error::CudaError;
use super::listing::list;
use super::product::{Offer, Prepared, Product, Products, Shape, WORKSPACE, format_algorithm};
use super::{CudaOptions, Precision, Source};
use crate::plan::Plan;

/// Rows of a call are a multiple of this: as many as the largest tile has.
pub(super) const ROWS: u64 = 256;
/// Alignment of operands, bytes; a row starts at a multiple of it.
pub(super) const ALIGN: u32 = 16;
/// Rows for which the library is asked.
const REFERENCE: u64 = 4096;
/// Rows of the batch that everything is held against, where the memory of the device allows.
const LARGEST: u64 = 65_536;
/// Rows of the calls that are compared with it. A call of 1, 2 or 255 rows is one of 256, one of 257 or 1000 rows one of 256
/// or 768 and one of 256.
const CALLS: [u64; 6] = [256, 512, 768, 1024, 4096, 16_384];

/// The shape under which an algorithm is looked up.
pub(super) fn reference(shape: Shape) -> Shape {
    Shape {
        n: REFERENCE,
        align: ALIGN,
        ..shape
    }
}

/// Key in the record.
pub(super) fn key(shape: Shape) -> String {
    format!("batch-invariant {:?}", reference(shape))
}

/// The kernels that a check needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    random: Kernel,
    digest: Kernel,
}

impl Probe {
    pub(super) fn new(modules: &mut Modules, precision: Precision) -> Result<Self, CudaError> {
        let defines = precision.defines();
        Ok(Probe {
            random: modules.kernel(Source::Reduce, &defines, "fill_random", 0)?,
            digest: modules.kernel(Source::Reduce, &defines, "digest_words", 0)?,
        })
    }
}

/// What was found about one product.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProductCheck {
    /// Outputs and inputs of a row.
    pub shape: (u64, u64),
    /// Rows of the batch that calls were compared with.
    pub rows: u64,
    /// Calls compared.
    pub compared: usize,
    /// Candidates that were refused, with the first difference.
    pub refused: Vec<String>,
    /// The algorithm that passed: the library's description in hex.
    pub algorithm: String,
}

/// Operands for a check, and where digests go.
struct Trial {
    rows: u64,
    weight: Block,
    x: Block,
    /// All rows, and those of one call.
    whole: Block,
    part: Block,
    digests: Block,
    compared: Vec<(u64, u64)>,
}

impl Trial {
    fn new(shape: Shape, probe: &Probe, products: &Products, device: &Device) -> Result<Self, CudaError> {
        let (input, output) = (shape.ldb * shape.input_bytes(), shape.ldd * shape.output_bytes());
        // At most half of the memory that is left, as a whole multiple of a call.
        let free = device.free_memory()? / 2;
        let fit = free / (input + 2 * output) / ROWS * ROWS;
        let rows = LARGEST.min(fit);
        if rows < 2 * ROWS {
            return Err(CudaError::Memory {
                needed: 4 * ROWS * (input + 2 * output),
                free: 2 * free,
            });
        }
        // Places: first, somewhere in the middle at an odd row, last.
        let calls = CALLS.iter().filter(|&&n| n < rows);
        let compared: Vec<(u64, u64)> = calls
            .flat_map(|&n| [0, ((rows - n) / 2) | 1, rows - n].map(|first| (n, first.min(rows - n))))
            .collect();
        let most = compared.iter().map(|c| c.0).max().unwrap_or(ROWS);
        let trial = Trial {
            rows,
            weight: Block::zeroed(device, shape.m * shape.lda * shape.input_bytes())?,
            x: Block::zeroed(device, rows * input)?,
            whole: Block::zeroed(device, rows * output)?,
            part: Block::zeroed(device, most * output)?,
            digests: Block::zeroed(device, 16 * compared.len() as u64)?,
            compared,
        };
        let fills = [&trial.weight, &trial.x].map(|b| fill_random(probe.random, b.pointer(), b.bytes()));
        run(fills.to_vec(), products, device)?;
        Ok(trial)
    }

    /// The first call whose rows have other bits than the same rows of the whole batch, or that does not run.
    fn difference(
        &self,
        shape: Shape,
        algorithm: &sys::cublasLtMatmulAlgo_t,
        probe: &Probe,
        products: &Products,
        device: &Device,
    ) -> Result<Option<String>, CudaError> {
        let (input, output) = (shape.ldb * shape.input_bytes(), shape.ldd * shape.output_bytes());
        let described = |n: u64| Products::describe(Shape { n, ..shape });
        let call = |p: &Prepared, first: u64, to: &Block| {
            let product = Product {
                a: Address::Device(self.weight.pointer()),
                b: Address::Device(self.x.pointer() + first * input),
                d: Address::Device(to.pointer()),
            };
            products.matmul(p, Some(algorithm), &product, 0, device.stream())
        };
        if let Err(why) = call(&described(self.rows)?, 0, &self.whole) {
            return Ok(Some(format!("{} rows: {why}", self.rows)));
        }
        self.digests.fill(0)?;
        for (i, &(n, first)) in self.compared.iter().enumerate() {
            if let Err(why) = call(&described(n)?, first, &self.part) {
                return Ok(Some(format!("{n} rows: {why}")));
            }
            let at = self.digests.pointer() + 16 * i as u64;
            let of = |from: u64, to: u64| digest(probe.digest, from, n * output, n, to);
            let both = vec![
                of(self.part.pointer(), at),
                of(self.whole.pointer() + first * output, at + 8),
            ];
            run(both, products, device)?;
        }
        let mut found = vec![[0u64; 2]; self.compared.len()];
        device.download(&mut found, self.digests.pointer(), "digests")?;
        let other = self
            .compared
            .iter()
            .zip(&found)
            .find(|(_, [part, whole])| part != whole);
        Ok(other.map(|((n, first), _)| {
            format!(
                "{n} rows from row {first} on have other bits than in a batch of {}",
                self.rows
            )
        }))
    }
}

fn run(calls: Vec<Call>, products: &Products, device: &Device) -> Result<(), CudaError> {
    let mut program = Program::new(calls, 0);
    program.issue(0..program.len(), device.stream(), products)
}

/// The first algorithm that passes, and what was found on the way.
///
/// # Errors
/// [`CudaError::Unsupported`]: none passes.
pub(super) fn choose(
    products: &Products,
    shape: Shape,
    probe: &Probe,
    device: &Device,
) -> Result<(sys::cublasLtMatmulAlgo_t, ProductCheck), CudaError> {
    let shape = reference(shape);
    let described = Products::describe(shape)?;
    let trial = Trial::new(shape, probe, products, device)?;
    let mut refused = Vec::new();
    // Algorithms that need no workspace first: none of them can add up parts of a sum in it.
    for workspace in [0, WORKSPACE] {
        let offer = Offer {
            workspace,
            split_k: false,
        };
        for algorithm in products.candidates(&described, offer)? {
            match trial.difference(shape, &algorithm, probe, products, device)? {
                None => {
                    let check = ProductCheck {
                        shape: (shape.m, shape.k),
                        rows: trial.rows,
                        compared: trial.compared.len(),
                        refused,
                        algorithm: format_algorithm(&algorithm),
                    };
                    return Ok((algorithm, check));
                }
                Some(why) => refused.push(why),
            }
        }
    }
    Err(CudaError::Unsupported(format!(
        "batch_invariant: cuBLASLt has no algorithm for products of [{}, {}] whose rows do not depend on their number; turn \
         train.batch_invariant off ({})",
        shape.m,
        shape.k,
        refused.join("; ")
    )))
}

/// Checks every forward product of a plan anew, whatever was recorded.
///
/// # Errors
/// [`CudaError`]: a product for which no algorithm passes, sizes that the kernels do not cover, or the device failed.
pub fn check_batch_invariance(
    plan: &Plan,
    precision: Precision,
    device: &Device,
) -> Result<Vec<ProductCheck>, CudaError> {
    device.bind()?;
    let options = CudaOptions {
        precision,
        batch_invariant: true,
    };
    let shapes: BTreeSet<Shape> = list(plan, options, device.shared_memory())?.1;
    let products = Products::new(device)?;
    let mut modules = Modules::new(device);
    let probe = Probe::new(&mut modules, precision)?;
    shapes
        .into_iter()
        .map(|shape| Ok(choose(&products, shape, &probe, device)?.1))
        .collect()
}
