//! numpy's random generators: the new `Generator` over PCG64 and the legacy `RandomState` over MT19937.

mod bounded;
mod generator;
mod intervals;
mod pcg64;
mod random_state;
mod seed_sequence;

pub use bounded::NumpyInt;
pub use generator::Generator;
pub use pcg64::Pcg64;
pub use random_state::RandomState;
pub use seed_sequence::SeedSequence;
