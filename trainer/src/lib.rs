//! Trains gated delta networks so that data order, data seed, weight seed and model move one at a time.

pub mod model;
