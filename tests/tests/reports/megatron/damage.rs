//! Reports about caches of built indices, V41: arrays that changed, and many sources in one cache.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use ceteris_loader::index::build::{BuildOptions, build_split};
use ceteris_loader::index::store::{Outcome, Store};
use ceteris_loader::pipeline::{Loader, LoaderError, LoaderOptions};
use ceteris_loader::source::megatron_idx::TokenType;
use ceteris_samplers::orders::split::Split;
use ceteris_samplers::{OrderInput, OrderSpec};
use ceteris_tests::orders::geometry;

use super::*;

/// The one cached array whose name ends so.
fn cached_array(cache: &Path, ending: &str) -> PathBuf {
    fs::read_dir(cache)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.display().to_string().ends_with(ending))
        .unwrap_or_else(|| panic!("no {ending} in {}", cache.display()))
}

fn cached_record(array: &Path) -> PathBuf {
    let name = array.file_name().unwrap().to_string_lossy().into_owned();
    let (base, _) = name.split_once("-shuffle_index").unwrap();
    array.with_file_name(format!("{base}.json"))
}

/// A changed entry of a cached array, in range or not, must not drop or reorder samples.
#[test]
fn v41_damaged_arrays_of_our_cache_are_built_anew() {
    let dir = tempfile::tempdir().unwrap();
    let prefix = dir.path().join("data");
    let cache = dir.path().join("cache");
    write(&prefix, TokenType::U16, &numbered(&[5, 3, 9, 7, 2, 4, 30, 1]));
    let config = whole(&[&prefix], None, 4, 1234);
    let store = Store::new(&cache, false);
    let fresh = samples(&build(&config, Some(&store)), 4);
    for (ending, entry) in [
        ("-shuffle_index.npy", [9u8, 9, 9, 9]),
        ("-document_index.npy", [1, 0, 0, 0]),
        ("-sample_index.npy", [2, 0, 0, 0]),
    ] {
        let path = cached_array(&cache, ending);
        let mut bytes = fs::read(&path).unwrap();
        let at = bytes.len() - 4;
        assert_ne!(bytes[at..], entry);
        bytes[at..].copy_from_slice(&entry);
        fs::write(&path, &bytes).unwrap();
        let options = BuildOptions {
            store: Some(&Store::new(&cache, true)),
            ..BuildOptions::default()
        };
        let error = build_split(&config, Split::Train, &options)
            .unwrap_err()
            .to_string();
        assert!(error.contains("not those that were written"), "{ending}: {error}");
        let again = build(&config, Some(&store));
        match &again.parts[0].outcome {
            Outcome::Rebuilt { reason } => assert!(reason.contains("_index.npy"), "{reason}"),
            other => panic!("{ending}: {other:?}"),
        }
        assert_eq!(samples(&again, 4), fresh, "{ending}");
    }

    // The same values under another time stamp are compared once, and from then on known.
    let array = cached_array(&cache, "-shuffle_index.npy");
    let record = cached_record(&array);
    let before = fs::read(&record).unwrap();
    fs::write(&array, fs::read(&array).unwrap()).unwrap();
    assert_eq!(build(&config, Some(&store)).parts[0].outcome, Outcome::Hit);
    let renewed = fs::read(&record).unwrap();
    assert_ne!(renewed, before);
    assert_eq!(build(&config, Some(&store)).parts[0].outcome, Outcome::Hit);
    assert_eq!(fs::read(&record).unwrap(), renewed);
}

