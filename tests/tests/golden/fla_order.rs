//! flash-linear-attention's pipeline end to end: which rows, and which token blocks, every rank got at every step.

use std::collections::BTreeMap;
use std::sync::Arc;

use ceteris_loader::collate::{Collated, Collator, EodMask, ShimCollator, TokenBlock};
use ceteris_loader::source::{HfSource, Source};
use ceteris_samplers::{Epoch, Order, Place};
use ceteris_tests::golden::{check_digest, golden_dir, load_family, run_family, sha256_u64};
use ceteris_tests::orders::{batches, epoch, geometry, order};
use ceteris_tests::tokens::{open, row, sha256_of_rows};
use serde_json::{Value, json};

use crate::case::{list, number, numbers, same, text};

/// The law a case records, as a spec.
fn spec(law: &str, seed: &Value) -> Result<Value, String> {
    let name = match law {
        "strided_distributed_sampler" => "fla",
        "hf_trainer_batch_sampler_shard" => "hf-trainer",
        _ => return Err(format!("unknown law {law}")),
    };
    Ok(json!({"name": name, "seed": seed}))
}

/// Datasets of a set, each opened once.
#[derive(Default)]
struct Sources(BTreeMap<String, HfSource>);

impl Sources {
    fn get(&mut self, folder: &str) -> Result<&HfSource, String> {
        if !self.0.contains_key(folder) {
            self.0
                .insert(folder.to_string(), open(&golden_dir().join(folder))?);
        }
        self.0.get(folder).ok_or_else(|| format!("no dataset {folder}"))
    }
}

/// Rows of the stored table that one rank consumes in one micro-step.
fn rows(order: &Arc<dyn Order>, epoch: &Arc<dyn Epoch>, micro_step: u64, rank: u64) -> Vec<u64> {
    (0..order.geometry().micro_batch_size)
        .filter_map(|slot| {
            epoch.sample(Place {
                micro_step,
                rank,
                slot,
            })
        })
        .collect()
}

#[test]
fn fla_order() {
    let mut sources = Sources::default();
    run_family("fla_order.json", |case| {
        let source = sources.get(text(case, "data")?)?;
        let n = number(case, "samples")?;
        same("samples", n, source.num_samples())?;
        let (world, mbs) = (number(case, "world")?, number(case, "mbs")?);
        let law = text(case, "law")?;
        let order = order(spec(law, &case["run_seed"])?, n, geometry(world, mbs))?;
        let epoch = epoch(&order, number(case, "epoch")?)?;
        let per_rank: Vec<Vec<Vec<u64>>> = (0..world).map(|rank| batches(&order, &epoch, rank)).collect();
        let lens: Vec<u64> = per_rank.iter().map(|b| b.len() as u64).collect();
        same("steps_per_rank", numbers(&case["steps_per_rank"])?, lens)?;
        let hashes: Vec<Value> = per_rank.iter().map(|b| sha256_u64(b.concat()).into()).collect();
        same(
            "epoch_ids_sha256_by_rank",
            list(&case["epoch_ids_sha256_by_rank"])?,
            &hashes,
        )?;

        let steps = list(&case["steps"])?;
        if steps.is_empty() {
            return Err("no step was recorded".to_string());
        }
        for step in steps {
            let t = number(step, "step")?;
            let ranks = list(&step["ranks"])?;
            same("ranks", ranks.len() as u64, world)?;
            for (rank, want) in (0..).zip(ranks) {
                let at = |why: String| format!("step {t} rank {rank}: {why}");
                let got = rows(&order, &epoch, t, rank);
                if want.is_null() {
                    same("rows", 0, got.len()).map_err(at)?;
                    continue;
                }
                let ids = &per_rank[rank as usize][t as usize];
                same("ids", &numbers(&want["ids"])?, ids).map_err(at)?;
                same("rows", numbers(&want["rows"])?, got.clone()).map_err(at)?;
                let block = sha256_of_rows(source, got)?;
                same("tokens_sha256", text(want, "tokens_sha256")?, &block).map_err(at)?;
            }
        }

        let whole = (0..epoch.micro_steps()).flat_map(|t| (0..world).map(move |rank| (t, rank)));
        let whole = whole.flat_map(|(t, rank)| rows(&order, &epoch, t, rank));
        let stream = sha256_of_rows(source, whole)?;
        same("epoch_tokens_sha256", text(case, "epoch_tokens_sha256")?, &stream)?;
        if case.get("primus_index_map").is_some() {
            shim(case, source, &order, &epoch)?;
        }
        Ok(())
    });
}

