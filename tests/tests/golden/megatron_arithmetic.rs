//! Megatron's pure arithmetic: split bounds, blending, the sample index alone, pretraining samplers.

use ceteris_samplers::orders::blend::{Shares, normalize};
use ceteris_samplers::orders::megatron_epochs::{EpochRule, GptIndexSpec};
use ceteris_samplers::orders::megatron_index::{SampleIndex, build_sample_index};
use ceteris_samplers::orders::megatron_sampler::{PretrainingSampler, RandomSampler};
use ceteris_samplers::orders::split::{Split, SplitMatrix};
use ceteris_samplers::rng::numpy::RandomState;
use ceteris_tests::golden::{run_family, sha256_hex, sha256_u64};
use serde_json::Value;

use crate::case::{boolean, check_array, floats, number, numbers, same, text};

#[test]
fn splits() {
    run_family("megatron_splits.json", |case| {
        let split = text(case, "split")?;
        let matrix = SplitMatrix::parse(split);
        if let Some(error) = case["error"].as_str() {
            return match matrix {
                Ok(matrix) => Err(format!("the original fails ({error}), here it is {matrix:?}")),
                Err(_) => Ok(()),
            };
        }
        let matrix = matrix.map_err(|e| e.to_string())?;
        check_matrix(&case["split_matrix"], &matrix)?;
        let documents = case["documents"].as_object().ok_or("no documents")?;
        for (n, bounds) in documents {
            let n: u64 = n.parse().map_err(|_| format!("{n} is no number of documents"))?;
            for split in Split::ALL {
                let recorded = &bounds[split.index()];
                let got = matrix.sequences(split, n);
                let want = if recorded.is_null() {
                    None
                } else {
                    Some(numbers(recorded)?)
                };
                same(
                    &format!("{split} of {n}"),
                    want,
                    got.map(|r| vec![r.start, r.end]),
                )?;
            }
        }
        Ok(())
    });
}

pub fn check_matrix(recorded: &Value, matrix: &SplitMatrix) -> Result<(), String> {
    for split in Split::ALL {
        let bounds = &recorded[split.index()];
        let want = if bounds.is_null() {
            None
        } else {
            Some(floats(bounds)?)
        };
        same(
            &format!("{split} bounds"),
            want,
            matrix.0[split.index()].map(|(low, high)| vec![low, high]),
        )?;
    }
    Ok(())
}

#[test]
fn blending() {
    run_family("megatron_blend.json", |case| {
        let size = number(case, "size")?;
        let shares = match text(case, "kind")? {
            "build_blending_indices" => {
                let weights = normalize(&floats(&case["weights"])?);
                same(
                    "normalized weights",
                    floats(&case["normalized"])?,
                    weights.clone(),
                )?;
                Shares::Weighted { weights, size }
            }
            "build_exhaustive_blending_indices" => Shares::Exhaustive {
                lengths: numbers(&case["sizes"])?,
            },
            other => return Err(format!("unknown kind {other}")),
        };
        let blend = shares.build().map_err(|e| e.to_string())?;
        same("counts", numbers(&case["counts"])?, blend.counts().to_vec())?;
        check_array(
            "dataset_index",
            &case["dataset_index"],
            "int16",
            &[size],
            (0..size).map(|i| blend.dataset_index().get(i).map_or(u64::MAX, |d| d as u64)),
        )?;
        check_array(
            "dataset_sample_index",
            &case["dataset_sample_index"],
            "int64",
            &[size],
            blend.dataset_sample_index().iter(),
        )
    });
}

/// numpy type, shape and values of a sample index.
pub fn check_sample_index(recorded: &Value, index: &SampleIndex) -> Result<(), String> {
    let dtype = match index {
        SampleIndex::Narrow(_) => "int32",
        SampleIndex::Wide(_) => "int64",
    };
    let values = (0..index.len()).flat_map(|i| {
        let (document, offset) = index.get(i).unwrap_or((u64::MAX, u64::MAX));
        [document, offset]
    });
    check_array("sample_index", recorded, dtype, &[index.len(), 2], values)
}

