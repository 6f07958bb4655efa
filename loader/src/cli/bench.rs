//! `loader bench`: how fast an order comes off this machine, beside what the machine allows.
//!
//! Warm: the order, the same rows in sequence, and plain copies of the same blocks in both, each several times in one run; the
//! best pass of each counts. The plain copies say what the machine gives for either: how much slower a plain copy is in the
//! order than in sequence is the memory's doing, not the loader's. With `--consumer-ms`, a consumer that is busy that long after each batch, and how long it waited.
//! Cold (`--cold`): one pass after the files' pages were dropped, beside plain random reads of the same blocks.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ceteris_samplers::spec::OrderInput;
use ceteris_samplers::{Geometry, Order, OrderSpec};
use clap::{Args, ValueEnum};

use super::data_args::{DataArgs, DataChoice, OpenedData};
use super::failure::{Failure, OrFix};
use super::header::Sheet;
use super::order_args::OrderArgs;
use super::output::Output as Stdout;
use super::progress::{Progress, rate};
use super::{CONFIG_HELP, read_config};
use crate::pipeline::measure::{self, Blocks, Speed};
use crate::pipeline::{DEFAULT_PREFETCH, DEFAULT_WORKERS, Loader, LoaderOptions, StopSignal};
use crate::source::Source;

/// Flags of `loader bench`.
#[derive(Args, Debug)]
pub struct BenchArgs {
    #[command(flatten)]
    order: OrderArgs,
    #[command(flatten)]
    data: DataArgs,
    /// Threads that assemble batches (default 8).
    #[arg(long, value_name = "N", help_heading = "Speed")]
    workers: Option<usize>,
    /// Batches assembled ahead (default 16).
    #[arg(long, value_name = "N", help_heading = "Speed")]
    prefetch: Option<usize>,
    /// Micro-steps of a pass (default: one epoch).
    #[arg(long, value_name = "N", help_heading = "Measurement")]
    micro_steps: Option<u64>,
    /// Longest time of a pass.
    #[arg(long, value_name = "S", default_value_t = 30.0, help_heading = "Measurement")]
    seconds: f64,
    /// Passes of each measurement; the best counts.
    #[arg(long, value_name = "N", default_value_t = 3, help_heading = "Measurement")]
    repeat: u32,
    /// Also measure a consumer that is busy this many milliseconds after each batch, and how long it waits for the next.
    #[arg(long, value_name = "MS", help_heading = "Measurement")]
    consumer_ms: Option<f64>,
    /// Measure reading from disk instead: drop the files' pages from memory first. One pass.
    #[arg(long, help_heading = "Measurement")]
    cold: bool,
    /// text or json.
    #[arg(long, value_name = "FORMAT", default_value = "text", help_heading = "Output")]
    format: BenchFormat,
    /// No progress on stderr.
    #[arg(long, short, help_heading = "Output")]
    quiet: bool,
    #[arg(long, value_name = "FILE.yaml", help = CONFIG_HELP)]
    config: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum BenchFormat {
    Text,
    Json,
}

/// What all measurements of a run share.
struct Bench<'a> {
    args: &'a BenchArgs,
    files: Vec<PathBuf>,
    seq_length: usize,
    options: LoaderOptions,
    limit: Duration,
    micro_steps: u64,
}

