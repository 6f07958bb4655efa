//! Reports about caches of built indices: V40 to V42 and V49.

use std::fs;
use std::path::{Path, PathBuf};

use ceteris_loader::index::build::{BuildOptions, build_split};
use ceteris_loader::index::described::in_folder;
use ceteris_loader::index::description::RunDescription;
use ceteris_loader::index::megatron_cache::{names, write_gpt};
use ceteris_loader::index::python_json::PyJson;
use ceteris_loader::index::store::{Outcome, Store};
use ceteris_loader::index::verify::{VerifyOptions, audit};
use ceteris_loader::source::megatron::{bin_path, idx_path};
use ceteris_loader::source::megatron_idx::TokenType;
use ceteris_samplers::orders::split::Split;
use serde_json::Value;

use super::*;

fn index_hash(stdout: &[u8]) -> String {
    let report: Value = serde_json::from_slice(stdout).unwrap_or_else(|e| panic!("{e}"));
    report["splits"][0]["datasets"][0]["index_hash"]
        .as_str()
        .expect("a hash")
        .to_owned()
}

/// NVIDIA/Megatron-LM#907 and others: one rank built the cache, the others failed, hung or read half a file.
#[test]
fn v40_every_process_may_build_the_cache_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let prefix = dir.path().join("data");
    let lengths: Vec<usize> = (0..2_000).map(|i| 1 + i * 31 % 60).collect();
    write(&prefix, TokenType::I32, &numbered(&lengths));
    let run_all = |caches: &[PathBuf]| -> Vec<String> {
        let running: Vec<_> = caches
            .iter()
            .map(|cache| {
                build_command(&prefix, cache)
                    .stdout(std::process::Stdio::piped())
                    .spawn()
                    .unwrap()
            })
            .collect();
        running
            .into_iter()
            .map(|child| {
                let out = child.wait_with_output().unwrap();
                assert!(out.status.success());
                index_hash(&out.stdout)
            })
            .collect()
    };
    let shared = dir.path().join("shared");
    let mut hashes = run_all(&vec![shared.clone(); 8]);
    let groups = [dir.path().join("one"), dir.path().join("two")];
    hashes.extend(run_all(&[
        groups[0].clone(),
        groups[1].clone(),
        groups[0].clone(),
        groups[1].clone(),
    ]));
    hashes.dedup();
    assert_eq!(hashes.len(), 1, "{hashes:?}");

    // What a killed writer leaves behind: a temporary file, arrays without a record, a lock.
    let killed = dir.path().join("killed");
    fs::create_dir(&killed).unwrap();
    for entry in fs::read_dir(&shared).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name.ends_with(".npy") {
            let bytes = fs::read(&path).unwrap();
            fs::write(killed.join(format!(".{name}.part")), &bytes[..bytes.len() / 2]).unwrap();
            fs::write(killed.join(&name), &bytes[..bytes.len() / 2]).unwrap();
            fs::write(killed.join(name.replace("-shuffle_index.npy", ".lock")), b"").unwrap();
        }
    }
    assert_eq!(run_all(std::slice::from_ref(&killed)), hashes);
    // A record whose array was cut off later is not believed either.
    let array = fs::read_dir(&killed)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| {
            let name = path.file_name().unwrap().to_string_lossy();
            name.ends_with("-sample_index.npy") && !name.starts_with('.')
        })
        .unwrap();
    fs::OpenOptions::new()
        .write(true)
        .open(&array)
        .unwrap()
        .set_len(200)
        .unwrap();
    assert_eq!(run_all(&[killed]), hashes);
}

