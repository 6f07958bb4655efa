//! Megatron's `.idx`: refused with an error, or sequences that can be read, indexed and copied.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ceteris_fuzz::idx(bytes));
