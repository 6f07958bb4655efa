//! Megatron data as a whole: stored files, GPT datasets with their samples, masks, blends built from a data path.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use ceteris_loader::collate::{Collated, Collator, MegatronCollator, TokenBlock};
use ceteris_loader::index::build::{BuildOptions, BuiltPart, BuiltSplit, build_split};
use ceteris_loader::index::description::{RunDescription, blended, md5_hex};
use ceteris_loader::index::plan::{BlendSpec, DataSpec, MegatronConfig};
use ceteris_loader::index::python_json::PyJson;
use ceteris_loader::source::Source;
use ceteris_loader::source::megatron::{Check, IndexedDataset, bin_path, idx_path};
use ceteris_loader::source::megatron_gpt::GptSource;
use ceteris_loader::source::megatron_idx::TokenType;
use ceteris_loader::source::megatron_writer::IndexedWriter;
use ceteris_samplers::orders::blend::Shares;
use ceteris_samplers::orders::megatron_dataset::MegatronDataset;
use ceteris_samplers::orders::megatron_epochs::GptIndexSpec;
use ceteris_samplers::orders::megatron_index::{GptIndex, SampleIndex};
use ceteris_samplers::orders::split::{Split, SplitMatrix};
use ceteris_tests::golden::{
    check_digest_of, golden_dir, load_family, run_family, run_folders, sha256_hex, sha256_u64,
};
use ceteris_tests::tokens::row;
use serde_json::Value;

use crate::case::{boolean, check_array, floats, list, number, numbers, same, text};
use crate::megatron_arithmetic::{check_matrix, check_sample_index};

/// The recordings' end-of-document and pad ids.
const EOD: i32 = 0;
const PAD: i32 = 4095;

