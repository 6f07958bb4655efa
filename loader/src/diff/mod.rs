//! What differs between two runs' data, where it starts, and what kind of difference it is.
//!
//! Two [`side::Side`]s (an order over a source, a log, token files) become two sequences of keys with the places they are
//! consumed at ([`layout::Layout`]); [`compare::compare`] finds the first difference, says of what kind it is and
//! counts. Reports are in [`crate::report`].

pub mod amounts;
pub mod classify;
pub mod compare;
pub mod content;
pub mod correlation;
mod decide;
pub mod documents;
pub mod edits;
pub mod keys;
mod law;
pub mod layout;
pub mod lines;
pub mod outcome;
mod places;
pub mod side;
pub mod stats;
pub mod steps;
mod stretch;
mod text_shift;
pub mod tokens;
