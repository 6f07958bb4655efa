//! `.npy` files, as index caches and as lists of rows: refused, or the values that their header counts.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ceteris_fuzz::npy(bytes));