/// Lightning-AI/litData#292 and others: data replaced under the same path, and the stale index used.
#[test]
fn v41_the_cache_is_tied_to_the_content() {
    let dir = tempfile::tempdir().unwrap();
    let prefix = dir.path().join("data");
    let cache = dir.path().join("cache");
    let documents = numbered(&[5, 3, 9, 7, 2, 4, 30, 1]);
    write(&prefix, TokenType::U16, &documents);
    let config = whole(&[&prefix], None, 4, 1234);
    let store = Store::new(&cache, false);
    let outcome = |store: &Store| build(&config, Some(store)).parts[0].outcome.clone();
    assert_eq!(outcome(&store), Outcome::Built);
    assert_eq!(outcome(&store), Outcome::Hit);

    // (c) the same bytes, another time stamp
    let bytes = fs::read(bin_path(&prefix)).unwrap();
    fs::write(bin_path(&prefix), &bytes).unwrap();
    assert_eq!(outcome(&store), Outcome::HitSameContent);
    assert_eq!(outcome(&store), Outcome::Hit);

    // (a) another document order, the same counts: once with other lengths, once with the same lengths
    let mut reordered = documents.clone();
    reordered.rotate_left(3);
    write(&prefix, TokenType::U16, &reordered);
    let refused = build_split(
        &config,
        Split::Train,
        &BuildOptions {
            store: Some(&Store::new(&cache, true)),
            ..BuildOptions::default()
        },
    );
    let error = refused.unwrap_err().to_string();
    assert!(
        error.contains("content of the .idx file") && error.contains("--no-rebuild"),
        "{error}"
    );
    assert!(matches!(outcome(&store), Outcome::Rebuilt { .. }));
    let mut exchanged = reordered.clone();
    exchanged[0][0].reverse();
    write(&prefix, TokenType::U16, &exchanged);
    match outcome(&store) {
        Outcome::Rebuilt { reason } => assert!(reason.contains(".bin"), "{reason}"),
        other => panic!("{other:?}"),
    }
    // (b) one document more
    let mut longer = exchanged.clone();
    longer.push(vec![vec![1, 2, 3]]);
    write(&prefix, TokenType::U16, &longer);
    match outcome(&store) {
        Outcome::Rebuilt { reason } => assert!(reason.contains("bytes"), "{reason}"),
        other => panic!("{other:?}"),
    }
    let fresh = build(&config, None);
    let cached = build(&config, Some(&store));
    assert_eq!(cached.parts[0].outcome, Outcome::Hit);
    assert_eq!(samples(&cached, 4), samples(&fresh, 4));

    // Megatron's own cache, made for other data: the audit and the import see the lengths.
    let theirs = dir.path().join("theirs");
    let run = RunDescription {
        random_seed: 1234,
        sequence_length: 4,
        split: Some("100,0,0".to_owned()),
        tokenizer: PyJson::Null,
    };
    let (parts, _) = names(&run, &fresh);
    write_gpt(&theirs, &parts[0], &fresh.parts[0].index).unwrap();
    let options = VerifyOptions {
        root: None,
        add_extra_token_to_sequence: true,
        drop_last_partial_validation_sequence: true,
    };
    let audited = |folder: &Path| audit(&in_folder(folder).unwrap()[0], &options);
    assert!(audited(&theirs).is_same(), "{}", audited(&theirs));
    write(&prefix, TokenType::U16, &documents);
    assert!(!audited(&theirs).is_same());
    assert!(
        audited(&theirs).to_string().contains("the data gives"),
        "{}",
        audited(&theirs)
    );
    let caches = ceteris_loader::index::import::MegatronCaches::open(&theirs).unwrap();
    let import = BuildOptions {
        import: Some(&caches),
        ..BuildOptions::default()
    };
    let error = build_split(&config, Split::Train, &import)
        .unwrap_err()
        .to_string();
    assert!(error.contains("document_index.npy"), "{error}");
    write(&prefix, TokenType::U16, &longer);
    let imported = build_split(&config, Split::Train, &import).unwrap().unwrap();
    assert_eq!(samples(&imported, 4), samples(&fresh, 4));
}

/// NVIDIA/Megatron-LM#795: the index is wanted before the job, on a machine without a GPU.
#[test]
fn v42_an_index_built_offline_is_used_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path().join("here/data");
    write(&here, TokenType::U16, &numbered(&[12, 7, 30, 5, 44]));
    let cache = dir.path().join("cache");
    let out = build_command(&here, &cache).output().unwrap();
    let offline = index_hash(&out.stdout);
    // Only the index moves; the data lies under another path there.
    let there = dir.path().join("there/data");
    fs::create_dir_all(there.parent().unwrap()).unwrap();
    for path in [idx_path, bin_path] {
        fs::copy(path(&here), path(&there)).unwrap();
    }
    let moved = dir.path().join("moved");
    fs::create_dir(&moved).unwrap();
    for entry in fs::read_dir(&cache).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, moved.join(path.file_name().unwrap())).unwrap();
    }
    fs::remove_dir_all(dir.path().join("here")).unwrap();
    for outcome in ["hit_moved", "hit"] {
        let out = build_command(&there, &moved)
            .arg("--no-rebuild")
            .output()
            .unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        assert_eq!(index_hash(&out.stdout), offline);
        let report: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(report["splits"][0]["datasets"][0]["cache"]["outcome"], outcome);
    }
}

/// allenai/OLMo-core PR#273: the cache's name depended on the batch size although the order did not.
#[test]
fn v49_only_what_matters_is_in_the_key() {
    let dir = tempfile::tempdir().unwrap();
    let prefix = dir.path().join("data");
    write(&prefix, TokenType::U16, &numbered(&[50, 60, 70]));
    let cache = dir.path().join("cache");
    let run = |micro_batch_size: &str, world_size: &str| {
        let out = loader()
            .args([
                "--order",
                "megatron",
                "--seed",
                "1",
                "--seq-length",
                "8",
                "--split",
                "1,0,0",
                "--format",
                "json",
            ])
            .args([
                "--emit",
                "summary",
                "--micro-batch-size",
                micro_batch_size,
                "--world-size",
                world_size,
            ])
            .arg("--data-path")
            .arg(&prefix)
            .arg("--data-cache-path")
            .arg(&cache)
            .output()
            .unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let report: Value = serde_json::from_slice(&out.stdout).unwrap();
        find(&report, "cache").expect("the cache's outcome")["outcome"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(run("8", "1"), "built");
    assert_eq!(run("4", "2"), "hit");
    assert_eq!(run("2", "1"), "hit");
    let records = fs::read_dir(&cache)
        .unwrap()
        .filter(|entry| {
            entry
                .as_ref()
                .unwrap()
                .path()
                .extension()
                .is_some_and(|e| e == "json")
        })
        .count();
    assert_eq!(records, 1);
}