/// Runs the command.
///
/// # Errors
/// What to tell the user.
pub fn run(args: &BenchArgs, out: &mut Stdout) -> Result<(), Failure> {
    let mut config = read_config(args.config.as_deref())?;
    let choice = args.order.resolve(&mut config)?;
    let data = args.data.resolve(&mut config)?;
    let (workers, prefetch) = (
        config
            .choose("run", "workers", args.workers)?
            .unwrap_or(DEFAULT_WORKERS),
        config
            .choose("run", "prefetch", args.prefetch)?
            .unwrap_or(DEFAULT_PREFETCH),
    );
    let limit = Duration::try_from_secs_f64(args.seconds)
        .ok()
        .filter(|limit| !limit.is_zero())
        .ok_or_else(|| Failure::new(format!("--seconds {} is no time a pass can take", args.seconds)))?;
    if args.repeat == 0 || args.micro_steps == Some(0) {
        return Err(Failure::new("--repeat and --micro-steps must be at least 1"));
    }
    let OpenedData {
        source,
        sheet: mut report,
        seq_length,
        megatron,
        ..
    } = open(&data, &choice.spec, args.quiet)?;
    let seq_length = seq_length.ok_or_else(|| {
        Failure::new("rows differ in length").fix("give --seq-length T and --on-ragged pad or drop")
    })?;
    let before = measure::anonymous_memory();
    let order = choice.build(source.num_samples(), megatron)?;
    let index = order.epoch(0)?;
    let order_bytes = before
        .zip(measure::anonymous_memory())
        .map(|(before, now)| now.saturating_sub(before));
    let micro_steps = args.micro_steps.unwrap_or(u64::MAX).min(index.micro_steps());
    let bench = Bench {
        args,
        files: source.files(),
        seq_length,
        options: LoaderOptions {
            workers,
            prefetch,
            max_micro_steps: Some(micro_steps),
            stop: Some(StopSignal::install()?),
            ..LoaderOptions::new(seq_length)
        },
        limit,
        micro_steps,
    };
    report.line("order", order.spec().to_string());
    report.entry("order", serde_json::to_value(order.spec())?);
    describe_run(
        &mut report,
        &bench,
        order.geometry(),
        order_bytes,
        source.num_samples(),
    );
    let blocks = Blocks::of(bench.files.clone(), &*order, &*index, seq_length * 4, micro_steps)?;
    drop(index);
    if args.cold {
        bench.cold(&mut report, source, &data, &order, &blocks)?;
    } else {
        bench.warm(&mut report, &source, &order, &blocks)?;
    }
    match args.format {
        BenchFormat::Text => out.write_all(report.text().as_bytes())?,
        BenchFormat::Json => writeln!(out, "{}", report.json())?,
    }
    Ok(out.flush()?)
}

fn open(data: &DataChoice, order: &OrderSpec, quiet: bool) -> Result<OpenedData, Failure> {
    data.open(order, quiet)
}

fn describe_run(
    report: &mut Sheet,
    bench: &Bench,
    geometry: Geometry,
    order_bytes: Option<u64>,
    samples: u64,
) {
    let Geometry {
        world_size,
        micro_batch_size,
        ..
    } = geometry;
    let (workers, prefetch) = (bench.options.workers, bench.options.prefetch);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    report.line(
        "run",
        format!(
            "{world_size} rank(s) × {micro_batch_size} rows × {} tokens, {workers} workers, {prefetch} ahead, {cores} \
             cores, {} micro-steps a pass",
            bench.seq_length, bench.micro_steps
        ),
    );
    report.entry("world_size", world_size);
    report.entry("micro_batch_size", micro_batch_size);
    report.entry("seq_length", bench.seq_length);
    report.entry("workers", workers);
    report.entry("prefetch", prefetch);
    report.entry("cores", cores);
    if let Some(bytes) = order_bytes {
        let per_sample = bytes as f64 / samples.max(1) as f64;
        report.line(
            "order memory",
            format!("{per_sample:.2} bytes a sample for one epoch"),
        );
        report.entry("order_bytes_per_sample", per_sample);
    }
}

