//! Fingerprints, definition 1: 128-bit digests of the token ids that a sample, a step or a run consumed.
//!
//! * **sample**: XXH3-128, seed 0, over the sample's length as little-endian u64 and then its tokens as
//!   little-endian u32, as stored in the sample: before labels, shift, padding or collation. A row of int64 and
//!   the same row of uint16 have the same digest.
//! * **micro-batch** and **step**: XXH3-128 over the digests of the samples consumed, 16 bytes each, in deal
//!   position order `k` and not rank by rank. The same global batch therefore has the same digest for every
//!   `world_size` at constant global batch size.
//! * **run**: XXH3-128 over the digests of its steps, in order, 16 bytes each. It can be recomputed from a log of
//!   step digests, and two runs that group the same samples into other steps differ.
//! * **set**: wrapping sum, as u128, of the sample digests: free of order, yet (unlike XOR) it sees duplicates.
//!
//! The 16 bytes of a digest are its canonical big-endian form, the one that Python's
//! `xxhash.xxh3_128(data).digest()` returns, and its text is 32 lower-case hex digits, `.hexdigest()`:
//!
//! ```python
//! def sample(tokens):                      # tokens: a list of ints
//!     return xxhash.xxh3_128(struct.pack("<Q%dI" % len(tokens), len(tokens), *tokens)).digest()
//! def step(samples):                       # digests in deal position order; a run: the digests of its steps
//!     return xxhash.xxh3_128(b"".join(samples)).digest()
//! def sample_set(samples):
//!     return "%032x" % (sum(int.from_bytes(d, "big") for d in samples) % 2**128)
//! ```
//!
//! Vectors, made by that program with xxhash 4.1.0 (`-` joins digests in the order written):
//!
//! | what | digest |
//! |---|---|
//! | a = sample [] | `2c0a8a99dc147d5445c3b49d035665b2` |
//! | b = sample [1, 2, 3] | `5b278b94530040cf8663106bc51f68c1` |
//! | c = sample [0, 1, …, 127] | `813f09e3f46ecba0da005f96da937bef` |
//! | d = sample of 300 times 2147483647 | `5fe3e5a5ad91702f5dd9fa0889293583` |
//! | step b-c | `4ad1d0e15857b98b17ece22848709115` |
//! | step c-b | `7ce09baa6a20d0f81f0b3b56b0f240d7` |
//! | step a-d-a | `fae4c4cae273bf2a8ddaec815587ed9f` |
//! | step of no sample | `99aa06d3014798d86001c324468d497f` |
//! | run of the steps b-c, a-d-a | `10ce04ae77044852d66442e6a49a5183` |
//! | set {b, c} | `dc669578476f0c70606370029fb2e4b0` |
//! | set {d, d, d} | `1fabb0f108b4508e198dee199b7ba089` |

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use xxhash_rust::xxh3::Xxh3Default;

/// The definition this module computes; written beside fingerprints wherever they are stored.
pub const DEFINITION: u32 = 1;

/// A 128-bit digest. Text and bytes are big-endian, as in Python's `xxhash`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Fingerprint(pub u128);

impl Fingerprint {
    /// Digest of one sample from its token ids (never negative; a source refuses those).
    pub fn of_sample(tokens: &[i32]) -> Self {
        let mut hasher = Xxh3Default::new();
        hasher.update(&(tokens.len() as u64).to_le_bytes());
        let mut buffer = [0u8; 4096];
        for chunk in tokens.chunks(buffer.len() / 4) {
            let bytes = &mut buffer[..chunk.len() * 4];
            for (out, token) in bytes.chunks_exact_mut(4).zip(chunk) {
                out.copy_from_slice(&token.to_le_bytes());
            }
            hasher.update(bytes);
        }
        Self(hasher.digest128())
    }

    /// Digest over other digests, in the order given: a micro-batch or step over its samples in deal position
    /// order, a run over its steps.
    pub fn combine(parts: impl IntoIterator<Item = Self>) -> Self {
        let mut combiner = Combiner::new();
        for part in parts {
            combiner.push(part);
        }
        combiner.finish()
    }

