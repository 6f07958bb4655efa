//! Every kernel compiles for its targets, without a GPU, and the compiler's report is printed: registers, shared
//! memory, spills.
//!
//! Needs NVRTC: `pip install --target DIR nvidia-cuda-nvrtc==13.0.88` and its `lib` folder on LD_LIBRARY_PATH. Where it
//! is missing the test says so and passes, unless CETERIS_REQUIRE_NVRTC is set, as CI does.

use ceteris_kernels::cuda::{Source, Unit, compile, nvrtc_present};

/// Where a kernel uses Hopper's own instructions (wgmma, clusters), it has another form for the other targets.
const TARGETS: [&str; 3] = ["sm_80", "sm_90a", "sm_100"];
/// Most bytes a kernel may spill before the test fails: a spill is a slow kernel that nobody noticed.
const SPILL_LIMIT: u64 = 256;

fn unit(source: Source, defines: &[&str]) -> Unit {
    Unit {
        source,
        defines: defines.iter().map(|d| (*d).to_string()).collect(),
    }
}

/// The units of the shipped configurations first, then the corners of what the kernels accept.
fn units() -> Vec<(Unit, bool)> {
    let mut list = vec![
        (unit(Source::Norm, &["D=1024"]), true),
        (unit(Source::Reduce, &[]), true),
        (unit(Source::Conv, &["KD=64", "W=4"]), true),
        (unit(Source::Gates, &[]), true),
        (unit(Source::DeltaChunk, &["KD=64", "VD=64"]), true),
        (unit(Source::DeltaFused, &["KD=64", "VD=64", "STAGES=2"]), true),
        (unit(Source::DeltaLocal, &["KD=64", "VD=64"]), true),
        (unit(Source::DeltaRule, &["KD=64", "VD=64"]), true),
        (unit(Source::GatedNorm, &["VD=64"]), true),
        (unit(Source::SwiGlu, &[]), true),
        (unit(Source::CrossEntropy, &[]), true),
        (unit(Source::Embedding, &[]), true),
        (unit(Source::AdamW, &[]), true),
        (unit(Source::Norm, &["D=2048"]), false),
        (unit(Source::Conv, &["KD=256", "W=4"]), false),
        (unit(Source::Conv, &["KD=64", "W=1", "NO_WEIGHT=1"]), false),
        (unit(Source::Conv, &["KD=8", "W=3"]), false),
        (unit(Source::Conv, &["KD=128", "W=8"]), false),
        (unit(Source::GatedNorm, &["VD=512"]), false),
        (unit(Source::DeltaChunk, &["KD=128", "VD=256"]), false),
        (unit(Source::DeltaFused, &["KD=128", "VD=128", "STAGES=1"]), false),
        (unit(Source::DeltaRule, &["KD=128", "VD=128"]), false),
        (unit(Source::DeltaRule, &["KD=256", "VD=512"]), false),
    ];
    let fp32 = list.iter().filter(|(_, shipped)| *shipped).map(|(u, _)| {
        let mut u = u.clone();
        u.defines.insert(0, "ELEM_F32".into());
        (u, false)
    });
    let fp32: Vec<_> = fp32.collect();
    list.extend(fp32);
    list
}

/// Kernel name → (registers, spilled bytes), from ptxas' report.
fn parse(report: &str) -> Vec<(String, u64, u64)> {
    let number = |line: &str, before: &str| -> Option<u64> {
        let at = line.find(before)?;
        line[..at].trim_end().rsplit([' ', ',']).next()?.parse().ok()
    };
    let (mut out, mut name, mut spills) = (Vec::new(), String::new(), 0);
    for line in report.lines() {
        if let Some(rest) = line.split("Compiling entry function '").nth(1) {
            name = rest.split('\'').next().unwrap_or_default().to_string();
        } else if let Some(bytes) = number(line, " bytes spill stores") {
            spills = bytes;
        } else if let Some(at) = line.find("Used ") {
            let registers = line[at + 5..]
                .split(' ')
                .next()
                .and_then(|n| n.parse().ok())
                .unwrap_or(0);
            out.push((name.clone(), registers, spills));
        }
    }
    out
}

#[test]
fn every_kernel_compiles_for_its_targets() {
    if !nvrtc_present() {
        assert!(
            std::env::var_os("CETERIS_REQUIRE_NVRTC").is_none(),
            "CETERIS_REQUIRE_NVRTC is set, but libnvrtc.so is not found"
        );
        println!("skipped: libnvrtc.so is not on the library path");
        return;
    }
    let jobs: Vec<(Unit, &str)> = units()
        .into_iter()
        .flat_map(|(u, shipped)| {
            TARGETS
                .iter()
                .filter(move |t| shipped || **t == "sm_90a")
                .map(move |&t| (u.clone(), t))
        })
        .collect();
    let halves = jobs.split_at(jobs.len() / 2);
    let run = |jobs: &[(Unit, &'static str)]| -> Vec<String> {
        let mut lines = Vec::new();
        for (u, target) in jobs {
            let done = compile(u, target).unwrap_or_else(|e| panic!("{e}"));
            assert!(
                done.image.starts_with(b"\x7fELF"),
                "{}: not a CUBIN",
                u.source.file()
            );
            let kernels = parse(&done.report);
            // Clusters exist from compute capability 9.0 on.
            let defined = |define: &str| u.defines.contains(&define.to_string());
            let absent = |name: &str| match name {
                "cross_entropy_cluster" => defined("ELEM_F32") || *target == "sm_80",
                _ => false,
            };
            let expected: Vec<_> = u.source.kernels().iter().filter(|n| !absent(n)).collect();
            for name in &expected {
                let (_, registers, spills) = kernels
                    .iter()
                    .find(|k| k.0 == **name)
                    .unwrap_or_else(|| panic!("{} has no kernel {name}:\n{}", u.source.file(), done.report));
                lines.push(format!(
                    "{target:7} {:18} {:24} {name:24} {registers:3} registers {spills:3} bytes spilled",
                    u.source.file(),
                    u.defines.join(" ")
                ));
                assert!(
                    *spills <= SPILL_LIMIT,
                    "{name} {:?} for {target} spills {spills} bytes",
                    u.defines
                );
            }
            assert_eq!(
                kernels.len(),
                expected.len(),
                "{}: the kernel list is incomplete",
                u.source.file()
            );
        }
        lines
    };
    let (a, b) = std::thread::scope(|s| {
        let other = s.spawn(|| run(halves.1));
        (run(halves.0), other.join().unwrap())
    });
    a.iter().chain(&b).for_each(|l| println!("{l}"));
    // 10 sources, shipped sizes on three targets.
    assert!(a.len() + b.len() >= 3 * Source::ALL.iter().map(|s| s.kernels().len()).sum::<usize>());
}
