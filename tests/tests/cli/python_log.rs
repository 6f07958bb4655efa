//! `python/ceteris_log.py` computes the fingerprints that this crate computes, and its logs are read. Skipped, saying so,
//! where python3 with numpy and xxhash is not there; the logs recorded with it are verified in any case.

use std::process::Command;

use ceteris_loader::fingerprint::{Fingerprint, SetDigest};
use ceteris_loader::provenance::log::RunLog;
use serde_json::Value;

use super::root;

/// Runs a script with the file importable; `None` when Python or a package is missing.
fn python(script: &str, folder: &std::path::Path) -> Option<String> {
    let interpreter = std::env::var("CETERIS_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let run = |script: &str| {
        Command::new(&interpreter)
            .args(["-c", script])
            .current_dir(folder)
            .env(
                "PYTHONPATH",
                root().canonicalize().expect("a folder").join("python"),
            )
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .output()
    };
    match run("import numpy, xxhash") {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            let why = String::from_utf8_lossy(&output.stderr);
            println!(
                "skipped: {interpreter} lacks a package: {}",
                why.lines().last().unwrap_or("")
            );
            return None;
        }
        Err(e) => {
            println!("skipped: {interpreter}: {e}");
            return None;
        }
    }
    let output = run(script).expect("it ran before");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    Some(String::from_utf8(output.stdout).expect("text"))
}

/// The tokens of the script below.
fn row(number: i64, length: i64) -> Vec<i32> {
    (0..length)
        .map(|t| ((number * 7919 + t * 104_729) % 60_000) as i32)
        .collect()
}

#[test]
fn python_and_rust_fingerprints_are_the_same() {
    let script = "
import json, numpy as np
from ceteris_log import sample_fingerprint, combine, set_fingerprint
def row(number, length):
    return [(number * 7919 + t * 104729) % 60000 for t in range(length)]
rows = [row(n, l) for n, l in enumerate([0, 1, 3, 128, 1023, 1024, 2048])]
digests = [sample_fingerprint(r) for r in rows]
for dtype in (np.int64, np.int32, np.uint16, np.uint32, '>i4'):
    assert [sample_fingerprint(np.array(r, dtype=dtype)) for r in rows] == digests, dtype
assert sample_fingerprint(np.array(rows[3] + rows[3]).reshape(2, 128)[:, ::1][0]) == digests[3]
strided = np.array([rows[3], rows[3]]).T.copy().T
assert sample_fingerprint(strided[1]) == digests[3]
for bad in ([1.5], [-1], [2**31]):
    try:
        sample_fingerprint(np.array(bad))
    except (TypeError, ValueError):
        continue
    raise AssertionError(bad)
print(json.dumps({'samples': [d.hex() for d in digests], 'step': combine(digests).hex(), 'set': set_fingerprint(digests + digests[2:4])}))
";
    let folder = tempfile::tempdir().expect("a folder");
    let Some(text) = python(script, folder.path()) else {
        return;
    };
    let found: Value = serde_json::from_str(&text).expect("JSON");
    let ours: Vec<Fingerprint> = [0, 1, 3, 128, 1023, 1024, 2048]
        .iter()
        .enumerate()
        .map(|(number, length)| Fingerprint::of_sample(&row(number as i64, *length)))
        .collect();
    let mut set = SetDigest::default();
    for digest in ours.iter().chain(&ours[2..4]) {
        set.add(*digest);
    }
    assert_eq!(found["samples"], serde_json::to_value(&ours).expect("JSON"));
    assert_eq!(
        found["step"],
        Fingerprint::combine(ours.iter().copied()).to_string()
    );
    assert_eq!(found["set"], set.finish().to_string());
}

#[test]
fn logs_that_python_writes_are_read() {
    let script = "
import numpy as np
from ceteris_log import ConsumptionLog
def row(number, length=32):
    return [(number * 7919 + t * 104729) % 60000 for t in range(length)]
for rank in range(2):
    log = ConsumptionLog('log', rank=rank, world_size=2, seq_length=32)
    for epoch in range(2):
        batches = [{'text': np.array([row(epoch * 100 + m * 4 + rank * 2 + s, 33) for s in range(2)])} for m in range(3)]
        for batch in log.watch(batches, field='text', epoch=epoch):
            pass
    log.batch(np.array([row(900), row(901)]), epoch=2, ids=[900, 901], lengths=[32, 5], step=7)
    log.close()
for wrong in (dict(rank=2, world_size=2), dict(rank=0, world_size=1)):
    try:
        ConsumptionLog('log', **wrong)
    except (ValueError, FileExistsError):
        continue
    raise AssertionError(wrong)
";
    let folder = tempfile::tempdir().expect("a folder");
    if python(script, folder.path()).is_none() {
        return;
    }
    let log = RunLog::read(&folder.path().join("log"), false).expect("a log");
    assert_eq!(
        (log.world_size, log.micro_batch_size(), log.batches.len()),
        (2, Some(2), 14)
    );
    assert!(log.has_samples());
    for batch in &log.batches {
        let epoch = batch.epoch.expect("logged");
        let samples = batch.samples.as_deref().expect("logged");
        if epoch == 2 {
            assert_eq!(batch.ids.as_deref(), Some(&[900, 901][..]));
            assert_eq!(samples[1], Fingerprint::of_sample(&row(901, 5)));
            continue;
        }
        let number = (epoch * 100 + batch.micro_step * 4 + batch.rank * 2) as i64;
        let expected = [row(number, 32), row(number + 1, 32)].map(|row| Fingerprint::of_sample(&row));
        assert_eq!(samples, expected);
        assert_eq!(batch.fingerprint, Some(Fingerprint::combine(expected)));
    }
}
