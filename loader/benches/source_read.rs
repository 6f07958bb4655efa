//! Opening a cache and reading its rows, beside a plain copy of the same blocks out of the same files.
//!
//!     python tests/bench/make_cache.py /tmp/ceteris-cache --gigabytes 2
//!     CETERIS_BENCH_CACHE=/tmp/ceteris-cache cargo bench -p ceteris-loader --bench source_read
//!
//! One thread, the files in the page cache. Prints the best of three passes in GB/s and million tokens/s.

use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ceteris_loader::source::{HfSource, Source, SourceOptions};
use memmap2::Mmap;

/// Rows of a batch, and batches of a ring: what the loader writes to.
const BATCH: usize = 32;
const RING: usize = 16;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Some(dir) = std::env::var_os("CETERIS_BENCH_CACHE").map(PathBuf::from) else {
        println!("source_read: set CETERIS_BENCH_CACHE to a folder that tests/bench/make_cache.py wrote");
        return Ok(());
    };
    let options = SourceOptions::default();
    let opened = best(|| {
        let start = Instant::now();
        HfSource::open(&dir, &options).map(|_| start.elapsed())
    })?;
    let source = HfSource::open(&dir, &options)?;
    let n = source.num_samples();
    let len = source.sample_length().ok_or("rows of one length are needed")?;
    let tokens = n as f64 * len as f64;
    println!(
        "open: {:.2} ms for {n} rows in {} batches",
        opened.as_secs_f64() * 1e3,
        source.record_batches()
    );
    // An odd stride through all rows: no locality beyond a row.
    let stride = (n / 2 + 12_345) | 1;
    let maps = source
        .files()
        .iter()
        .map(File::open)
        .map(|f| {
            // SAFETY: a benchmark over files nobody changes.
            f.and_then(|f| unsafe { Mmap::map(&f) })
        })
        .collect::<Result<Vec<_>, _>>()?;
    let mut ring = vec![0i32; RING * BATCH * len];
    for (name, step) in [("sequential", 1), ("shuffled", stride)] {
        let copied = best(|| {
            let start = Instant::now();
            let per = n.div_ceil(maps.len() as u64);
            for i in 0..n {
                let row = i.wrapping_mul(step) % n;
                let map = &maps[(row / per) as usize];
                let at = ((row % per) as usize * len * 4).min(map.len() - len * 4);
                let slot = (i as usize % (RING * BATCH)) * len;
                let to = ring[slot..slot + len].as_mut_ptr().cast::<u8>();
                // SAFETY: both ranges were just bounded, and the ring is not the map.
                unsafe { std::ptr::copy_nonoverlapping(map.as_ptr().add(at), to, len * 4) };
            }
            Ok::<_, std::io::Error>(start.elapsed())
        })?;
        let read = best(|| {
            let start = Instant::now();
            for i in 0..n {
                let slot = (i as usize % (RING * BATCH)) * len;
                source.read(i.wrapping_mul(step) % n, &mut ring[slot..slot + len])?;
            }
            Ok::<_, ceteris_loader::source::SourceError>(start.elapsed())
        })?;
        let rate = |t: Duration| {
            (
                tokens * 4.0 / t.as_secs_f64() / 1e9,
                tokens / t.as_secs_f64() / 1e6,
            )
        };
        let ((copy_gb, copy_m), (read_gb, read_m)) = (rate(copied), rate(read));
        println!(
            "{name}: copy {copy_gb:.2} GB/s ({copy_m:.0} M tokens/s), read {read_gb:.2} GB/s ({read_m:.0} M tokens/s), {:.2} of the copy",
            read_gb / copy_gb
        );
    }
    Ok(())
}

/// The best of three passes.
fn best<E>(mut pass: impl FnMut() -> Result<Duration, E>) -> Result<Duration, E> {
    let mut best = Duration::MAX;
    for _ in 0..3 {
        best = best.min(pass()?);
    }
    Ok(best)
}
