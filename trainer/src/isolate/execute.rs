//! Runs the cells of a design, each in a folder of its own, one after the other or one a device.
//!
//! A cell that is there whole, with these settings and hashes, is not run again; one that was stopped goes on from its
//! checkpoint. A cell's folder is named after its levels, so a design that grows keeps the runs it has.

use std::collections::VecDeque;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ceteris_loader::pipeline::StopSignal;
use serde_json::Value;

use super::IsolateError;
use super::factors::{Factor, Part};
use super::hashes::Hashes;
use super::io;
use super::progress::Progress;
use crate::config::{self, RunConfig};
use crate::run::folder::RunFolder;
use crate::run::manifest::Manifest;
use crate::run::train::{TrainOptions, train};

/// A run to be made.
#[derive(Clone, Debug)]
pub struct Planned {
    /// Its name, from its levels.
    pub name: String,
    /// Its settings; `output_dir` is its folder.
    pub config: RunConfig,
    /// Hashes it must have.
    pub hashes: Hashes,
    /// Its steps.
    pub steps: u64,
}

/// How runs are made.
#[derive(Clone, Debug, Default)]
pub struct ExecuteOptions {
    /// Ends after the step in progress of each run, with checkpoints.
    pub stop: Option<StopSignal>,
    /// Devices that run at once, a process each; none: this process, on the device of the settings.
    pub devices: Vec<String>,
    /// Show nothing but errors.
    pub quiet: bool,
}