/// What the FLA-order shim made of the strided law: a map from Megatron sample numbers, which Megatron deals blocked,
/// to positions. The map is only as long as the padded epoch, so the last, short micro-step does not fit into it: its
/// unused slots hold 0, and places beyond the map are lost.
fn shim(
    case: &Value,
    source: &HfSource,
    order: &Arc<dyn Order>,
    epoch: &Arc<dyn Epoch>,
) -> Result<(), String> {
    let geometry = order.geometry();
    let (row_len, mbs) = (geometry.samples_per_micro_step(), geometry.micro_batch_size);
    let padded = order.num_positions() + order.num_padded();
    let map: Vec<u64> = (0..padded)
        .map(|sample| {
            let within = sample % row_len;
            let place = Place {
                micro_step: sample / row_len,
                rank: within / mbs,
                slot: within % mbs,
            };
            epoch.position(place).unwrap_or(0)
        })
        .collect();
    check_digest(&case["primus_index_map"], &map).map_err(|e| format!("primus_index_map: {e}"))?;

    let first = Place {
        micro_step: 0,
        rank: 0,
        slot: 0,
    };
    let tokens = row(source, epoch.sample(first).ok_or("an epoch without samples")?)?;
    let block = TokenBlock {
        tokens: &tokens,
        width: tokens.len(),
        valid_rows: 1,
    };
    let mut item = Collated::default();
    ShimCollator {
        pad_token_id: 0,
        eod_mask: EodMask::Off,
    }
    .collate(&block, &mut item)
    .map_err(|e| e.to_string())?;
    let ends = |values: Vec<i64>| json!({"first": values[..8], "last": values[values.len() - 4..]});
    let ints = |values: &[i32]| values.iter().map(|v| i64::from(*v)).collect();
    let got = json!({
        "tokens": ends(ints(&item.tokens)),
        "labels": ends(ints(&item.labels)),
        "loss_mask": ends(item.loss_mask.iter().map(|v| *v as i64).collect()),
    });
    same("primus_item0", &case["primus_item0"], &got)
}

#[test]
fn fla_trainer_runs() {
    let mut sources = Sources::default();
    let recorded_order = load_family("fla_order.json");
    run_family("fla_trainer_runs.json", |case| {
        let source = sources.get(text(case, "data")?)?;
        let (world, mbs) = (number(case, "world")?, number(case, "mbs")?);
        let spec = spec("hf_trainer_batch_sampler_shard", &case["run_seed"])?;
        let order = order(spec, source.num_samples(), geometry(world, mbs))?;
        let block = |t: u64, rank: u64| -> Result<String, String> {
            let (e, micro_step) = order.locate(t).map_err(|e| e.to_string())?;
            sha256_of_rows(source, rows(&order, &epoch(&order, e)?, micro_step, rank))
        };
        let ranks = list(&case["tokens_sha256"])?;
        same("ranks", ranks.len() as u64, world)?;
        for (rank, want) in (0..).zip(ranks) {
            let want = list(want)?;
            same("steps", want.len() as u64, number(case, "max_steps")?.min(20))?;
            for (t, want) in (0..).zip(want) {
                same(&format!("step {t} rank {rank}"), want, &block(t, rank)?.into())?;
            }
        }
        match &recorded_order {
            Some(recorded) => verdicts(case, recorded, block),
            None => Ok(()),
        }
    });
}

/// How many blocks of the run equal those that `fla_order.json` records for each law.
fn verdicts(
    case: &Value,
    recorded: &Value,
    block: impl Fn(u64, u64) -> Result<String, String>,
) -> Result<(), String> {
    let max_steps = number(case, "max_steps")?;
    let laws = case["compared_with_fla_order"].as_object().ok_or("no verdicts")?;
    for (law, verdict) in laws {
        let (mut base, mut equal, mut different) = (0, 0u64, 0u64);
        let same_run = |c: &&Value| {
            c["law"] == law.as_str()
                && ["data", "run_seed", "world"]
                    .iter()
                    .all(|key| c[*key] == case[*key])
        };
        for epoch in list(&recorded["cases"])?.iter().filter(same_run) {
            for step in list(&epoch["steps"])? {
                let t = base + number(step, "step")?;
                for (rank, want) in (0..).zip(list(&step["ranks"])?) {
                    if t < max_steps && !want.is_null() {
                        match text(want, "tokens_sha256")? == block(t, rank)? {
                            true => equal += 1,
                            false => different += 1,
                        }
                    }
                }
            }
            base += numbers(&epoch["steps_per_rank"])?.into_iter().max().unwrap_or(0);
        }
        let got = json!({"blocks_equal": equal, "blocks_different": different});
        same(law, verdict, &got)?;
    }
    Ok(())
}
