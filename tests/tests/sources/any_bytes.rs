//! The readers of `.idx`, Arrow and `.npy` files against bytes that are nearly right: recorded files, changed at random.
//!
//! Runs for a second a reader; `CETERIS_FUZZ_SECONDS` says otherwise. The same entry points are under `fuzz/` for
//! cargo-fuzz, which looks for new paths through the code instead of trying its luck.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

#[path = "../../../fuzz/src/lib.rs"]
mod readers;

use readers::{arrow, idx, npy};

/// SplitMix64: a stream for each number.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

/// One to eight changes: bits, bytes, words of sizes and offsets, cuts, blocks put elsewhere.
fn change(bytes: &mut Vec<u8>, chance: &mut Chance) {
    const WORDS: [u64; 12] = [
        0,
        1,
        2,
        8,
        255,
        0x7fff_ffff,
        0x8000_0000,
        0xffff_ffff,
        u64::MAX,
        u64::MAX / 2,
        u64::MAX / 8 + 2,
        1 << 40,
    ];
    for _ in 0..=chance.below(8) {
        if bytes.is_empty() {
            return;
        }
        // Half of all changes go to the head, where the sizes are.
        let reach = if chance.next() & 1 == 0 {
            bytes.len().min(96)
        } else {
            bytes.len()
        };
        let at = chance.below(reach);
        match chance.below(6) {
            0 => bytes[at] ^= 1 << chance.below(8),
            1 => bytes[at] = chance.next() as u8,
            2 => {
                let width = [1, 2, 4, 8][chance.below(4)];
                let at = at / width * width;
                let word = WORDS[chance.below(WORDS.len())].wrapping_add(chance.next() % 3);
                for (slot, byte) in bytes[at..].iter_mut().take(width).zip(word.to_le_bytes()) {
                    *slot = byte;
                }
            }
            3 => bytes.truncate(at),
            4 => {
                let end = (at + 1 + chance.below(64)).min(bytes.len());
                let block = bytes[at..end].to_vec();
                let to = chance.below(bytes.len());
                bytes.splice(to..to, block);
            }
            _ => {
                let end = (at + 1 + chance.below(16)).min(bytes.len());
                bytes.drain(at..end);
            }
        }
    }
}

/// Recorded files with this ending of up to 64 KiB, by name.
fn seeds(folder: &Path, ending: &str, found: &mut Vec<Vec<u8>>) {
    let mut paths: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            seeds(&path, ending, found);
        } else if path.extension().is_some_and(|e| e == ending) && path.metadata().unwrap().len() <= 1 << 16 {
            found.push(std::fs::read(path).unwrap());
        }
    }
}

fn hold(reader: fn(&[u8]), folder: &str, ending: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    seeds(&root.join(folder), ending, &mut files);
    assert!(files.len() > 3, "{} files in {folder}", files.len());
    files.iter().for_each(|bytes| reader(bytes));
    let seconds = std::env::var("CETERIS_FUZZ_SECONDS").map_or(1, |s| s.parse().unwrap());
    let (start, mut number) = (Instant::now(), 0u64);
    while start.elapsed() < Duration::from_secs(seconds) {
        let mut chance = Chance(number);
        let mut bytes = files[chance.below(files.len())].clone();
        change(&mut bytes, &mut chance);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| reader(&bytes))) {
            println!("number {number}, {} bytes", bytes.len());
            std::panic::resume_unwind(panic);
        }
        number += 1;
    }
    println!("{ending}: {number} inputs in {seconds} s");
}

#[test]
fn any_bytes_of_an_idx_file_are_refused_or_read() {
    hold(idx, "tests/golden/megatron", "idx");
}

#[test]
fn any_bytes_of_an_arrow_file_are_refused_or_read() {
    hold(arrow, "tests/golden/hf", "arrow");
}

#[test]
fn any_bytes_of_an_npy_file_are_refused_or_read() {
    hold(npy, "fuzz/seeds", "npy");
}
