//! Measures a loader, and the floors its figures stand beside: a plain copy of the same blocks, and plain random reads
//! from a cold disk.
//!
//! The copy floor goes through the same places of the same files in the same order, into as many buffers of the same
//! size, with nothing but `memcpy` in its loop. Files are taken as rows of equal size, so blocks start near rather than
//! at the rows; their number, size and scatter are the rows'.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ceteris_samplers::{Epoch, Order, Place};
use memmap2::Mmap;

use super::error::LoaderError;
use super::loader::Loader;

/// A measured run over blocks of tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Speed {
    /// Micro-steps gone through.
    pub micro_steps: u64,
    /// Tokens.
    pub tokens: u64,
    /// Bytes of tokens.
    pub bytes: u64,
    /// Seconds from the first request to the last batch.
    pub wall_s: f64,
    /// Seconds until the first batch.
    pub first_s: f64,
    /// CPU seconds of the whole process meanwhile.
    pub cpu_s: f64,
    /// Page faults of the whole process meanwhile that read nothing from disk.
    pub page_faults: u64,
    /// Switches of the process's threads off a core meanwhile.
    pub context_switches: u64,
    /// Seconds the consumer waited for batches after the first.
    pub wait_s: f64,
    /// Longest of those waits.
    pub wait_max_s: f64,
    /// Mean number of batches ready when one was asked for.
    pub occupancy: f64,
}

impl Speed {
    /// Tokens a second.
    pub fn tokens_per_s(&self) -> f64 {
        self.tokens as f64 / self.wall_s
    }

    /// 10^9 bytes of tokens a second.
    pub fn gb_per_s(&self) -> f64 {
        self.bytes as f64 / self.wall_s / 1e9
    }

    /// Share of the wall time after the first batch that the consumer waited.
    pub fn stall(&self) -> f64 {
        let after_first = self.wall_s - self.first_s;
        if after_first > 0.0 {
            self.wait_s / after_first
        } else {
            0.0
        }
    }

    /// Cores kept busy.
    pub fn cpus(&self) -> f64 {
        self.cpu_s / self.wall_s
    }
}

/// Goes through a loader with a consumer that is busy elsewhere for `consumer` after each batch, as a trainer is whose
/// device computes, until the loader ends or `limit` has passed.
///
/// # Errors
/// The loader's.
pub fn drain(
    loader: &mut Loader,
    consumer: Duration,
    limit: Duration,
    progress: &mut dyn FnMut(u64),
) -> Result<Speed, LoaderError> {
    let (start, used) = (Instant::now(), Usage::now());
    let mut speed = Speed::default();
    let mut occupancy = 0;
    while start.elapsed() < limit {
        let Some(batch) = loader.next_batch()? else { break };
        let metrics = batch.metrics();
        if speed.micro_steps == 0 {
            speed.first_s = metrics.wait.as_secs_f64();
        } else {
            speed.wait_s += metrics.wait.as_secs_f64();
            speed.wait_max_s = speed.wait_max_s.max(metrics.wait.as_secs_f64());
        }
        speed.micro_steps += 1;
        speed.bytes += metrics.bytes;
        speed.tokens += metrics.bytes / 4;
        occupancy += metrics.occupancy;
        progress(metrics.bytes / 4);
        if !consumer.is_zero() {
            thread::sleep(consumer);
        }
    }
    speed.wall_s = start.elapsed().as_secs_f64();
    Usage::now().since(used, &mut speed);
    speed.occupancy = occupancy as f64 / speed.micro_steps.max(1) as f64;
    Ok(speed)
}

/// What this process has used so far.
#[derive(Clone, Copy, Debug)]
struct Usage {
    cpu_s: f64,
    page_faults: i64,
    context_switches: i64,
}

impl Usage {
    fn now() -> Usage {
        // SAFETY: `rusage` is plain data for which zeros are valid, and outlives the call that fills it.
        let usage = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
            usage
        };
        let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
        Usage {
            cpu_s: seconds(usage.ru_utime) + seconds(usage.ru_stime),
            page_faults: usage.ru_minflt,
            context_switches: usage.ru_nvcsw + usage.ru_nivcsw,
        }
    }

    fn since(self, before: Usage, speed: &mut Speed) {
        let count = |now: i64, before: i64| u64::try_from(now - before).unwrap_or(0);
        speed.cpu_s = self.cpu_s - before.cpu_s;
        speed.page_faults = count(self.page_faults, before.page_faults);
        speed.context_switches = count(self.context_switches, before.context_switches);
    }
}

