//! Random generators of other libraries, reproduced bit for bit.
//!
//! A generator is a value without hidden state: cloning one forks its stream, and nothing here reads a clock,
//! an address or a process-wide state.

mod modulo;
pub mod mt19937;
pub mod numpy;
mod swaps;
pub mod torch;
pub mod torch_fill;
pub mod torch_math;

/// Why a generator refuses a request. The real package raises on each of these too, unless stated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RngError {
    /// The seed lies outside what the emulated generator takes.
    #[error("seed {seed} is outside {range}, the seeds {generator} takes")]
    SeedOutOfRange {
        /// The seed as given.
        seed: String,
        /// The range the generator takes.
        range: &'static str,
        /// The generator, by the name its users know.
        generator: &'static str,
    },
    /// Text that should be a non-negative decimal integer is not one.
    #[error("{text:?} is not a non-negative decimal integer, so it cannot seed a numpy SeedSequence")]
    EntropyNotDecimal {
        /// The text as given.
        text: String,
    },
    /// A list of seed words without any.
    #[error("a list of seeds must hold at least one")]
    EmptySeed,
    /// An interval to draw from is empty or does not fit the element type.
    #[error("cannot draw {dtype} from [{low}, {high}): the interval is empty or leaves the range of {dtype}")]
    BadInterval {
        /// Inclusive lower bound.
        low: i128,
        /// Exclusive upper bound.
        high: i128,
        /// Element type by its numpy/torch name.
        dtype: &'static str,
    },
    /// More distinct items were asked for than there are.
    #[error("cannot take {size} items without replacement from {available}")]
    SampleTooLarge {
        /// Items asked for.
        size: u64,
        /// Items there are (with a probability above zero, where probabilities are given).
        available: u64,
    },
    /// Probabilities that numpy refuses.
    #[error("probabilities {problem}")]
    BadProbabilities {
        /// What is wrong with them, with the offending value.
        problem: String,
    },
    /// A permutation of this length does not fit in memory.
    #[error("a permutation of {n} entries needs {bytes} bytes, more than can be allocated")]
    OutOfMemory {
        /// Entries asked for.
        n: u64,
        /// Bytes that takes.
        bytes: u128,
    },
    /// Saved generator state that no generator could have written.
    #[error("generator state is not valid: {problem}")]
    BadState {
        /// What is wrong with it.
        problem: String,
    },
}
