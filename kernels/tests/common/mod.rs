//! What the kernel tests share.

#[allow(dead_code)]
pub mod device;

use std::collections::BTreeMap;

use ceteris_kernels::conformance::{Case, relative_error};
use ceteris_kernels::cpu::{self, Float};
use ceteris_kernels::plan::{BufferId, Role};

/// Value of an input by name.
#[allow(dead_code)]
pub fn value<'a>(case: &'a Case, name: &str) -> &'a [f64] {
    let id = case.plan.find(name).unwrap_or_else(|| panic!("no buffer {name}"));
    let found = case.values.iter().find(|(other, _)| *other == id);
    &found.unwrap_or_else(|| panic!("{name} is not an input")).1
}

/// Replaces an input.
#[allow(dead_code)]
pub fn set(case: &mut Case, name: &str, values: Vec<f64>) {
    let id = case.plan.find(name).unwrap();
    let found = case.values.iter_mut().find(|(other, _)| *other == id).unwrap();
    assert_eq!(found.1.len(), values.len());
    found.1 = values;
}

/// Runs a case and names its outputs; columns of one buffer are `name.0`, `name.1`, …
#[allow(dead_code)]
pub fn outputs(case: &Case, float: Float, threads: usize) -> BTreeMap<String, Vec<f64>> {
    let mut executor = cpu::executor(case.plan.clone(), float, threads).unwrap();
    executor.poison();
    let values = case.run(executor.as_mut()).unwrap();
    let count = |id: BufferId| case.outputs.iter().filter(|c| c.buffer == id).count();
    let mut named = BTreeMap::new();
    for (columns, values) in case.outputs.iter().zip(values) {
        let name = &case.plan.buffer(columns.buffer).name;
        let mut key = name.clone();
        if count(columns.buffer) > 1 {
            key = (0..)
                .map(|i| format!("{name}.{i}"))
                .find(|key| !named.contains_key(key))
                .unwrap();
        }
        named.insert(key, values);
    }
    named
}

/// Runs `packed` (documents of these lengths in one sequence) and each document alone (`single` makes an empty case
/// for it) on the same inputs: outputs and gradients of inputs and states must have the same bits, gradients of
/// parameters must agree to 1e-6.
#[allow(dead_code)]
pub fn assert_packed_is_separate(
    packed: &Case,
    lengths: &[usize],
    single: &dyn Fn(usize) -> Case,
    float: Float,
) {
    let round = |case: Case| match float {
        Float::F32 => case.rounded(|x| f64::from(x as f32)),
        Float::F64 => case,
    };
    let packed = round(packed.clone());
    let rows: usize = lengths.iter().sum();
    // Where document d lies in a list of `len` values that belong to rows or to documents.
    let place = |first_extent: usize, len: usize, d: usize| {
        let (start, count, of) = if first_extent == rows {
            (lengths[..d].iter().sum::<usize>(), lengths[d], rows)
        } else {
            assert_eq!(first_extent, lengths.len(), "neither rows nor documents");
            (d, 1, lengths.len())
        };
        start * (len / of)..(start + count) * (len / of)
    };
    let all = outputs(&packed, float, 2);
    let start_of = |name: &str| -> Vec<f64> { value(&packed, name).to_vec() };
    let mut parameter_sums: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for d in 0..lengths.len() {
        let mut alone = single(d);
        let parameter =
            |case: &Case, id: BufferId| matches!(case.plan.buffer(id).role, Role::Parameter | Role::Gradient);
        for i in 0..alone.values.len() {
            let id = alone.values[i].0;
            let name = alone.plan.buffer(id).name.clone();
            let source = value(&packed, &name);
            alone.values[i].1 = if alone.plan.buffer(id).role == Role::Gradient {
                vec![0.0; source.len()]
            } else if parameter(&alone, id) {
                source.to_vec()
            } else {
                let extent = packed.plan.buffer(packed.plan.find(&name).unwrap()).shape[0];
                source[place(extent, source.len(), d)].to_vec()
            };
        }
        for (name, got) in outputs(&alone, float, 1) {
            let want = &all[&name];
            let buffer = name.split('.').next().unwrap();
            let id = packed.plan.find(buffer).unwrap();
            if parameter(&packed, id) {
                let sums = parameter_sums
                    .entry(name.clone())
                    .or_insert_with(|| start_of(buffer));
                sums.iter_mut().zip(&got).for_each(|(sum, x)| *sum += x);
            } else {
                let want = &want[place(packed.plan.buffer(id).shape[0], want.len(), d)];
                let same =
                    got.len() == want.len() && got.iter().zip(want).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(
                    same,
                    "{}: document {d}: {name} has other bits alone than packed",
                    packed.name
                );
            }
        }
    }
    for (name, sum) in parameter_sums {
        let error = relative_error(&all[&name], &sum);
        assert!(error <= 1e-6, "{}: {name} is off by {error:e}", packed.name);
    }
}