/// Anonymous memory of this process now, in bytes, without what is free but kept by the allocator.
pub fn anonymous_memory() -> Option<u64> {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: gives unused memory of the heap back to the system; takes no pointer.
    unsafe {
        libc::malloc_trim(0);
    }
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("RssAnon:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
}

/// Where the blocks of an order's first micro-steps lie: (file, offset), micro-step by micro-step.
#[derive(Debug)]
pub struct Blocks {
    files: Vec<PathBuf>,
    /// Entries of one micro-step follow one another.
    at: Vec<(u32, u64)>,
    per_step: usize,
    block: usize,
}

impl Blocks {
    /// Blocks of `block` bytes for the rows of all ranks in the micro-steps that `order`'s first epoch has, up to
    /// `limit` of them.
    ///
    /// # Errors
    /// Files that cannot be looked at, or that are shorter than a block.
    pub fn of(
        files: Vec<PathBuf>,
        order: &dyn Order,
        index: &dyn Epoch,
        block: usize,
        limit: u64,
    ) -> io::Result<Blocks> {
        let mut ends = Vec::with_capacity(files.len());
        let mut total = 0;
        for file in &files {
            let len = std::fs::metadata(file)?.len();
            let room = len.checked_sub(block as u64).ok_or_else(|| {
                io::Error::other(format!("{} is shorter than one row of tokens", file.display()))
            })?;
            total += len;
            ends.push((total, len, room));
        }
        let geometry = order.geometry();
        let per_step = (geometry.samples_per_micro_step()) as usize;
        let micro_steps = index.micro_steps().min(limit);
        let rows = order.num_samples().max(1);
        let mut at = Vec::with_capacity(per_step * micro_steps as usize);
        for micro_step in 0..micro_steps {
            for rank in 0..geometry.world_size {
                for slot in 0..geometry.micro_batch_size {
                    let Some(row) = index.sample(Place {
                        micro_step,
                        rank,
                        slot,
                    }) else {
                        continue;
                    };
                    let byte = (u128::from(row) * u128::from(total) / u128::from(rows)) as u64;
                    let file = ends.partition_point(|&(end, ..)| end <= byte).min(ends.len() - 1);
                    let (end, len, room) = ends[file];
                    at.push((file as u32, (byte + len - end).min(room) & !3));
                }
            }
        }
        Ok(Blocks {
            files,
            at,
            per_step,
            block,
        })
    }

    fn speed(&self, rows: usize, start: Instant, before: Usage) -> Speed {
        let bytes = rows as u64 * self.block as u64;
        let mut speed = Speed {
            micro_steps: rows.div_ceil(self.per_step.max(1)) as u64,
            tokens: bytes / 4,
            bytes,
            wall_s: start.elapsed().as_secs_f64(),
            ..Speed::default()
        };
        Usage::now().since(before, &mut speed);
        speed
    }

    /// Copies all blocks `passes` times out of maps of the files with `threads` threads into `buffers` buffers of a
    /// micro-step each; the best pass. The first pass also maps the pages.
    ///
    /// # Errors
    /// Files that cannot be mapped.
    pub fn copy(&self, threads: usize, buffers: usize, passes: u32) -> io::Result<Speed> {
        let maps = self
            .files
            .iter()
            .map(|path| {
                let file = File::open(path)?;
                // SAFETY: the map is read only while this function runs; a file that is cut short meanwhile ends the
                // measurement with SIGBUS, as any plain copy would.
                unsafe { Mmap::map(&file) }
            })
            .collect::<io::Result<Vec<Mmap>>>()?;
        let threads = threads.max(1);
        let step_bytes = self.per_step * self.block;
        let per_thread = buffers.div_ceil(threads).max(1);
        let mut rings: Vec<Vec<u8>> = (0..threads).map(|_| vec![0; per_thread * step_bytes]).collect();
        let mut best: Option<Speed> = None;
        for _ in 0..passes {
            let (start, used) = (Instant::now(), Usage::now());
            thread::scope(|scope| {
                for (worker, ring) in rings.iter_mut().enumerate() {
                    let maps = &maps;
                    scope.spawn(move || {
                        let steps = self.at.chunks(self.per_step).skip(worker).step_by(threads);
                        for (turn, step) in steps.enumerate() {
                            let at = turn % per_thread * step_bytes;
                            let buffer = &mut ring[at..at + step_bytes];
                            for (to, &(file, from)) in buffer.chunks_exact_mut(self.block).zip(step) {
                                let from = from as usize;
                                to.copy_from_slice(&maps[file as usize][from..from + self.block]);
                            }
                            std::hint::black_box(&*buffer);
                        }
                    });
                }
            });
            let speed = self.speed(self.at.len(), start, used);
            if best.is_none_or(|best| speed.wall_s < best.wall_s) {
                best = Some(speed);
            }
        }
        Ok(best.unwrap_or_default())
    }

    /// Reads the blocks from the files with plain `pread` in `threads` threads, for at most `limit`; what a cold disk
    /// gives at this block size.
    ///
    /// # Errors
    /// Failed reads.
    pub fn read(&self, threads: usize, limit: Duration) -> io::Result<Speed> {
        let files = self
            .files
            .iter()
            .map(File::open)
            .collect::<io::Result<Vec<File>>>()?;
        for file in &files {
            advise(file, libc::POSIX_FADV_RANDOM)?;
        }
        let next = AtomicU64::new(0);
        let (start, used) = (Instant::now(), Usage::now());
        let done = thread::scope(|scope| {
            let readers: Vec<_> = (0..threads.max(1))
                .map(|_| {
                    scope.spawn(|| -> io::Result<usize> {
                        let mut buffer = vec![0; self.block];
                        let mut done = 0;
                        while start.elapsed() < limit {
                            let i = next.fetch_add(1, Ordering::Relaxed) as usize;
                            let Some(&(file, at)) = self.at.get(i) else { break };
                            files[file as usize].read_exact_at(&mut buffer, at)?;
                            done += 1;
                        }
                        Ok(done)
                    })
                })
                .collect();
            let mut all = 0;
            for reader in readers {
                all += reader
                    .join()
                    .map_err(|_| io::Error::other("a reading thread panicked"))??;
            }
            io::Result::Ok(all)
        })?;
        Ok(self.speed(done, start, used))
    }
}

/// Asks the system to forget the cached pages of files, so that reading them is cold. Pages somebody maps stay.
///
/// # Errors
/// Files that cannot be opened, written back or advised on.
pub fn drop_cached_pages(files: &[PathBuf]) -> io::Result<()> {
    for path in files {
        let file = File::open(path)?;
        // Pages not yet written cannot be dropped.
        file.sync_all()?;
        advise(&file, libc::POSIX_FADV_DONTNEED)?;
    }
    Ok(())
}

fn advise(file: &File, advice: i32) -> io::Result<()> {
    // SAFETY: the descriptor is open for the call; the advice touches no memory of ours.
    match unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, advice) } {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

/// Share of the files' pages that lie in the page cache now.
///
/// # Errors
/// Files that cannot be mapped.
pub fn cached_share(files: &[PathBuf]) -> io::Result<f64> {
    const PAGE: usize = 4096;
    let (mut cached, mut all) = (0usize, 0usize);
    for path in files {
        let file = File::open(path)?;
        // SAFETY: only the page table is looked at, no byte of the map.
        let map = unsafe { Mmap::map(&file) }?;
        let mut pages = vec![0u8; map.len().div_ceil(PAGE)];
        // SAFETY: the map covers `map.len()` bytes from its address, and `pages` has a byte for each of its pages.
        let code = unsafe { libc::mincore(map.as_ptr().cast_mut().cast(), map.len(), pages.as_mut_ptr()) };
        if code != 0 {
            return Err(io::Error::last_os_error());
        }
        cached += pages.iter().filter(|&&page| page & 1 == 1).count();
        all += pages.len();
    }
    Ok(if all == 0 { 0.0 } else { cached as f64 / all as f64 })
}
