//! What the self-test adds on a CUDA device: operators and products at the shapes of gdn-300m's layers, run over and over,
//! alone and beside a second stream of load. Every gradient, output and loss must have the same bits each time.

use ceteris_kernels::backend::Executor;
use ceteris_kernels::conformance::Rng;
use ceteris_kernels::cuda::{self, Load};
use ceteris_kernels::ops::IGNORE_INDEX;
use ceteris_kernels::plan::{BufferId, Plan, Section};

use super::RunError;
use super::engine::{Engine, EngineError};
use super::selftest::Check;
use crate::config::RunConfig;

/// Runs of a whole layer, forward and backward.
const RUNS: usize = 1000;
/// Runs beside load.
const LOADED: usize = 200;

/// Runs the checks on device `ordinal`.
///
/// # Errors
/// [`RunError`]: the device failed.
pub(super) fn checks(
    settings: &RunConfig,
    ordinal: usize,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Check>, RunError> {
    let mut config = settings.clone();
    let model = &mut config.model;
    (model.hidden_size, model.num_hidden_layers, model.vocab_size) = (1024, 1, 8192);
    (model.num_heads, model.num_v_heads, model.intermediate_size) = (4, Some(8), Some(4096));
    (config.data.seq_length, config.batch.world_size) = (2048, 1);
    config.batch.device_micro_batch_size = Some(4);
    let mut engine = Engine::build(&config)?;
    engine.initialise(&config)?;
    let executor = engine.executor();
    let plan = executor.plan().clone();
    inputs(executor, &plan, config.model.vocab_size)?;
    let watched = watched(&plan)?;
    let first = once(executor, &watched)?;
    let mut checks = Vec::new();

    progress("a layer of gdn-300m, again and again");
    checks.push(repeat(
        executor,
        &watched,
        first,
        RUNS,
        &format!("a layer of gdn-300m {RUNS} times"),
    )?);

    progress("the same beside load");
    let device = cuda::Device::open(ordinal).map_err(device_error)?;
    let load = Load::start(&device).map_err(device_error)?;
    let name = format!("{LOADED} times beside a second stream of load");
    let mut check = repeat(executor, &watched, first, LOADED, &name)?;
    let rounds = load.end().map_err(device_error)?;
    if rounds == 0 {
        (check.same, check.detail) = (false, "the load did not run".into());
    }
    checks.push(check);
    Ok(checks)
}

fn device_error(error: cuda::CudaError) -> RunError {
    RunError::Engine(EngineError::Device(error.into()))
}

fn inputs(executor: &mut dyn Executor, plan: &Plan, vocab: usize) -> Result<(), RunError> {
    let mut rng = Rng::new(71);
    let rows = plan.geometry.rows();
    let tokens: Vec<i32> = (0..rows).map(|_| rng.below(vocab) as i32).collect();
    let mut labels = tokens[1..].to_vec();
    labels.push(IGNORE_INDEX);
    for (name, ids) in [("tokens", &tokens), ("labels", &labels)] {
        if let Some(id) = plan.find(name) {
            executor.write_ids(id, ids)?;
        }
    }
    if let Some(id) = plan.find("grad_scale") {
        executor.write_f64(id, 0, &[1.0 / rows as f64])?;
    }
    Ok(())
}

/// Gradients of all parameters, that of a tied head before it is added to the table's, and the losses.
fn watched(plan: &Plan) -> Result<Vec<BufferId>, EngineError> {
    let named = ["loss_sum", "nll", "lm_head.grad"].map(|name| {
        let found = plan.find(name);
        found.ok_or_else(|| EngineError::NoTensor(name.to_owned()))
    });
    let gradients = plan.parameters.iter().map(|p| Ok(p.gradient));
    gradients.chain(named).collect()
}

fn once(executor: &mut dyn Executor, watched: &[BufferId]) -> Result<u64, RunError> {
    for section in [Section::Begin, Section::Forward, Section::Backward] {
        executor.run(section)?;
    }
    Ok(executor.digest(watched)?)
}

fn repeat(
    executor: &mut dyn Executor,
    watched: &[BufferId],
    first: u64,
    runs: usize,
    name: &str,
) -> Result<Check, RunError> {
    let mut check = Check {
        name: name.to_owned(),
        same: true,
        detail: format!("digest {first:016x}"),
    };
    for run in 1..=runs {
        let digest = once(executor, watched)?;
        if digest != first {
            check.same = false;
            check.detail = format!("run {run}: digest {digest:016x} against {first:016x}");
            break;
        }
    }
    Ok(check)
}
