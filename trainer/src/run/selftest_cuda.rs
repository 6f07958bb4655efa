//! What the self-test adds on a CUDA device: operators and products at the shapes of gdn-300m's layers, run over and over,
//! alone and beside a second stream of load. Every gradient, output and loss must have the same bits each time.

use ceteris_kernels::backend::Executor;
use ceteris_kernels::conformance::Rng;
use ceteris_kernels::cuda::{self, Load};
use ceteris_kernels::plan::{BufferId, Geometry, Plan, Section};

use super::RunError;
use super::engine::{Engine, EngineError};
use super::made_up::next_token_ids;
use super::selftest::Check;
use crate::config::RunConfig;
use crate::model::ModelConfig;
use crate::model::gdn::{self, PlanOptions};

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
    config.model = ModelConfig {
        num_hidden_layers: 1,
        vocab_size: 8192,
        ..ModelConfig::gdn_300m()
    };
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

    progress("a row alone and in a batch");
    checks.push(rows_alone(&device)?);
    Ok(checks)
}

/// Every forward product of gdn-300m, the head included, as `train.batch_invariant` computes it: rows have the same bits in
/// calls of every size, from every place.
fn rows_alone(device: &cuda::Device) -> Result<Check, RunError> {
    let model = ModelConfig {
        num_hidden_layers: 1,
        ..ModelConfig::gdn_300m()
    };
    let options = PlanOptions {
        branch_gradient_copies: true,
        shared_tied_gradient: true,
        logits_chunk_rows: Some(2048),
        ..PlanOptions::new(Geometry::unpacked(1, 2048))
    };
    let plan = gdn::emit(&model, &options).map_err(EngineError::from)?.plan;
    let mut check = Check {
        name: "rows of gdn-300m's products alone and in a batch (batch_invariant)".into(),
        same: true,
        detail: String::new(),
    };
    match cuda::check_batch_invariance(&plan, cuda::Precision::Amp, device) {
        Ok(found) => {
            let sum = |of: &dyn Fn(&cuda::ProductCheck) -> usize| found.iter().map(of).sum::<usize>();
            check.detail = format!(
                "{} shapes, {} calls compared with batches of up to {} rows, {} algorithms refused",
                found.len(),
                sum(&|c| c.compared),
                found.iter().map(|c| c.rows).max().unwrap_or(0),
                sum(&|c| c.refused.len())
            );
        }
        Err(cuda::CudaError::Unsupported(why)) => (check.same, check.detail) = (false, why),
        Err(other) => return Err(device_error(other)),
    }
    Ok(check)
}

fn device_error(error: cuda::CudaError) -> RunError {
    RunError::Engine(EngineError::Device(error.into()))
}

fn inputs(executor: &mut dyn Executor, plan: &Plan, vocab: usize) -> Result<(), RunError> {
    let mut rng = Rng::new(71);
    let rows = plan.geometry.rows();
    let (tokens, labels) = next_token_ids(&mut rng, rows, vocab);
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

/// Gradients of all parameters and the losses.
fn watched(plan: &Plan) -> Result<Vec<BufferId>, EngineError> {
    let named = ["loss_sum", "nll"].map(|name| {
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