    /// The 16 canonical (big-endian) bytes.
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text is not a fingerprint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a fingerprint: expected 32 hexadecimal digits")]
pub struct ParseFingerprintError(String);

impl FromStr for Fingerprint {
    type Err = ParseFingerprintError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let valid = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
        match u128::from_str_radix(text, 16) {
            Ok(value) if valid => Ok(Self(value)),
            _ => Err(ParseFingerprintError(text.chars().take(64).collect())),
        }
    }
}

impl Serialize for Fingerprint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Fingerprint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Digest over digests, fed one by one: constant memory for runs of any length.
#[derive(Clone, Default)]
pub struct Combiner(Xxh3Default);

impl Combiner {
    /// An empty combination.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends one digest.
    pub fn push(&mut self, part: Fingerprint) {
        self.0.update(&part.to_bytes());
    }

    /// The digest of everything pushed so far.
    pub fn finish(&self) -> Fingerprint {
        Fingerprint(self.0.digest128())
    }
}

impl fmt::Debug for Combiner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Combiner({})", self.finish())
    }
}

/// Order-free digest of a multiset of samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetDigest(u128);

impl SetDigest {
    /// Adds one sample.
    pub fn add(&mut self, sample: Fingerprint) {
        self.0 = self.0.wrapping_add(sample.0);
    }

    /// The digest of the samples added so far; of none, zero.
    pub fn finish(self) -> Fingerprint {
        Fingerprint(self.0)
    }
}

/// Collects sample digests, in whatever order places are visited within a step, into step, run and set digests.
#[derive(Debug, Default)]
pub struct RunFingerprint {
    current: Option<(u64, u64)>,
    samples_of_step: Vec<(u64, Fingerprint)>,
    run: Combiner,
    run_set: SetDigest,
    steps: u64,
    samples: u64,
}

/// Digests of one finished step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepFingerprint {
    /// Epoch of the step.
    pub epoch: u64,
    /// Optimizer step within the epoch.
    pub step: u64,
    /// Digest over its samples in deal position order.
    pub fingerprint: Fingerprint,
    /// Order-free digest of its samples.
    pub set: Fingerprint,
    /// Samples it consumed.
    pub samples: u64,
}

impl RunFingerprint {
    /// Nothing consumed yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the sample at deal position `deal_index` of `(epoch, step)`. Steps come in order; within a step the
    /// samples may come in any order. Returns the step before when this sample opens a new one.
    pub fn push(
        &mut self,
        epoch: u64,
        step: u64,
        deal_index: u64,
        sample: Fingerprint,
    ) -> Option<StepFingerprint> {
        let closed = if self.current == Some((epoch, step)) {
            None
        } else {
            self.close_step()
        };
        self.current = Some((epoch, step));
        self.samples_of_step.push((deal_index, sample));
        closed
    }

    /// Closes the step in progress, if any.
    pub fn close_step(&mut self) -> Option<StepFingerprint> {
        let (epoch, step) = self.current.take()?;
        self.samples_of_step.sort_unstable_by_key(|&(k, _)| k);
        let mut set = SetDigest::default();
        for &(_, sample) in &self.samples_of_step {
            set.add(sample);
            self.run_set.add(sample);
        }
        let fingerprint = Fingerprint::combine(self.samples_of_step.iter().map(|&(_, sample)| sample));
        let samples = self.samples_of_step.len() as u64;
        self.samples_of_step.clear();
        self.run.push(fingerprint);
        self.steps += 1;
        self.samples += samples;
        Some(StepFingerprint {
            epoch,
            step,
            fingerprint,
            set: set.finish(),
            samples,
        })
    }

    /// Digest of the run: over its closed steps.
    pub fn fingerprint(&self) -> Fingerprint {
        self.run.finish()
    }

    /// Order-free digest of every sample of the closed steps.
    pub fn set(&self) -> Fingerprint {
        self.run_set.finish()
    }