/// Name of a cell: `order=fla,seeds.data=1`.
pub fn cell_name(factors: &[Factor], levels: &[usize]) -> String {
    let full: Vec<String> = factors.iter().zip(levels).map(|(f, l)| f.set(*l)).collect();
    let full = full.join(",");
    if full.is_empty() {
        return "only".to_owned();
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "._=,+-".contains(c);
    let name: String = full
        .chars()
        .map(|c| if plain(c) { c } else { '_' })
        .take(100)
        .collect();
    if name == full {
        name
    } else {
        // What a file name cannot hold must not make two cells one.
        format!("{name}-{}", &blake3::hash(full.as_bytes()).to_hex()[..8])
    }
}

/// Settings that decide nothing a run learns; another value of them makes no other run.
fn decisive(config: &RunConfig, factors: &[Factor]) -> Value {
    let mut tree = serde_json::to_value(config).unwrap_or_default();
    let varied = |key: &str| {
        factors
            .iter()
            .any(|f| f.key == key || f.key.starts_with(&format!("{key}.")))
    };
    for (section, key) in [("train", "device"), ("train", "threads")] {
        if !varied(&format!("{section}.{key}"))
            && let Some(Value::Object(map)) = tree.get_mut(section)
        {
            map.remove(key);
        }
    }
    if let Value::Object(map) = &mut tree {
        for section in ["loader", "log", "checkpoint"] {
            if !varied(section) {
                map.remove(section);
            }
        }
    }
    tree
}

/// The first leaf in which two trees differ.
fn first_difference(at: &str, a: &Value, b: &Value) -> Option<String> {
    match (a, b) {
        (Value::Object(x), Value::Object(y)) => {
            let mut keys: Vec<&String> = x.keys().chain(y.keys()).collect();
            keys.sort();
            keys.dedup();
            keys.into_iter().find_map(|key| {
                let path = if at.is_empty() {
                    key.clone()
                } else {
                    format!("{at}.{key}")
                };
                let null = Value::Null;
                first_difference(&path, x.get(key).unwrap_or(&null), y.get(key).unwrap_or(&null))
            })
        }
        (a, b) if a == b => None,
        (a, b) => Some(format!("{at} is {a} there, {b} here")),
    }
}

impl Planned {
    fn folder(&self) -> RunFolder {
        RunFolder::new(&self.config.output_dir)
    }

    /// The run is there whole. A folder of another run is refused.
    ///
    /// # Errors
    /// [`IsolateError::Folder`].
    pub fn is_finished(&self, factors: &[Factor]) -> Result<bool, IsolateError> {
        let folder = self.folder();
        if !folder.settings().exists() {
            return Ok(false);
        }
        let there = config::load(Some(&folder.settings()), &[], &|_| None)?.config;
        let differs = first_difference("", &decisive(&there, factors), &decisive(&self.config, factors));
        if let Some(differs) = differs {
            return Err(IsolateError::Folder {
                path: self.config.output_dir.clone(),
                problem: format!(
                    "holds a run with other settings ({differs}); set another output_dir, or remove that folder"
                ),
            });
        }
        if !folder.manifest().exists() {
            return Ok(false);
        }
        let manifest = Manifest::load(&folder.manifest())?;
        self.check(&manifest)?;
        Ok(manifest.run_fingerprint.is_some())
    }

    /// The run is made of what was proven.
    fn check(&self, manifest: &Manifest) -> Result<(), IsolateError> {
        for (part, found) in [
            (Part::Order, &manifest.order_hash),
            (Part::Init, &manifest.init_hash),
            (Part::Model, &manifest.model_hash),
        ] {
            let expected = self.hashes.of(part);
            if found != expected {
                return Err(IsolateError::Folder {
                    path: self.config.output_dir.clone(),
                    problem: format!(
                        "its {} hash is {found}, these settings and this data give {expected}; the data changed, or another \
                         version wrote it: set another output_dir",
                        part.name()
                    ),
                });
            }
        }
        Ok(())
    }
}

/// Runs what is not there yet; the signal that stopped it, if one did.
///
/// # Errors
/// [`IsolateError`]: what was saved before stays.
pub fn execute(
    runs: &[Planned],
    factors: &[Factor],
    options: &ExecuteOptions,
) -> Result<Option<i32>, IsolateError> {
    let mut open = VecDeque::new();
    for run in runs {
        if !run.is_finished(factors)? {
            open.push_back(run);
        }
    }
    let files = runs.iter().map(|r| r.folder().metrics()).collect();
    let progress = Progress::new(
        files,
        runs.iter().map(|r| r.steps).sum(),
        runs.len() - open.len(),
        options.quiet,
    );
    let over = AtomicBool::new(false);
    let ended = std::thread::scope(|scope| {
        // Whatever ends this block ends the thread that looks.
        let _over = Over(&over);
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                progress.look();
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        if options.devices.is_empty() {
            here(open, options, &progress)
        } else {
            in_children(open, options, &progress)
        }
    });
    progress.finish();
    if let Some(signal) = ended? {
        return Ok(Some(signal));
    }
    for run in runs {
        run.check(&Manifest::load(&run.folder().manifest())?)?;
    }
    Ok(None)
}

struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn requested(options: &ExecuteOptions) -> Option<i32> {
    options.stop.as_ref().and_then(StopSignal::requested)
}

fn here(
    open: VecDeque<&Planned>,
    options: &ExecuteOptions,
    progress: &Progress,
) -> Result<Option<i32>, IsolateError> {
    for run in open {
        if let Some(signal) = requested(options) {
            return Ok(Some(signal));
        }
        let outcome = train(
            &run.config,
            &TrainOptions {
                stop: options.stop.clone(),
                quiet: true,
                ..TrainOptions::default()
            },
        )
        .map_err(|error| IsolateError::Child {
            run: run.name.clone(),
            problem: error.to_string(),
        })?;
        if outcome.stopped.is_some() {
            return Ok(outcome.stopped);
        }
        progress.run_done(&run.name, outcome.loss);
    }
    Ok(None)
}

/// One process a device, each taking the next run.
fn in_children(
    open: VecDeque<&Planned>,
    options: &ExecuteOptions,
    progress: &Progress,
) -> Result<Option<i32>, IsolateError> {
    let program = std::env::current_exe().map_err(io(Path::new("/proc/self/exe"), "find"))?;
    let queue = Mutex::new(open);
    let failed = AtomicBool::new(false);
    let results: Vec<Result<Option<i32>, IsolateError>> = std::thread::scope(|scope| {
        let workers: Vec<_> = options
            .devices
            .iter()
            .map(|device| {
                let (queue, failed, program) = (&queue, &failed, &program);
                scope.spawn(move || {
                    loop {
                        if let Some(signal) = requested(options) {
                            return Ok(Some(signal));
                        }
                        // After a failure no run is started any more.
                        if failed.load(Ordering::Relaxed) {
                            return Ok(None);
                        }
                        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                        let Some(run) = next else { return Ok(None) };
                        match child(program, run, device, options) {
                            Ok(None) => {
                                let curve =
                                    crate::compare::curve::read(&run.folder().metrics(), &Default::default());
                                progress.run_done(
                                    &run.name,
                                    curve.ok().and_then(|c| c.points.last().map(|p| p.loss)),
                                );
                            }
                            Ok(Some(signal)) => return Ok(Some(signal)),
                            Err(error) => {
                                failed.store(true, Ordering::Relaxed);
                                return Err(error);
                            }
                        }
                    }
                })
            })
            .collect();
        workers
            .into_iter()
            .map(|w| {
                w.join().unwrap_or_else(|_| {
                    Err(IsolateError::Child {
                        run: "of a device".into(),
                        problem: "its watcher ended unexpectedly".into(),
                    })
                })
            })
            .collect()
    });
    let mut stopped = None;
    for result in results {
        stopped = stopped.or(result?);
    }
    Ok(stopped)
}

/// Runs one cell in a process of its own on a device.
fn child(
    program: &Path,
    run: &Planned,
    device: &str,
    options: &ExecuteOptions,
) -> Result<Option<i32>, IsolateError> {
    let settings = settings_file(run)?;
    let failed = |problem: String| IsolateError::Child {
        run: run.name.clone(),
        problem,
    };
    let mut command = Command::new(program);
    command
        .args(["train", "--quiet", "--config"])
        .arg(&settings)
        .args(["--set", &format!("train.device={device}")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        // A signal from the keyboard reaches the parent alone, which passes it on once: a second one ends a run at once.
        .process_group(0);
    if device == "cpu" && run.config.train.threads.is_none() && options.devices.len() > 1 {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let each = (cores / options.devices.len()).max(1);
        command.args(["--set", &format!("train.threads={each}")]);
    }
    // SAFETY: between fork and exec only prctl is called, a plain system call that is safe there. It ends the run when
    // its parent dies, so that no two processes ever write one folder.
    unsafe {
        command.pre_exec(
            || match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM as libc::c_ulong) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            },
        );
    }
    let mut process = command.spawn().map_err(io(program, "start"))?;
    let mut said = process.stderr.take();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        if let Some(said) = &mut said {
            let _ = said.read_to_string(&mut text);
        }
        text
    });
    let mut passed_on = false;
    let status = loop {
        if let Some(status) = process.try_wait().map_err(io(program, "wait for"))? {
            break status;
        }
        if !passed_on && requested(options).is_some() {
            terminate(&process);
            passed_on = true;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let text = reader.join().unwrap_or_default();
    match status.code() {
        Some(0) => Ok(None),
        Some(1) => Ok(Some(requested(options).unwrap_or(0))),
        _ if passed_on => Ok(requested(options)),
        _ => Err(failed(format!("on {device}: {status}: {}", text.trim()))),
    }
}

fn terminate(process: &Child) {
    if let Ok(id) = libc::pid_t::try_from(process.id()) {
        // SAFETY: kill takes plain numbers; the process has not been waited for, so its id is still its own.
        unsafe { libc::kill(id, libc::SIGTERM) };
    }
}

/// The settings of a run as a file beside its folder.
fn settings_file(run: &Planned) -> Result<PathBuf, IsolateError> {
    let folder = run.config.output_dir.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).map_err(io(folder, "create"))?;
    let path = folder.join(format!("{}.yaml", run.name));
    let text = run.config.to_yaml().map_err(crate::run::RunError::from)?;
    crate::run::write_atomic(&path, &text)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_cells_apart() {
        let factors = [
            Factor::parse("order={name: fla},{name: fla }x").unwrap(),
            Factor::parse("seeds.data=1..2").unwrap(),
        ];
        let names: Vec<String> = [[0, 0], [1, 0], [0, 1]]
            .iter()
            .map(|l| cell_name(&factors, l))
            .collect();
        assert!(
            names[0].starts_with("order=_name__fla_,seeds.data=1-"),
            "{}",
            names[0]
        );
        assert!(names[0] != names[1] && names[0] != names[2]);
        assert_eq!(cell_name(&factors[1..], &[1]), "seeds.data=2");
        assert_eq!(cell_name(&[], &[]), "only");
    }

    #[test]
    fn settings_that_change_no_result_make_no_other_run() {
        let config = RunConfig::default();
        let mut other = config.clone();
        (other.train.threads, other.loader.workers) = (Some(1), 7);
        assert_eq!(decisive(&config, &[]), decisive(&other, &[]));
        let varied = [Factor::parse("train.threads=1,2").unwrap()];
        let differs = first_difference("", &decisive(&config, &varied), &decisive(&other, &varied));
        assert_eq!(differs.unwrap(), "train.threads is null there, 1 here");
        other.optimizer.lr *= 2.0;
        let differs = first_difference("", &decisive(&config, &[]), &decisive(&other, &[])).unwrap();
        assert!(differs.starts_with("optimizer.lr is"), "{differs}");
    }
}
