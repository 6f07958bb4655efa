//! torch: `RandomSampler`, `DataLoader(shuffle=True)`, `DistributedSampler`.

use ceteris_tests::golden::{check_digest, run_family, sha256_u64};
use ceteris_tests::orders::{epoch, geometry, order, stream};
use serde_json::{Value, json};

use crate::case::{boolean, list, number};

#[test]
fn torch_random_sampler() {
    run_family("torch_random_sampler.json", |case| {
        let n = number(case, "n")?;
        let mut spec = json!({"name": "torch-random", "seed": case["seed"]});
        spec["generator"] = match case["generator"].as_str() {
            None if case["generator"].is_null() => "global".into(),
            Some("torch.Generator().manual_seed(seed)") => "own".into(),
            _ => return Err(format!("unknown generator {}", case["generator"])),
        };
        let data_loader = case["DataLoader"].as_bool().unwrap_or(false);
        spec["data_loader"] = data_loader.into();
        let micro_batch_size = if data_loader {
            number(case, "batch_size")?
        } else {
            spec["replacement"] = boolean(case, "replacement")?.into();
            spec["num_samples"] = case["num_samples"].clone();
            1
        };
        let order = order(spec, n, geometry(1, micro_batch_size))?;
        let pass = number(case, "pass")?;
        let epoch = epoch(&order, pass.checked_sub(1).ok_or("passes count from 1")?)?;
        check_digest(case, &stream(&order, &epoch, 0))
    });
}

#[test]
fn torch_distributed_sampler() {
    run_family("torch_distributed_sampler.json", |case| {
        let (n, world) = (number(case, "n")?, number(case, "world")?);
        let spec = json!({
            "name": "torch-distributed",
            "seed": case["seed"],
            "shuffle": boolean(case, "shuffle")?,
            "drop_last": boolean(case, "drop_last")?,
        });
        let ranks = &case["ranks"];
        // The micro-batch does not change what a rank gets; an odd one makes short micro-batches.
        let built = order(spec, n, geometry(world, 3)).and_then(|o| {
            let e = epoch(&o, number(case, "epoch")?)?;
            Ok((o, e))
        });
        if ranks.get("error").is_some() {
            return match built {
                Err(_) => Ok(()),
                Ok(_) => Err(format!("the package raises {}, ours does not", ranks["error"])),
            };
        }
        let (order, epoch) = built?;
        if order.num_padded() != epoch.padded().len() as u64
            || order.num_dropped() != epoch.dropped().len() as u64
        {
            return Err("padded or dropped counts differ from their lists".to_string());
        }
        let per_rank: Vec<Vec<u64>> = (0..world).map(|rank| stream(&order, &epoch, rank)).collect();
        match ranks {
            Value::Array(ranks) if ranks.len() as u64 == world => {
                for (rank, (want, got)) in ranks.iter().zip(&per_rank).enumerate() {
                    check_rank(want, got).map_err(|e| format!("rank {rank}: {e}"))?;
                }
                Ok(())
            }
            Value::Object(_) => {
                check_rank(&ranks["rank0"], &per_rank[0]).map_err(|e| format!("rank 0: {e}"))?;
                check_rank(&ranks["last_rank"], &per_rank[per_rank.len() - 1])
                    .map_err(|e| format!("last rank: {e}"))?;
                let want = list(&ranks["per_rank_sha256"])?;
                let got: Vec<Value> = per_rank
                    .iter()
                    .map(|r| sha256_u64(r.iter().copied()).into())
                    .collect();
                let len = number(ranks, "len")?;
                if per_rank.iter().any(|r| r.len() as u64 != len) {
                    return Err(format!("a rank has not {len} samples"));
                }
                if *want == got {
                    Ok(())
                } else {
                    Err("per_rank_sha256 differ".to_string())
                }
            }
            _ => Err("unknown form of `ranks`".to_string()),
        }
    });
}

fn check_rank(want: &Value, got: &[u64]) -> Result<(), String> {
    check_digest(want, got)?;
    match want.get("all") {
        Some(all) if *all != json!(got) => Err(format!("expected {all}, got {got:?}")),
        _ => Ok(()),
    }
}
