//! What must not change the bits of a model: the split of a batch into micro-batches, the documents packed beside a
//! document, the number of threads, and recomputation.

#![allow(clippy::unwrap_used, reason = "helpers of tests, which say what failed")]

use ceteris_kernels::backend::{Executor, read_all};
use ceteris_kernels::conformance::{Rng, relative_error};
use ceteris_kernels::cpu::{self, Float};
use ceteris_kernels::ops::{HYPER_LEARNING_RATE, HYPER_STEP, IGNORE_INDEX};
use ceteris_kernels::plan::{Geometry, Section};
use ceteris_kernels::recompute::Recompute;
use ceteris_trainer::model::ModelConfig;
use ceteris_trainer::model::gdn::{LanguageModel, Optimizer, PlanOptions, emit};
use serde_json::json;

fn config() -> ModelConfig {
    serde_json::from_value(json!({
        "hidden_size": 48, "num_hidden_layers": 2, "intermediate_size": 96, "num_heads": 2, "num_v_heads": 4,
        "head_dim": 16, "expand_v": 1.0, "vocab_size": 61, "tie_word_embeddings": true,
    }))
    .unwrap()
}

/// A model in f32 with the same random weights for every geometry.
struct Model {
    model: LanguageModel,
    executor: Box<dyn Executor>,
}

impl Model {
    fn new(geometry: Geometry, threads: usize, recompute: Recompute) -> Self {
        let optimizer = Optimizer {
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            max_grad_norm: Some(1.0),
            weight_decay: &|_| 0.01,
        };
        let options = PlanOptions {
            optimizer: Some(optimizer),
            recompute,
            ..PlanOptions::new(geometry)
        };
        let model = emit(&config(), &options).unwrap();
        let mut executor = cpu::executor(model.plan.clone(), Float::F32, threads).unwrap();
        executor.poison();
        let mut rng = Rng::new(3);
        for view in &model.plan.views {
            let scale = if view.shape.len() > 1 { 0.15 } else { 0.3 };
            let shift = if view.name.contains("norm") { 1.0 } else { 0.0 };
            let values: Vec<f64> = (0..view.len()).map(|_| shift + scale * rng.normal()).collect();
            executor
                .write_f64(model.plan.parameters[view.parameter].value, view.offset, &values)
                .unwrap();
        }
        Model { model, executor }
    }

    fn run(&mut self, section: Section) {
        self.executor.run(section).unwrap();
    }

    fn micro_step(&mut self, tokens: &[i32], labels: &[i32], counted: usize) {
        self.executor.write_ids(self.model.tokens, tokens).unwrap();
        self.executor.write_ids(self.model.labels, labels).unwrap();
        self.executor
            .write_f64(self.model.grad_scale, 0, &[1.0 / counted as f64])
            .unwrap();
        self.run(Section::Forward);
        self.run(Section::Backward);
    }

    fn update(&mut self, step: usize) {
        self.executor
            .write_f64(self.model.hyper, HYPER_LEARNING_RATE, &[1e-3])
            .unwrap();
        self.executor
            .write_f64(self.model.hyper, HYPER_STEP, &[step as f64])
            .unwrap();
        self.run(Section::Update);
    }

    fn read(&mut self, id: ceteris_kernels::plan::BufferId) -> Vec<f64> {
        read_all(self.executor.as_mut(), id).unwrap()
    }

    /// Bits of the loss sum, the gradient norm and all parameters.
    fn bits(&mut self) -> Vec<u64> {
        let mut ids = vec![self.model.loss_sum, self.model.grad_norm];
        ids.extend(self.model.plan.parameters.iter().map(|p| p.value));
        ids.into_iter()
            .flat_map(|id| self.read(id))
            .map(f64::to_bits)
            .collect()
    }

    fn gradients(&mut self) -> Vec<Vec<f64>> {
        let ids: Vec<_> = self.model.plan.parameters.iter().map(|p| p.gradient).collect();
        ids.into_iter().map(|id| self.read(id)).collect()
    }
}

/// Tokens and shifted labels of sequences of which only the first `valid` positions count.
fn batch(sequences: usize, len: usize, valid: &dyn Fn(usize) -> usize) -> (Vec<i32>, Vec<i32>) {
    let mut rng = Rng::new(9);
    let tokens: Vec<i32> = (0..sequences * len).map(|_| rng.below(61) as i32).collect();
    let label = |r: usize| {
        let (sequence, at) = (r / len, r % len);
        if at + 1 < valid(sequence) {
            tokens[r + 1]
        } else {
            IGNORE_INDEX
        }
    };
    let labels = (0..sequences * len).map(label).collect();
    (tokens, labels)
}