/// One line of the report and its JSON object.
fn add(report: &mut Sheet, label: &'static str, key: &str, speed: &Speed, more: String) {
    let line = format!(
        "{}, {:.2} GB/s, {:.2} cores{more}",
        rate(speed.tokens_per_s()),
        speed.gb_per_s(),
        speed.cpus()
    );
    report.line(label, line);
    report.entry(
        key,
        serde_json::json!({
            "micro_steps": speed.micro_steps,
            "tokens": speed.tokens,
            "wall_s": speed.wall_s,
            "first_batch_s": speed.first_s,
            "tokens_per_s": speed.tokens_per_s(),
            "gb_per_s": speed.gb_per_s(),
            "cpu_s": speed.cpu_s,
            "page_faults": speed.page_faults,
            "context_switches": speed.context_switches,
            "wait_s": speed.wait_s,
            "wait_max_s": speed.wait_max_s,
            "stall": speed.stall(),
            "ring_occupancy": speed.occupancy,
        }),
    );
}

fn best(passes: &[Speed]) -> Speed {
    passes
        .iter()
        .copied()
        .max_by(|a, b| a.gb_per_s().total_cmp(&b.gb_per_s()))
        .unwrap_or_default()
}

impl Bench<'_> {
    fn pass(
        &self,
        what: &'static str,
        source: &Arc<dyn Source>,
        order: &Arc<dyn Order>,
        consumer: Duration,
        micro_steps: u64,
    ) -> Result<Speed, Failure> {
        let per_step = order.geometry().samples_per_micro_step() * self.seq_length as u64;
        let progress = Progress::tokens(what, micro_steps.saturating_mul(per_step), self.args.quiet);
        let options = LoaderOptions {
            max_micro_steps: Some(micro_steps),
            ..self.options.clone()
        };
        let mut loader = Loader::new(Arc::clone(source), Arc::clone(order), options)?;
        let mut unreported = 0;
        let speed = measure::drain(&mut loader, consumer, self.limit, &mut |tokens| {
            // A bar is for eyes: it must not cost the loop a lock for each batch.
            unreported += tokens;
            if unreported > 1 << 22 {
                progress.add(std::mem::take(&mut unreported));
            }
        });
        progress.finish();
        Ok(speed?)
    }

    fn warm(
        &self,
        report: &mut Sheet,
        source: &Arc<dyn Source>,
        order: &Arc<dyn Order>,
        blocks: &Blocks,
    ) -> Result<(), Failure> {
        let sequential: OrderSpec = OrderSpec::from_options("sequential", [])?;
        let sequential = sequential.build(&OrderInput::new(source.num_samples(), order.geometry()))?;
        let (mut shuffled, mut in_sequence) = (Vec::new(), Vec::new());
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut threads = vec![1, cores.min(self.options.workers.max(1))];
        threads.dedup();
        let index = sequential.epoch(0)?;
        let sequential_blocks = Blocks::of(
            self.files.clone(),
            &*sequential,
            &*index,
            self.seq_length * 4,
            self.micro_steps,
        )?;
        drop(index);
        let mut copies = vec![(Vec::new(), Vec::new()); threads.len()];
        // The first pass of each maps the pages; taking turns spreads what else the machine does over all of them.
        for _ in 0..self.args.repeat {
            shuffled.push(self.pass("the order", source, order, Duration::ZERO, self.micro_steps)?);
            in_sequence.push(self.pass(
                "in sequence",
                source,
                &sequential,
                Duration::ZERO,
                self.micro_steps,
            )?);
            for (threads, (in_order, in_sequence)) in threads.iter().zip(&mut copies) {
                in_order.push(blocks.copy(*threads, self.options.prefetch + 1, 2)?);
                in_sequence.push(sequential_blocks.copy(*threads, self.options.prefetch + 1, 2)?);
            }
        }
        let (copies, sequential_copies): (Vec<Speed>, Vec<Speed>) = copies
            .iter()
            .map(|(in_order, in_sequence)| (best(in_order), best(in_sequence)))
            .unzip();
        let (floor, first) = (best(&copies), shuffled.first().copied().unwrap_or_default());
        let sequential_floor = best(&sequential_copies);
        let (shuffled, in_sequence) = (best(&shuffled), best(&in_sequence));
        let share = |speed: &Speed, copy: &Speed| speed.gb_per_s() / copy.gb_per_s();
        let of_copy =
            |speed: &Speed, copy: &Speed| format!(", {:.0} % of a plain copy", 100.0 * share(speed, copy));
        let more = format!(
            "{}; the first pass {}",
            of_copy(&shuffled, &floor),
            rate(first.tokens_per_s())
        );
        add(report, "the order", "shuffled", &shuffled, more);
        add(
            report,
            "in sequence",
            "sequential",
            &in_sequence,
            of_copy(&in_sequence, &sequential_floor),
        );
        let kinds = [
            ("memcpy", "in the order", &copies),
            ("memcpy_sequential", "in sequence", &sequential_copies),
        ];
        for (key, how, copies) in kinds {
            for (threads, copy) in threads.iter().zip(copies) {
                let more = format!(", {threads} thread(s), the same blocks {how}");
                add(report, "plain copy", &format!("{key}_{threads}"), copy, more);
            }
        }
        let memory = share(&floor, &sequential_floor);
        report.line(
            "ratios",
            format!(
                "{:.2} of a plain copy, {:.2} of in sequence; a plain copy in the order is {memory:.2} of one in sequence",
                share(&shuffled, &floor),
                share(&shuffled, &in_sequence)
            ),
        );
        report.entry("fraction_of_memcpy", share(&shuffled, &floor));
        report.entry("shuffled_over_sequential", share(&shuffled, &in_sequence));
        report.entry("memcpy_shuffled_over_sequential", memory);
        if let Some(ms) = self.args.consumer_ms {
            let consumer = Duration::try_from_secs_f64(ms / 1e3)
                .map_err(|_| Failure::new(format!("--consumer-ms {ms} is no time")))?;
            let micro_steps = self.args.micro_steps.unwrap_or(self.micro_steps);
            let speed = self.pass("consuming", source, order, consumer, micro_steps)?;
            let more = format!(
                "; waited {:.3} % of the time, {:.2} ms at most, {:.1} of {} batches ready",
                100.0 * speed.stall(),
                1e3 * speed.wait_max_s,
                speed.occupancy,
                self.options.prefetch
            );
            add(report, "consumer", "consumer", &speed, more);
            report.entry("consumer_ms", ms);
            report.entry("stall", speed.stall());
        }
        Ok(())
    }

    fn cold(
        &self,
        report: &mut Sheet,
        source: Arc<dyn Source>,
        data: &DataChoice,
        order: &Arc<dyn Order>,
        blocks: &Blocks,
    ) -> Result<(), Failure> {
        // Mapped pages cannot be dropped: the dataset is closed and opened anew around each drop.
        drop(source);
        measure::drop_cached_pages(&self.files)?;
        let left = measure::cached_share(&self.files)?;
        if left > 0.05 {
            return Err(Failure::new(format!(
                "{:.0} % of the files stay in memory: they cannot be read cold",
                100.0 * left
            )))
            .or_fix("end other processes that have the dataset open");
        }
        let raw = blocks.read(self.options.workers.max(8), self.limit)?;
        measure::drop_cached_pages(&self.files)?;
        let OpenedData { source, .. } = open(data, order.spec(), true)?;
        let before = measure::cached_share(&self.files)?;
        let speed = self.pass("cold", &source, order, Duration::ZERO, self.micro_steps)?;
        let ratio = speed.gb_per_s() / raw.gb_per_s();
        add(
            report,
            "cold",
            "cold",
            &speed,
            format!(", {:.0} % of plain random reads", 100.0 * ratio),
        );
        add(
            report,
            "random reads",
            "random_reads",
            &raw,
            format!(", pread, {} threads", self.options.workers.max(8)),
        );
        report.entry("fraction_of_random_reads", ratio);
        report.entry("cached_share_before", before);
        Ok(())
    }
}
