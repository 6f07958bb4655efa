//! `torch.randperm` and numpy's `Generator.permutation` at 50 million entries: ours beside the real ones, one thread.
//!
//! `cargo bench -p ceteris-samplers` first runs criterion over ours and the floor (the swaps alone, targets known),
//! then times ours and the real packages in turn and prints ratios and peak memory. The packages come from the Python
//! named by `CETERIS_PYTHON` (default `python3`); without them it says so and prints ours alone.

use std::hint::black_box;
use std::io::BufRead as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ceteris_samplers::Permutation;
use ceteris_samplers::rng::numpy::Generator;
use ceteris_samplers::rng::torch::TorchGenerator;
use criterion::Criterion;
use sha2::{Digest as _, Sha256};

const SEED: u64 = 42;
/// Set in a child process: which permutation to make before it reports its peak memory.
const CHILD: &str = "CETERIS_BENCH_CHILD";

#[derive(Clone, Copy, PartialEq)]
enum Which {
    Torch,
    Numpy,
}

impl Which {
    const ALL: [Which; 2] = [Which::Torch, Which::Numpy];

    fn name(self) -> &'static str {
        match self {
            Which::Torch => "torch randperm",
            Which::Numpy => "numpy permutation",
        }
    }

    fn make(self, n: u64) -> Permutation {
        match self {
            Which::Torch => TorchGenerator::new(SEED).randperm(n),
            Which::Numpy => Generator::default_rng(SEED).permutation(n),
        }
        .expect("fits in memory")
    }
}

/// Entries: 50 million, or what `CETERIS_BENCH_N` says.
fn entries() -> u64 {
    match std::env::var("CETERIS_BENCH_N") {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("CETERIS_BENCH_N={text} is no number")),
        Err(_) => 50_000_000,
    }
}

fn digest(list: &Permutation) -> String {
    let mut hasher = Sha256::new();
    if let Permutation::Narrow(entries) = list {
        for chunk in entries.chunks(1 << 14) {
            let bytes: Vec<u8> = chunk.iter().flat_map(|x| x.to_le_bytes()).collect();
            hasher.update(&bytes);
        }
    }
    hasher.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

/// Swaps alone, from the first entry up, with targets read from memory and fetched ahead.
fn swaps_alone(list: &mut [u32], targets: &[u32]) {
    const AHEAD: usize = 96;
    for i in 0..targets.len() {
        if let Some(&far) = targets.get(i + AHEAD) {
            fetch(list, far as usize);
        }
        list.swap(i, targets[i] as usize);
    }
}

fn fetch(list: &[u32], i: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults and reads nothing the program sees.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(list.as_ptr().wrapping_add(i).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    black_box((list, i));
}

/// A list to swap and torch's targets for it.
fn floor_input(n: u64) -> (Permutation, Vec<u32>) {
    let mut generator = TorchGenerator::new(SEED);
    let mut targets = vec![0; n.saturating_sub(1) as usize];
    generator.fill_u32(&mut targets);
    for (i, target) in targets.iter_mut().enumerate() {
        *target = i as u32 + *target % (n as u32 - i as u32);
    }
    (Permutation::identity_list(n).expect("fits in memory"), targets)
}

fn time_floor(list: &mut Permutation, targets: &[u32]) -> Duration {
    let Permutation::Narrow(list) = list else {
        panic!("the benchmark is for lists of u32")
    };
    let start = Instant::now();
    swaps_alone(black_box(list), targets);
    start.elapsed()
}

fn criterion_part(n: u64) {
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(8))
        .configure_from_args();
    for which in Which::ALL {
        criterion.bench_function(&format!("{} n={n}", which.name()), |b| {
            b.iter(|| which.make(black_box(n)))
        });
    }
    let (mut list, targets) = floor_input(n);
    criterion.bench_function(&format!("swaps alone n={n}"), |b| {
        b.iter_custom(|times| (0..times).map(|_| time_floor(&mut list, &targets)).sum());
    });
    criterion.final_summary();
}

struct Peer {
    name: String,
    version: String,
    seconds: Vec<f64>,
    sha256: String,
}

/// What the real packages need, in the same run. An empty list when they are missing, which it says.
fn peers(n: u64, repeats: u32) -> Vec<Peer> {
    let python = std::env::var("CETERIS_PYTHON").unwrap_or_else(|_| "python3".to_string());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/peer_permutations.py");
    let child = Command::new(&python)
        .args([script, &n.to_string(), &repeats.to_string()])
        .stdout(Stdio::piped())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => {
            println!(
                "{python}: {error}. Set CETERIS_PYTHON to a Python with the packages of peer_requirements.txt."
            );
            return Vec::new();
        }
    };
    let mut found = Vec::new();
    let lines = std::io::BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
    for line in lines.map_while(Result::ok) {
        let value: serde_json::Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{line}: {e}"));
        let text = |key: &str| value[key].as_str().unwrap_or_default().to_string();
        found.push(Peer {
            name: text("peer"),
            version: text("version"),
            seconds: value["seconds"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|s| s.as_f64())
                .collect(),
            sha256: text("sha256_u32"),
        });
    }
    let status = child.wait().expect("the script was started");
    if !status.success() {
        println!(
            "{python} lacks a package: pip install -r samplers/benches/peer_requirements.txt, or set CETERIS_PYTHON."
        );
    }
    found
}