/// 8 sequences with 3 to 200 counted tokens, as 8 x 1, 4 x 2 and 1 x 8: bitwise equal loss, norm and update.
#[test]
fn v57_split_into_micro_batches() {
    let (len, lengths) = (200, [3, 200, 17, 64, 65, 130, 4, 99]);
    let (tokens, labels) = batch(8, len, &|s| lengths[s]);
    let counted = labels.iter().filter(|&&l| l != IGNORE_INDEX).count();
    let mut all = Vec::new();
    for micro_batch_size in [8, 4, 1] {
        let mut m = Model::new(Geometry::unpacked(micro_batch_size, len), 2, Recompute::None);
        for step in 1..=2 {
            m.run(Section::Begin);
            for at in (0..8 * len).step_by(micro_batch_size * len) {
                let rows = at..at + micro_batch_size * len;
                m.micro_step(&tokens[rows.clone()], &labels[rows], counted);
            }
            m.update(step);
        }
        all.push(m.bits());
    }
    assert!(all[0] == all[1] && all[0] == all[2]);
}

/// Threads and recomputation change no bit over several steps; recomputation needs less memory.
#[test]
fn threads_and_recomputation_change_no_bit() {
    let geometry = Geometry::unpacked(3, 130);
    let (tokens, labels) = batch(3, 130, &|_| 130);
    let run = |threads, recompute| {
        let mut m = Model::new(geometry, threads, recompute);
        for step in 1..=5 {
            m.run(Section::Begin);
            m.micro_step(&tokens, &labels, 3 * 129);
            m.update(step);
        }
        (m.bits(), m.executor.memory().arena)
    };
    let (bits, arena) = run(1, Recompute::None);
    assert!(run(4, Recompute::None).0 == bits, "4 threads");
    let (cheap, cheap_arena) = run(2, Recompute::Cheap);
    let (block, block_arena) = run(3, Recompute::Block);
    println!("arena: none {arena}, cheap {cheap_arena}, block {block_arena} bytes");
    assert!(cheap == bits, "cheap");
    assert!(block == bits, "block");
    assert!(cheap_arena < arena && block_arena < arena);
}

/// Gradients by the name of their parameter.
type Gradients = Vec<(String, Vec<f64>)>;

/// Losses of each document and parameter gradients of documents packed in one sequence.
fn packed(documents: &[Vec<i32>], counted: usize) -> (Vec<Vec<f64>>, Gradients) {
    let tokens = documents.concat();
    let mut labels = vec![IGNORE_INDEX; tokens.len()];
    let mut offsets = vec![0];
    for document in documents {
        let first = offsets[offsets.len() - 1] as usize;
        (first..first + document.len() - 1).for_each(|r| labels[r] = tokens[r + 1]);
        offsets.push((first + document.len()) as i32);
    }
    let geometry = Geometry {
        micro_batch_size: 1,
        seq_length: tokens.len(),
        max_documents: documents.len(),
    };
    let mut m = Model::new(geometry, 2, Recompute::None);
    m.executor.write_ids(m.model.documents, &offsets).unwrap();
    m.run(Section::Begin);
    m.micro_step(&tokens, &labels, counted);
    let nll = m.read(m.model.nll);
    let losses = offsets
        .windows(2)
        .map(|o| nll[o[0] as usize..o[1] as usize].to_vec());
    let names = m
        .model
        .plan
        .parameters
        .iter()
        .map(|p| m.model.plan.buffer(p.value).name.clone());
    let names: Vec<String> = names.collect();
    let gradients = names.into_iter().zip(m.gradients()).collect();
    (losses.collect(), gradients)
}

/// Documents packed in one sequence give the losses they give alone, bit for bit, in whatever order they are packed and
/// whatever stands beside them; parameter gradients agree to 1e-6 (a sum over documents is taken in another order).
#[test]
fn v64_packed_documents_equal_separate_ones() {
    // Also shorter than the convolution, which is 4 wide.
    let lengths = [1usize, 3, 4, 63, 64, 65, 500];
    let mut rng = Rng::new(4);
    let mut document = |len: &usize| (0..*len).map(|_| rng.below(61) as i32).collect::<Vec<i32>>();
    let documents: Vec<Vec<i32>> = lengths.iter().map(&mut document).collect();
    let counted = lengths.iter().sum::<usize>() - lengths.len();
    let (losses, gradients) = packed(&documents, counted);
    let mut sums: Vec<Vec<f64>> = gradients.iter().map(|(_, g)| vec![0.0; g.len()]).collect();
    for (i, document) in documents.iter().enumerate() {
        let (alone, of_one) = packed(std::slice::from_ref(document), counted);
        assert_eq!(alone[0], losses[i], "losses of document {i}");
        for (sum, (_, gradient)) in sums.iter_mut().zip(of_one) {
            sum.iter_mut().zip(gradient).for_each(|(sum, g)| *sum += g);
        }
    }
    for (sum, (name, gradient)) in sums.iter().zip(&gradients) {
        let error = relative_error(gradient, sum);
        assert!(error <= 1e-6, "{name} is off by {error:e}");
    }
    let reversed: Vec<Vec<i32>> = documents.iter().rev().cloned().collect();
    let (mut other, _) = packed(&reversed, counted);
    other.reverse();
    assert!(other == losses, "packed in another order");
    let mut changed = documents.clone();
    changed[3].iter_mut().for_each(|token| *token = (*token + 1) % 61);
    let (other, _) = packed(&changed, counted);
    assert_ne!(other[3], losses[3]);
    for i in [0, 1, 2, 4, 5, 6] {
        assert_eq!(other[i], losses[i], "document {i} saw the tokens of document 3");
    }
}