#[test]
fn sample_index() {
    run_family("megatron_sample_idx.json", |case| {
        let (documents, epochs) = (number(case, "documents")?, number(case, "epochs")?);
        let law = numbers(&case["lengths"])?;
        let seed = number(case, "seed")?;
        let sizes: Vec<i64> = RandomState::from_seed(seed.into())
            .map_err(|e| e.to_string())?
            .randint(law[0].into(), i128::from(law[1]) + 1, documents as usize)
            .map_err(|e| e.to_string())?;
        let lengths: Vec<u32> = sizes.iter().map(|&n| n as u32).collect();
        same(
            "sizes",
            text(case, "sizes_sha256")?,
            &sha256_u64(lengths.iter().map(|&n| n.into())),
        )?;
        let mut order: Vec<u32> = (0..epochs).flat_map(|_| 0..documents as u32).collect();
        RandomState::from_seed(i128::from(seed) + 1)
            .map_err(|e| e.to_string())?
            .shuffle(&mut order);
        same(
            "documents",
            text(case, "document_idx_sha256")?,
            &sha256_u64(order.iter().map(|&n| n.into())),
        )?;
        let spec = GptIndexSpec {
            sequence_length: number(case, "sequence_length")?,
            add_extra_token: boolean(case, "add_extra_token_to_sequence")?,
            random_seed: 0,
            num_samples: None,
            drop_last_partial_sequence: boolean(case, "drop_last_partial_sequence")?,
        };
        let tokens_per_epoch = lengths.iter().map(|&n| u64::from(n)).sum();
        same(
            "tokens_per_epoch",
            number(case, "tokens_per_epoch")?,
            tokens_per_epoch,
        )?;
        let rule = EpochRule {
            num_epochs: epochs,
            tokens_per_epoch,
            separate_final_epoch: None,
            samples_sans_final_epoch: None,
        };
        let num_samples = rule.num_samples(&spec).map_err(|e| e.to_string())?;
        same("samples", number(case, "samples")?, num_samples)?;
        let index = build_sample_index(&lengths, &order, num_samples, &spec).map_err(|e| e.to_string())?;
        check_sample_index(&case["sample_index"], &index)
    });
}

fn sha256_i64(values: impl Iterator<Item = u64>) -> String {
    sha256_hex(&values.flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>())
}

fn check_batches(what: &str, recorded: &Value, batches: &[Vec<u64>]) -> Result<(), String> {
    same(
        &format!("{what}: batches"),
        number(recorded, "batches")?,
        batches.len() as u64,
    )?;
    let lists = |value: &Value| -> Result<Vec<Vec<u64>>, String> {
        value
            .as_array()
            .ok_or("no batches")?
            .iter()
            .map(numbers)
            .collect()
    };
    let first = lists(&recorded["first"])?;
    same(
        &format!("{what}: first"),
        &first[..],
        &batches[..first.len().min(batches.len())],
    )?;
    if !recorded["last"].is_null() {
        let last = lists(&recorded["last"])?;
        same(
            &format!("{what}: last"),
            &last[..],
            &batches[batches.len().saturating_sub(last.len())..],
        )?;
    }
    let all = sha256_i64(batches.iter().flatten().copied());
    same(&format!("{what}: sha256"), text(recorded, "sha256")?, &all)
}

fn random_pass(
    sampler: &RandomSampler,
    consumed: u64,
    rank: u64,
    micro_batch_size: u64,
) -> Result<Vec<Vec<u64>>, String> {
    let (epoch, within) = sampler.locate(consumed).map_err(|e| e.to_string())?;
    let permutation = sampler.permutation(epoch).map_err(|e| e.to_string())?;
    (0..sampler.batches(within, rank))
        .map(|batch| {
            (0..micro_batch_size)
                .map(|slot| {
                    let (entry, offset) = sampler.entry(within, batch, rank, slot).ok_or("no such place")?;
                    Ok(permutation.get(entry).ok_or("past the permutation")? + offset)
                })
                .collect()
        })
        .collect()
}

#[test]
fn pretraining_samplers() {
    run_family("megatron_samplers.json", |case| {
        let (total, consumed) = (number(case, "total_samples")?, number(case, "consumed_samples")?);
        let (micro, dp) = (
            number(case, "micro_batch_size")?,
            number(case, "data_parallel_size")?,
        );
        let ranks = case["ranks"].as_array().ok_or("no ranks")?;
        same("ranks", dp, ranks.len() as u64)?;
        match text(case, "sampler")? {
            "MegatronPretrainingSampler" => {
                let sampler =
                    PretrainingSampler::new(total, consumed, micro, dp, boolean(case, "drop_last")?)
                        .map_err(|e| e.to_string())?;
                for (rank, recorded) in ranks.iter().enumerate() {
                    let batches: Vec<Vec<u64>> = (0..sampler.batches())
                        .map(|m| sampler.batch(m, rank as u64).collect())
                        .collect();
                    check_batches(&format!("rank {rank}"), recorded, &batches)?;
                }
            }
            "MegatronPretrainingRandomSampler" => {
                let sampler = RandomSampler::new(total, micro, dp, boolean(case, "data_sharding")?)
                    .map_err(|e| e.to_string())?;
                for (rank, recorded) in ranks.iter().enumerate() {
                    let pass = |consumed| random_pass(&sampler, consumed, rank as u64, micro);
                    if recorded.as_str() == Some("AssertionError") {
                        same("an assertion", true, pass(consumed).is_err())?;
                        continue;
                    }
                    let first = pass(consumed)?;
                    check_batches(&format!("rank {rank}"), recorded, &first)?;
                    let after = consumed + first.len() as u64 * micro * dp;
                    same("consumed_after", number(recorded, "consumed_after")?, after)?;
                    let second = &recorded["second_pass"];
                    if second.as_str() == Some("AssertionError") {
                        same("an assertion in the second pass", true, pass(after).is_err())?;
                    } else {
                        check_batches(&format!("rank {rank}, second pass"), second, &pass(after)?)?;
                    }
                }
            }
            other => return Err(format!("unknown sampler {other}")),
        }
        Ok(())
    });
}
