//! accelerate: `BatchSamplerShard`, `IterableDatasetShard`, `prepare_data_loader`, `skip_first_batches`.

use ceteris_tests::golden::{run_family, sha256_u64};
use ceteris_tests::orders::{batches, epoch, geometry, order};
use serde_json::{Value, json};

use crate::case::{boolean, list, number, numbers, same, text};

#[test]
fn accelerate_batch_sampler_shard() {
    run_family("accelerate_batch_sampler_shard.json", |case| {
        let world = number(case, "num_processes")?;
        let spec = json!({
            "name": "hf-trainer",
            "dataset": [],
            "data_seed": case["data_seed"],
            "split_batches": boolean(case, "split_batches")?,
            "even_batches": boolean(case, "even_batches")?,
            "drop_last": boolean(case, "drop_last")?,
            "single_process_wraps": true,
        });
        let order = order(
            spec,
            number(case, "n")?,
            geometry(world, number(case, "batch_size")?),
        )?;
        let uneven_split = boolean(case, "split_batches")? && !boolean(case, "even_batches")?;
        let ranks = list(&case["ranks"])?;
        same("ranks", ranks.len() as u64, world)?;
        for (rank, want) in (0..).zip(ranks) {
            for (e, want_epoch) in (0..).zip(list(&want["epochs"])?) {
                let got = batches(&order, &epoch(&order, e)?, rank);
                let at = |why: String| format!("rank {rank} epoch {e}: {why}");
                check_batches(want_epoch, &got).map_err(at)?;
                // `len(BatchSamplerShard)` counts a batch too many for processes that a split last batch does not reach.
                let len = number(want, "len")?;
                let promised = if uneven_split {
                    len.min(got.len() as u64)
                } else {
                    len
                };
                same("len", promised, got.len() as u64).map_err(at)?;
            }
        }
        Ok(())
    });
}

#[test]
fn accelerate_iterable_shard() {
    run_family("accelerate_iterable_shard.json", |case| {
        let world = number(case, "num_processes")?;
        let batch_size = number(case, "batch_size")?;
        let micro_batch_size = if boolean(case, "split_batches")? {
            batch_size / world
        } else {
            batch_size
        };
        let spec = json!({
            "name": "hf-iterable",
            "shuffle": false,
            "split": "batches",
            "drop_last": boolean(case, "drop_last")?,
        });
        let order = order(spec, number(case, "n")?, geometry(world, micro_batch_size))?;
        let epoch = epoch(&order, 0)?;
        let ranks = list(&case["ranks"])?;
        same("ranks", ranks.len() as u64, world)?;
        for (rank, want) in (0..).zip(ranks) {
            let at = |why: String| format!("rank {rank}: {why}");
            let got = batches(&order, &epoch, rank).concat();
            let (first, last) = (numbers(&want["first"])?, numbers(&want["last"])?);
            same("samples", number(want, "samples")?, got.len() as u64).map_err(at)?;
            same("first", &first[..], &got[..first.len().min(got.len())]).map_err(at)?;
            same("last", &last[..], &got[got.len().saturating_sub(last.len())..]).map_err(at)?;
            same("sha256", text(want, "sha256")?, &sha256_u64(got)).map_err(at)?;
        }
        Ok(())
    });
}

#[test]
fn accelerate_prepared_loader() {
    run_family("accelerate_prepared_loader.json", |case| {
        let world = number(case, "num_processes")?;
        let geometry = geometry(world, number(case, "batch_size")?);
        let seedable = case["use_seedable_sampler"].as_bool().unwrap_or(true);
        let mut spec = json!({
            "name": "hf-trainer",
            "dataset": [],
            "seed": case["seed"],
            "use_seedable_sampler": seedable,
        });
        if seedable && !case["data_seed"].is_null() {
            spec["data_seed"] = case["data_seed"].clone();
        }
        let order = order(spec, number(case, "n")?, geometry)?;
        let ranks = list(&case["ranks"])?;
        same("ranks", ranks.len() as u64, world)?;
        for (rank, want) in (0..).zip(ranks) {
            let at = |why: String| format!("rank {rank}: {why}");
            let full = |e: u64| Ok::<_, String>(batches(&order, &epoch(&order, e)?, rank));
            match case.get("skip_first_batches") {
                None => {
                    for (e, want) in (0..).zip(list(&want["epochs"])?) {
                        check_batches(want, &full(e)?).map_err(|why| at(format!("epoch {e}: {why}")))?;
                    }
                }
                Some(_) => {
                    // Skipping leaves the epoch's list alone and drops its first micro-batches, in every epoch of the
                    // skipping loader; the loader it was made from starts at its own epoch 0.
                    let skip = number(case, "skip_first_batches")? as usize;
                    let tail = |e| -> Result<_, String> {
                        let mut batches = full(e)?;
                        Ok(batches.split_off(skip.min(batches.len())))
                    };
                    check_batches(&want["skip_then_epoch0"], &tail(0)?).map_err(at)?;
                    check_batches(&want["same_object_again"], &tail(1)?).map_err(at)?;
                    check_batches(&want["full_epoch_after"], &full(0)?).map_err(at)?;
                }
            }
        }
        Ok(())
    });
}

/// Checks recorded batches of one process and epoch.
fn check_batches(want: &Value, got: &[Vec<u64>]) -> Result<(), String> {
    same("batches", number(want, "batches")?, got.len() as u64)?;
    same("samples", number(want, "samples")?, got.concat().len() as u64)?;
    same("sha256", text(want, "sha256")?, &sha256_u64(got.concat()))?;
    let tail = &got[got.len().saturating_sub(2)..];
    let lens: Vec<usize> = tail.iter().map(Vec::len).collect();
    same("last_batch_lens", &want["last_batch_lens"], &json!(lens))?;
    if let Some(all) = want.get("all") {
        return same("all", all, &json!(got));
    }
    same("first", &want["first"], &json!(&got[..got.len().min(3)]))?;
    same("last", &want["last"], &json!(tail))
}
