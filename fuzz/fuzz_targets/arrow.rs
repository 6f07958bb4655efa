//! Arrow files, stream and file format: refused, or rows that can be read.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ceteris_fuzz::arrow(bytes));