/// Peak resident memory of a process that makes one permutation, in bytes (0 where the system does not say).
fn peak_memory(which: Which) -> u64 {
    let own = std::env::current_exe().expect("this program has a path");
    let output = Command::new(own)
        .env(CHILD, which.name())
        .output()
        .expect("this program starts");
    String::from_utf8_lossy(&output.stdout)
        .trim()
        .parse()
        .unwrap_or(0)
}

fn child(which: &str) {
    let which = Which::ALL
        .into_iter()
        .find(|w| w.name() == which)
        .expect("a known name");
    black_box(which.make(entries()));
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status.lines().find_map(|l| {
        l.strip_prefix("VmHWM:")?
            .trim()
            .strip_suffix(" kB")?
            .parse::<u64>()
            .ok()
    });
    println!("{}", kib.unwrap_or(0) * 1024);
}

fn minimum(seconds: &[f64]) -> f64 {
    seconds.iter().copied().fold(f64::INFINITY, f64::min)
}

fn main() {
    if let Ok(which) = std::env::var(CHILD) {
        return child(&which);
    }
    let n = entries();
    if std::env::args().any(|a| a == "--test") {
        return; // `cargo test --benches` only asks whether this starts.
    }
    if std::env::var_os("CETERIS_BENCH_SKIP_CRITERION").is_none() {
        criterion_part(n);
    }
    const REPEATS: u32 = 5;
    println!("\nn = {n}, one thread, least of {REPEATS} runs");
    let (mut list, targets) = floor_input(n);
    let floor: Vec<f64> = (0..REPEATS)
        .map(|_| time_floor(&mut list, &targets).as_secs_f64())
        .collect();
    drop((list, targets));
    println!("floor: swaps alone, targets known: {:.3} s", minimum(&floor));
    let ours = Which::ALL.map(|which| {
        let mut sha256 = String::new();
        let seconds: Vec<f64> = (0..REPEATS)
            .map(|_| {
                let start = Instant::now();
                let list = black_box(which.make(n));
                let seconds = start.elapsed().as_secs_f64();
                sha256 = digest(&list);
                seconds
            })
            .collect();
        (which, minimum(&seconds), sha256)
    });
    let peers = peers(n, 3);
    for (which, seconds, sha256) in &ours {
        let peak = peak_memory(*which) as f64;
        let line = format!(
            "ours, {}: {seconds:.3} s, {:.2} x floor, peak memory {:.0} MB = {:.3} x the u32 output",
            which.name(),
            seconds / minimum(&floor),
            peak / 1e6,
            peak / (4.0 * n as f64)
        );
        println!("{line}");
        let peer = peers.iter().find(|p| {
            p.name
                .starts_with(if *which == Which::Torch { "torch" } else { "numpy" })
        });
        if let Some(peer) = peer {
            assert_eq!(
                peer.sha256, *sha256,
                "{} {} made another permutation",
                peer.name, peer.version
            );
            let theirs = minimum(&peer.seconds);
            println!(
                "  {} {}: {theirs:.3} s; ratio {:.2}, same permutation",
                peer.name,
                peer.version,
                theirs / seconds
            );
        }
    }
}