/// The draws of a blend are cached too.
#[test]
fn v41_damaged_draws_of_a_cached_blend_are_built_anew() {
    let dir = tempfile::tempdir().unwrap();
    let prefixes = [dir.path().join("a"), dir.path().join("b")];
    for prefix in &prefixes {
        write(prefix, TokenType::U16, &numbered(&[50, 30, 90]));
    }
    let cache = dir.path().join("cache");
    let mut config = whole(&[&prefixes[0], &prefixes[1]], Some(vec![0.3, 0.7]), 4, 1234);
    config.num_samples[Split::Train.index()] = Some(40);
    let store = Store::new(&cache, false);
    let fresh = samples(&build(&config, Some(&store)), 4);
    for ending in ["-dataset_index.npy", "-dataset_sample_index.npy"] {
        let path = cached_array(&cache, ending);
        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, &bytes).unwrap();
        let again = build(&config, Some(&store));
        assert!(
            matches!(again.blend_outcome, Some(Outcome::Rebuilt { .. })),
            "{ending}"
        );
        assert_eq!(samples(&again, 4), fresh, "{ending}");
    }
    let again = build(&config, Some(&store));
    assert_eq!(again.blend_outcome, Some(Outcome::Hit));
}

/// Damage after the start cannot be seen by any stamp: the entry that names no sample ends the run.
#[test]
fn v41_damage_during_a_run_is_an_error_and_no_empty_slot() {
    let dir = tempfile::tempdir().unwrap();
    let prefix = dir.path().join("data");
    let cache = dir.path().join("cache");
    write(&prefix, TokenType::U16, &numbered(&[50, 30, 90, 7]));
    let config = whole(&[&prefix], None, 4, 1234);
    let built = build(&config, Some(&Store::new(&cache, false)));
    let data = built.parts.iter().map(|part| Arc::clone(&part.data)).collect();
    let source = GptSource::new(data, Arc::clone(&built.dataset), 4, true).unwrap();
    let spec: OrderSpec = serde_json::from_str(r#"{"name":"megatron","seed":1234}"#).unwrap();
    let input = OrderInput {
        megatron: Some(Arc::clone(&built.dataset)),
        ..OrderInput::new(built.dataset.num_ids(), geometry(1, 4))
    };
    let order = spec.build(&input).unwrap();

    let path = cached_array(&cache, "-shuffle_index.npy");
    let entry = 6;
    let start = fs::metadata(&path).unwrap().len() - 4 * built.dataset.len();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&u32::MAX.to_le_bytes(), start + 4 * entry)
        .unwrap();

    let mut loader = Loader::new(Arc::new(source), order, LoaderOptions::new(4)).unwrap();
    let mut batches = 0;
    let error = loop {
        match loader.next_batch() {
            Ok(Some(_)) => batches += 1,
            Ok(None) => panic!("the damage was not seen in {batches} batches"),
            Err(error) => break error,
        }
    };
    assert_eq!(batches, entry / 4);
    assert!(matches!(error, LoaderError::Damaged { .. }), "{error:?}");
    let text = error.to_string();
    for part in [path.to_str().unwrap(), "entry 6 is 4294967295", "delete it"] {
        assert!(text.contains(part), "{text}");
    }
}

/// A cold build of many sources lists the folder's records once, whatever else lies there.
#[test]
fn a_cold_blend_finds_moved_records_and_keeps_one_record_a_source() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("cache");
    let at = |folder: &str, i: usize| dir.path().join(folder).join(format!("part{i}"));
    for i in 0..12 {
        write(&at("here", i), TokenType::U16, &numbered(&[20 + i, 9]));
    }
    let blend = |folder: &str| {
        let prefixes: Vec<PathBuf> = (0..12).map(|i| at(folder, i)).collect();
        let prefixes: Vec<&Path> = prefixes.iter().map(PathBuf::as_path).collect();
        whole(&prefixes, None, 4, 7)
    };
    let store = Store::new(&cache, false);
    let first = build(&blend("here"), Some(&store));
    assert!(first.parts.iter().all(|part| part.outcome == Outcome::Built));
    fs::rename(dir.path().join("here"), dir.path().join("there")).unwrap();
    // The same store sees what the build before wrote.
    let moved = build(&blend("there"), Some(&store));
    assert!(
        moved
            .parts
            .iter()
            .all(|part| matches!(part.outcome, Outcome::HitMoved { .. })),
        "{:?}",
        moved.parts.iter().map(|part| &part.outcome).collect::<Vec<_>>()
    );
    let again = build(&blend("there"), Some(&store));
    assert!(again.parts.iter().all(|part| part.outcome == Outcome::Hit));
}