    /// Closed steps.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Samples of the closed steps.
    pub fn samples(&self) -> u64 {
        self.samples
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> [Fingerprint; 4] {
        let c: Vec<i32> = (0..128).collect();
        [
            Fingerprint::of_sample(&[]),
            Fingerprint::of_sample(&[1, 2, 3]),
            Fingerprint::of_sample(&c),
            Fingerprint::of_sample(&[i32::MAX; 300]),
        ]
    }

    /// The vectors of the file head, made with Python's `xxhash`.
    #[test]
    fn equals_the_python_vectors() {
        let [a, b, c, d] = samples();
        let texts = [a, b, c, d].map(|f| f.to_string());
        assert_eq!(
            texts,
            [
                "2c0a8a99dc147d5445c3b49d035665b2",
                "5b278b94530040cf8663106bc51f68c1",
                "813f09e3f46ecba0da005f96da937bef",
                "5fe3e5a5ad91702f5dd9fa0889293583",
            ]
        );
        let bc = Fingerprint::combine([b, c]);
        let ada = Fingerprint::combine([a, d, a]);
        assert_eq!(bc.to_string(), "4ad1d0e15857b98b17ece22848709115");
        assert_eq!(
            Fingerprint::combine([c, b]).to_string(),
            "7ce09baa6a20d0f81f0b3b56b0f240d7"
        );
        assert_eq!(ada.to_string(), "fae4c4cae273bf2a8ddaec815587ed9f");
        assert_eq!(
            Fingerprint::combine([]).to_string(),
            "99aa06d3014798d86001c324468d497f"
        );
        assert_eq!(
            Fingerprint::combine([bc, ada]).to_string(),
            "10ce04ae77044852d66442e6a49a5183"
        );
        let mut set = SetDigest::default();
        set.add(b);
        set.add(c);
        assert_eq!(set.finish().to_string(), "dc669578476f0c70606370029fb2e4b0");
        let mut thrice = SetDigest::default();
        for _ in 0..3 {
            thrice.add(d);
        }
        assert_eq!(thrice.finish().to_string(), "1fabb0f108b4508e198dee199b7ba089");
    }

    /// Rows longer than the internal buffer are hashed as one stream.
    #[test]
    fn chunked_hashing_equals_one_pass() {
        for len in [1023usize, 1024, 1025, 2048, 5000] {
            let tokens: Vec<i32> = (0..len).map(|i| (i * 7919 % 50_000) as i32).collect();
            let mut bytes = (len as u64).to_le_bytes().to_vec();
            bytes.extend(tokens.iter().flat_map(|t| t.to_le_bytes()));
            assert_eq!(
                Fingerprint::of_sample(&tokens).0,
                xxhash_rust::xxh3::xxh3_128(&bytes),
                "{len}"
            );
        }
    }

    /// Ranks visited one after the other give the digest of the global batch in deal order.
    #[test]
    fn a_step_is_hashed_in_deal_order() {
        let [a, b, c, d] = samples();
        let mut run = RunFingerprint::new();
        for (k, sample) in [(0, a), (2, c), (1, b), (3, d)] {
            assert_eq!(run.push(0, 0, k, sample), None);
        }
        let first = run.push(0, 1, 4, b).expect("a new step closes the one before");
        assert_eq!(first.fingerprint, Fingerprint::combine([a, b, c, d]));
        assert_eq!((first.epoch, first.step, first.samples), (0, 0, 4));
        let second = run.close_step().expect("a step is open");
        assert_eq!(run.close_step(), None);
        assert_eq!(
            run.fingerprint(),
            Fingerprint::combine([first.fingerprint, second.fingerprint])
        );
        assert_eq!((run.steps(), run.samples()), (2, 5));
        assert_eq!(
            run.set().0,
            [a, b, c, d, b].iter().fold(0u128, |sum, f| sum.wrapping_add(f.0))
        );
    }

    #[test]
    fn text_round_trips_and_other_text_is_refused() {
        let [_, b, ..] = samples();
        assert_eq!(b.to_string().parse(), Ok(b));
        assert_eq!(Fingerprint(5).to_string().parse(), Ok(Fingerprint(5)));
        for bad in [
            "",
            "5b27",
            "+b278b94530040cf8663106bc51f68c1",
            "5b278b94530040cf8663106bc51f68c1a",
            "zz",
        ] {
            assert!(bad.parse::<Fingerprint>().is_err(), "{bad}");
        }
        let json = serde_json::to_string(&b).expect("a string");
        assert_eq!(json, "\"5b278b94530040cf8663106bc51f68c1\"");
        assert_eq!(serde_json::from_str::<Fingerprint>(&json).expect("round trip"), b);
    }
}