fn say(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn optional(case: &Value, key: &str) -> Result<Option<u64>, String> {
    if case[key].is_null() {
        Ok(None)
    } else {
        number(case, key).map(Some)
    }
}

fn sha256_of_file(path: &Path) -> Result<String, String> {
    std::fs::read(path).map(|bytes| sha256_hex(&bytes)).map_err(say)
}

#[test]
fn stored_files() {
    run_folders("megatron", |dir| {
        let recorded = std::fs::read_to_string(dir.join("expected.json")).map_err(say)?;
        let recorded: Value = serde_json::from_str(&recorded).map_err(say)?;
        let prefix = dir.join("data");
        let data = IndexedDataset::open(&prefix, Check::Full).map_err(say)?;
        let index = data.index();
        same("dtype", text(&recorded, "dtype")?, index.token_type().name())?;
        same(
            "sequences",
            number(&recorded, "sequences")?,
            index.num_sequences(),
        )?;
        same(
            "documents",
            number(&recorded, "documents")?,
            index.num_documents(),
        )?;
        same(
            "tokens",
            number(&recorded, "tokens")?,
            data.totals().map_or(0, |t| t.tokens),
        )?;
        let lengths = index.lengths().map_err(say)?;
        same(
            "lengths",
            numbers(&recorded["sequence_lengths"])?,
            lengths.iter().map(|&n| n.into()).collect(),
        )?;
        let bounds = index.bounds().map_err(say)?;
        same(
            "document bounds",
            numbers(&recorded["document_indices"])?,
            bounds.clone(),
        )?;
        let last = index.sequence(index.num_sequences() - 1).map_err(say)?;
        same(
            "last pointer",
            number(&recorded, "sequence_pointers_last")?,
            last.pointer,
        )?;
        let rows: Vec<Vec<i32>> = (0..data.num_samples())
            .map(|i| row(&data, i))
            .collect::<Result<_, _>>()?;
        check_digest_of(
            &recorded["tokens_digest"],
            rows.iter().flatten().map(|&t| t as u64),
        )?;
        for (i, first) in list(&recorded["first_sequences"])?.iter().enumerate() {
            same(
                "sequence",
                numbers(first)?,
                rows[i].iter().map(|&t| t as u64).collect(),
            )?;
        }
        // What is written again from the tokens is the same, byte for byte.
        let folder = tempfile::tempdir().map_err(say)?;
        let copy = folder.path().join("copy");
        let token_type = TokenType::from_code(index.token_type().code()).ok_or("no such code")?;
        let mut writer = IndexedWriter::create(&copy, token_type, false).map_err(say)?;
        for pair in bounds.windows(2) {
            for sequence in pair[0]..pair[1] {
                writer.add_sequence(&rows[sequence as usize]).map_err(say)?;
            }
            writer.end_document();
        }
        writer.finish().map_err(say)?;
        for (name, original, written) in [
            ("data.bin", bin_path(&prefix), bin_path(&copy)),
            ("data.idx", idx_path(&prefix), idx_path(&copy)),
        ] {
            let want = text(&recorded["files_sha256"], name)?;
            same(name, want, &sha256_of_file(&original)?)?;
            same(&format!("{name} written again"), want, &sha256_of_file(&written)?)?;
        }
        Ok(())
    });
}

fn open(data: &str) -> Result<Arc<IndexedDataset>, String> {
    let prefix = golden_dir().join("megatron").join(data).join("data");
    IndexedDataset::open(&prefix, Check::Full)
        .map(Arc::new)
        .map_err(say)
}

fn index_values(index: &GptIndex) -> [Vec<u64>; 3] {
    let documents = (0..index.document_index.len()).filter_map(|i| index.document_index.get(i));
    let samples = (0..index.sample_index.len()).filter_map(|i| index.sample_index.get(i));
    [
        documents.map(u64::from).collect(),
        samples.flat_map(|(d, o)| [d, o]).collect(),
        index.shuffle_index.iter().collect(),
    ]
}

/// What `dataset[i]` returns as a real `GPTDataset` does, for every sample `i` of a run.
struct Items {
    source: GptSource,
    seq_length: usize,
}

impl Items {
    fn new(
        data: Vec<Arc<IndexedDataset>>,
        dataset: Arc<MegatronDataset>,
        seq: u64,
        extra: bool,
    ) -> Result<Self, String> {
        let source = GptSource::new(data, dataset, seq, extra).map_err(say)?;
        Ok(Items {
            source,
            seq_length: seq as usize,
        })
    }

    fn len(&self) -> u64 {
        self.source.dataset().len()
    }

    fn item(&self, i: u64, collator: &MegatronCollator) -> Result<Collated, String> {
        let id = self
            .source
            .dataset()
            .sample_id(i)
            .ok_or_else(|| format!("no sample {i}"))?;
        let mut tokens = row(&self.source, id)?;
        let width = collator.width(self.seq_length);
        same(
            "tokens read",
            tokens.len(),
            self.source.sample_len(id).map_err(say)?,
        )?;
        // A partial sample is padded in front of a block collator, as the original pads inside its dataset.
        tokens.resize(width, collator.pad_token_id.unwrap_or(-1));
        let mut out = Collated::default();
        collator
            .collate(
                &TokenBlock {
                    tokens: &tokens,
                    width,
                    valid_rows: 1,
                },
                &mut out,
            )
            .map_err(say)?;
        Ok(out)
    }

    /// SHA-256 over the tokens of all samples as little-endian i64.
    fn sha256_of_tokens(&self, collator: &MegatronCollator) -> Result<String, String> {
        let mut bytes = Vec::new();
        for i in 0..self.len() {
            bytes.extend(
                self.item(i, collator)?
                    .tokens
                    .iter()
                    .flat_map(|&t| i64::from(t).to_le_bytes()),
            );
        }
        Ok(sha256_hex(&bytes))
    }
}

fn collator(extra: bool) -> MegatronCollator {
    MegatronCollator {
        add_extra_token: extra,
        eod_token_id: Some(EOD),
        pad_token_id: Some(PAD),
        ..Default::default()
    }
}

#[test]
fn gpt_datasets() {
    run_family("megatron_gpt_dataset.json", |case| {
        if let Some(error) = case["error"].as_str() {
            let args = list(&case["args"])?;
            return match gpt_of_args(args) {
                Ok(index) => Err(format!(
                    "the original fails ({error}), here {} samples are built",
                    index.len()
                )),
                Err(_) => Ok(()),
            };
        }
        let name = text(case, "data")?;
        let extra = boolean(case, "add_extra_token_to_sequence")?;
        let seq = number(case, "sequence_length")?;
        let split: Split = text(case, "split")?.parse()?;
        let keep = !boolean(case, "drop_last_partial_validation_sequence")?;
        let num_samples = optional(case, "num_samples_arg")?;
        let range = numbers(&case["indices"])?;
        let data = open(name)?;
        let spec = GptIndexSpec {
            sequence_length: seq,
            add_extra_token: extra,
            random_seed: number(case, "random_seed")?,
            num_samples,
            drop_last_partial_sequence: split != Split::Valid || !keep,
        };
        let index =
            GptIndex::build(&data.index().lengths().map_err(say)?, range[0]..range[1], &spec).map_err(say)?;
        same(
            "tokens_per_epoch",
            number(case, "tokens_per_epoch")?,
            index.rule.tokens_per_epoch,
        )?;
        same("epochs", number(case, "epochs")?, index.rule.num_epochs)?;
        same(
            "separate_final_epoch",
            case["separate_final_epoch"].as_bool(),
            index.rule.separate_final_epoch,
        )?;
        same("len", number(case, "len")?, index.len())?;
        let [documents, _, shuffled] = index_values(&index);
        check_array(
            "document_index",
            &case["document_index"],
            "int32",
            &[documents.len() as u64],
            documents.into_iter(),
        )?;
        check_sample_index(&case["sample_index"], &index.sample_index)?;
        check_array(
            "shuffle_index",
            &case["shuffle_index"],
            "uint32",
            &[index.len()],
            shuffled.into_iter(),
        )?;

        let recorded = text(case, "unique_description")?;
        let parsed: PyJson = serde_json::from_str(recorded).map_err(say)?;
        let run = RunDescription {
            random_seed: spec.random_seed,
            sequence_length: seq,
            split: match parsed.get("split") {
                Some(PyJson::Str(split)) => Some(split.clone()),
                Some(PyJson::Null) => None,
                other => return Err(format!("split is {other:?}")),
            },
            tokenizer: parsed.get("tokenizer").cloned().ok_or("no tokenizer")?,
        };
        let description = run
            .gpt(&format!("megatron/{name}/data"), num_samples, split)
            .dumps();
        same("unique_description", recorded, &description)?;
        same("md5", text(case, "md5")?, &md5_hex(&description))?;

        let items = Items::new(
            vec![data],
            Arc::new(MegatronDataset::single(Arc::new(index))),
            seq,
            extra,
        )?;
        let collator = collator(extra);
        if items.len() > 0 {
            let want = text(case, "tokens_of_all_samples_sha256_i64")?;
            same("tokens", want, &items.sha256_of_tokens(&collator)?)?;
        }
        for (i, want) in case["samples"].as_object().into_iter().flatten() {
            let i: u64 = i.parse().map_err(|_| format!("{i} is no sample"))?;
            let got = items.item(i, &collator)?.tokens;
            same(
                &format!("sample {i}"),
                numbers(want)?,
                got.iter().map(|&t| t as u64).collect(),
            )?;
        }
        Ok(())
    });
}

/// A failing case records the generator's arguments only.
fn gpt_of_args(args: &[Value]) -> Result<GptIndex, String> {
    let [name, seq, extra, seed, num_samples, split, fraction] = args else {
        return Err("seven arguments are expected".to_owned());
    };
    let data = open(name.as_str().ok_or("no name")?)?;
    let lengths = data.index().lengths().map_err(say)?;
    let fraction = floats(fraction)?;
    let bound = |f: f64| ((f * lengths.len() as f64).round_ties_even() as u64).min(lengths.len() as u64);
    let range = bound(fraction[0])..bound(fraction[1]);
    let (seq, extra) = (seq.as_u64().ok_or("no length")?, extra.as_u64() == Some(1));
    let per_epoch: u64 = lengths[range.start as usize..range.end as usize]
        .iter()
        .map(|&n| u64::from(n))
        .sum();
    let num_samples = match (
        num_samples.as_u64(),
        num_samples.as_str().and_then(|s| s.strip_prefix("epochs:")),
    ) {
        (_, Some(epochs)) => {
            let epochs: f64 = epochs.parse().map_err(|_| "epochs")?;
            Some(((epochs * (per_epoch.saturating_sub(u64::from(extra)) / seq) as f64) as u64).max(1))
        }
        (count, None) => count,
    };
    let spec = GptIndexSpec {
        sequence_length: seq,
        add_extra_token: extra,
        random_seed: seed.as_u64().ok_or("no seed")?,
        num_samples,
        drop_last_partial_sequence: split != "valid_keep_partial",
    };
    GptIndex::build(&lengths, range, &spec).map_err(say)
}

/// The rows of the original's `T x T` mask ("1" is masked out), from document bounds.
fn attention_rows(collated: &Collated) -> Vec<String> {
    let t = collated.seq_length;
    let whole = [0, t as i32];
    let bounds = if collated.cu_seqlens.is_empty() {
        &whole[..]
    } else {
        &collated.cu_seqlens[..]
    };
    (0..t)
        .map(|r| {
            let start = bounds
                .iter()
                .rev()
                .find(|&&b| b as usize <= r)
                .map_or(0, |&b| b as usize);
            (0..t)
                .map(|c| if c <= r && c >= start { '0' } else { '1' })
                .collect()
        })
        .collect()
}

#[test]
fn masks() {
    run_family("megatron_masks.json", |case| {
        let extra = boolean(case, "add_extra_token_to_sequence")?;
        let seq = number(case, "sequence_length")?;
        let data = open(text(case, "data")?)?;
        let spec = GptIndexSpec {
            sequence_length: seq,
            add_extra_token: extra,
            random_seed: number(case, "random_seed")?,
            num_samples: None,
            drop_last_partial_sequence: true,
        };
        let lengths = data.index().lengths().map_err(say)?;
        let index = GptIndex::build(&lengths, 0..lengths.len() as u64, &spec).map_err(say)?;
        let items = Items::new(
            vec![data],
            Arc::new(MegatronDataset::single(Arc::new(index))),
            seq,
            extra,
        )?;
        // The recording went through all samples from the first one on before it kept any.
        let first = items.source.dataset().sample_id(0).ok_or("no sample")?;
        let collator = MegatronCollator {
            reset_position_ids: boolean(case, "reset_position_ids")?,
            reset_attention_mask: boolean(case, "reset_attention_mask")?,
            eod_mask_loss: boolean(case, "eod_mask_loss")?,
            first_served: Some(row(&items.source, first)?),
            ..collator(extra)
        };
        let padding_sample = case["idx"].is_null();
        let mut item = items.item(if padding_sample { 0 } else { number(case, "idx")? }, &collator)?;
        if padding_sample {
            item.loss_mask.fill(0.0);
        }
        let rows = attention_rows(&item);
        let masked = rows.iter().flat_map(|r| r.bytes()).filter(|&b| b == b'1').count();
        same(
            "attention_mask_true_count",
            number(case, "attention_mask_true_count")?,
            masked as u64,
        )?;
        let arrays = [
            ("tokens", &item.tokens),
            ("labels", &item.labels),
            ("position_ids", &item.position_ids),
        ];
        let mask: Vec<u8> = item.loss_mask.iter().map(|&m| m as u8).collect();
        if case["tokens"].is_array() {
            for (name, got) in arrays {
                same(
                    name,
                    numbers(&case[name])?,
                    got.iter().map(|&v| v as u64).collect(),
                )?;
            }
            same(
                "loss_mask",
                numbers(&case["loss_mask"])?,
                mask.iter().map(|&m| m.into()).collect(),
            )?;
            let want: Vec<Option<&str>> = list(&case["attention_mask_rows"])?
                .iter()
                .map(Value::as_str)
                .collect();
            same(
                "attention_mask",
                want,
                rows.iter().map(|r| Some(r.as_str())).collect(),
            )
        } else {
            for (name, got) in arrays {
                let bytes: Vec<u8> = got.iter().flat_map(|&v| i64::from(v).to_le_bytes()).collect();
                same(
                    name,
                    text(case, &format!("{name}_sha256_i64"))?,
                    &sha256_hex(&bytes),
                )?;
            }
            same(
                "loss_mask",
                text(case, "loss_mask_sha256_u8")?,
                &sha256_hex(&mask),
            )?;
            let bytes: Vec<u8> = rows.iter().flat_map(|r| r.bytes().map(|b| b - b'0')).collect();
            same(
                "attention_mask",
                text(case, "attention_mask_sha256_u8")?,
                &sha256_hex(&bytes),
            )
        }
    });
}

/// Vocabulary sizes that the GPT dataset family names for each folder.
fn known_vocabularies() -> BTreeMap<String, i128> {
    let mut known = BTreeMap::new();
    let Some(family) = load_family("megatron_gpt_dataset.json") else {
        return known;
    };
    for case in family["cases"].as_array().into_iter().flatten() {
        let (Some(data), Some(description)) = (case["data"].as_str(), case["unique_description"].as_str())
        else {
            continue;
        };
        let parsed: Result<PyJson, _> = serde_json::from_str(description);
        if let Ok(parsed) = parsed
            && let Some(PyJson::Int(n)) = parsed.get("tokenizer").and_then(|t| t.get("vocab_size"))
        {
            known.insert(data.to_owned(), *n);
        }
    }
    known
}

fn tokenizer(vocab_size: i128) -> PyJson {
    PyJson::Object(vec![
        ("class".to_owned(), PyJson::Str("GoldenTokenizer".to_owned())),
        ("vocab_size".to_owned(), PyJson::Int(vocab_size)),
    ])
}

#[test]
fn builders() {
    let known = known_vocabularies();
    run_family("megatron_builder.json", |case| {
        let prefixes: Vec<String> = list(&case["prefixes"])?
            .iter()
            .map(|p| p.as_str().map(str::to_owned).ok_or("no prefix"))
            .collect::<Result<_, _>>()?;
        let in_set: Vec<String> = prefixes
            .iter()
            .map(|p| golden_dir().join(p).display().to_string())
            .collect();
        let weights = if case["weights"].is_null() {
            None
        } else {
            Some(floats(&case["weights"])?)
        };
        let split = text(case, "split")?;
        let sizes = list(&case["sizes"])?;
        let mut config = MegatronConfig::new(
            DataSpec::Cut {
                blend: BlendSpec {
                    prefixes: in_set,
                    weights,
                },
                split: split.to_owned(),
            },
            number(case, "sequence_length")?,
            number(case, "random_seed")?,
        );
        config.num_samples = [sizes[0].as_u64(), sizes[1].as_u64(), sizes[2].as_u64()];
        config.mid_level_dataset_surplus = case["mid_level_dataset_surplus"].as_f64().ok_or("no surplus")?;
        check_matrix(&case["split_matrix"], &SplitMatrix::parse(split).map_err(say)?)?;
        if let Some(error) = case["error"].as_str() {
            let built: Result<Vec<_>, _> = Split::ALL
                .into_iter()
                .map(|split| build_split(&config, split, &BuildOptions::default()))
                .collect();
            return match built {
                Ok(_) => Err(format!("the original fails ({error}), here it builds")),
                Err(_) => Ok(()),
            };
        }
        for split in Split::ALL {
            let recorded = &case["datasets"][split.name()];
            match build_split(&config, split, &BuildOptions::default()).map_err(say)? {
                None => same(split.name(), recorded.is_null(), true)?,
                Some(built) => {
                    check_split(recorded, &built, &config, &prefixes, &known)
                        .map_err(|e| format!("{split}: {e}"))?;
                }
            }
        }
        Ok(())
    });
}

fn check_split(
    recorded: &Value,
    built: &BuiltSplit,
    config: &MegatronConfig,
    prefixes: &[String],
    known: &BTreeMap<String, i128>,
) -> Result<(), String> {
    let DataSpec::Cut { split, .. } = &config.data else {
        return Err("a cut data path is expected".to_owned());
    };
    let run = |vocab_size| RunDescription {
        random_seed: config.random_seed,
        sequence_length: config.sequence_length,
        split: Some(split.clone()),
        tokenizer: tokenizer(vocab_size),
    };
    let (seq, extra) = (config.sequence_length, config.add_extra_token_to_sequence);
    let data: Vec<_> = built.parts.iter().map(|part| Arc::clone(&part.data)).collect();
    let items = Items::new(data, Arc::clone(&built.dataset), seq, extra)?;
    // Several prefixes were recorded with one vocabulary size, a single one with that of its data. A vocabulary that no
    // other family names is the one whose description has the recorded hash.
    let folder = prefixes[0].split('/').nth(1).unwrap_or_default();
    let candidates: Vec<i128> = match (prefixes.len(), known.get(folder)) {
        (1, Some(&n)) => vec![n],
        (1, None) => (1..300_000).collect(),
        _ => vec![100_000],
    };
    let Some(shares) = &built.shares else {
        let describe = |n| {
            run(n)
                .gpt(&prefixes[0], built.parts[0].num_samples, built.split)
                .dumps()
        };
        return check_gpt(
            recorded,
            &built.parts[0],
            candidates.into_iter().map(describe),
            items,
        );
    };
    let describe_parts = |vocab_size| -> Vec<PyJson> {
        let run = run(vocab_size);
        let parts = built.parts.iter().zip(prefixes);
        parts
            .map(|(part, prefix)| run.gpt(prefix, part.num_samples, built.split))
            .collect()
    };
    let md5 = text(recorded, "md5")?;
    let vocab_size = candidates
        .into_iter()
        .find(|&n| md5_hex(&blended(&describe_parts(n), built.split, shares).dumps()) == md5)
        .ok_or_else(|| format!("md5: expected {md5}, no description has it"))?;
    let descriptions = describe_parts(vocab_size);
    same("class", text(recorded, "class")?, "BlendedDataset")?;
    let blend = built.dataset.blend().ok_or("no blend")?;
    same("len", number(recorded, "len")?, blend.len())?;
    let (size, weights) = match shares {
        Shares::Weighted { weights, size } => (Some(*size), weights.clone()),
        Shares::Exhaustive { lengths } => (None, lengths.iter().map(|&n| n as f64).collect()),
    };
    same("size", optional(recorded, "size")?, size)?;
    same("weights", floats(&recorded["weights"])?, weights)?;
    let datasets = (0..blend.len())
        .filter_map(|i| blend.dataset_index().get(i))
        .map(|d| d as u64);
    check_array(
        "dataset_index",
        &recorded["dataset_index"],
        "int16",
        &[blend.len()],
        datasets,
    )?;
    let samples = blend.dataset_sample_index().iter();
    check_array(
        "dataset_sample_index",
        &recorded["dataset_sample_index"],
        "int64",
        &[blend.len()],
        samples,
    )?;
    if !blend.is_empty() {
        same("counts", numbers(&recorded["counts"])?, blend.counts().to_vec())?;
    }
    let want = text(recorded, "tokens_of_all_samples_sha256_i64")?;
    same("tokens", want, &items.sha256_of_tokens(&collator(extra))?)?;
    let mids = list(&recorded["mid_level"])?;
    same("datasets", mids.len(), built.parts.len())?;
    for (i, ((recorded, part), description)) in mids.iter().zip(&built.parts).zip(descriptions).enumerate() {
        let items = Items::new(
            vec![Arc::clone(&part.data)],
            Arc::new(MegatronDataset::single(Arc::clone(&part.index))),
            seq,
            extra,
        )?;
        check_gpt(recorded, part, std::iter::once(description.dumps()), items)
            .map_err(|e| format!("dataset {i}: {e}"))?;
    }
    Ok(())
}

fn check_gpt(
    recorded: &Value,
    part: &BuiltPart,
    mut descriptions: impl Iterator<Item = String>,
    items: Items,
) -> Result<(), String> {
    same("class", text(recorded, "class")?, "GPTDataset")?;
    same("len", number(recorded, "len")?, part.index.len())?;
    same(
        "num_samples",
        optional(recorded, "num_samples")?,
        part.num_samples,
    )?;
    let documents = numbers(&recorded["documents"])?;
    if documents.is_empty() {
        return same("documents", true, part.sequences.is_empty());
    }
    same(
        "documents",
        documents,
        vec![part.sequences.start, part.sequences.end],
    )?;
    let md5 = text(recorded, "md5")?;
    same(
        "md5",
        true,
        descriptions.any(|description| md5_hex(&description) == md5),
    )?;
    let [documents, samples, shuffled] = index_values(&part.index);
    same(
        "narrow",
        true,
        matches!(part.index.sample_index, SampleIndex::Narrow(_)),
    )?;
    for (what, values) in [
        ("document", documents),
        ("sample", samples),
        ("shuffle", shuffled),
    ] {
        same(
            what,
            text(recorded, &format!("{what}_index_sha256"))?,
            &sha256_u64(values),
        )?;
    }
    let want = text(recorded, "tokens_of_all_samples_sha256_i64")?;
    let extra = items.source.width() > items.seq_length;
    same("tokens", want, &items.sha256_of_tokens(&collator(extra))?)
}
