//! Made-up tokens for measurements and self-tests.

use ceteris_kernels::conformance::Rng;
use ceteris_kernels::ops::IGNORE_INDEX;

/// `rows` tokens below `vocab`, and for each the next one as its label; the last has none.
pub(super) fn next_token_ids(rng: &mut Rng, rows: usize, vocab: usize) -> (Vec<i32>, Vec<i32>) {
    let tokens: Vec<i32> = (0..rows).map(|_| rng.below(vocab) as i32).collect();
    let mut labels = tokens[1..].to_vec();
    labels.push(IGNORE_INDEX);
    (tokens, labels)
}
