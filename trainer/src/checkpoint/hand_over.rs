//! A checkpoint that goes on over other data: weights and moments of one, position and data of another.

use std::path::{Path, PathBuf};

use ceteris_loader::pipeline::LoaderState;

use super::{CheckpointError, Failure, TrainerState, file, folder_name, io, json, verify, write_points};

/// Writes `folder/step-N` with the weights, moments and `config.json` of the checkpoint at `from` and the positions given.
///
/// # Errors
/// [`CheckpointError`]: `from` is not whole, or `folder/step-N` is there already.
pub fn hand_over(
    from: &Path,
    folder: &Path,
    state: &TrainerState,
    loader: &LoaderState,
) -> Result<PathBuf, CheckpointError> {
    verify::verify(from)?;
    std::fs::create_dir_all(folder).map_err(io(folder, "create"))?;
    let name = folder_name(state.step);
    let (temporary, target) = (folder.join(format!(".tmp-{name}")), folder.join(&name));
    if target.exists() {
        return Err(CheckpointError::Invalid {
            path: target,
            problem: "is there already".into(),
        });
    }
    if temporary.exists() {
        write_points::remove_folder(&temporary).map_err(io(&temporary, "remove"))?;
    }
    std::fs::create_dir(&temporary).map_err(io(&temporary, "create"))?;
    let mut sums = Vec::new();
    for name in ["model.safetensors", "optimizer.safetensors", "config.json"] {
        file(&temporary, name, &mut sums, |out| {
            let mut stored = std::fs::File::open(from.join(name))?;
            std::io::copy(&mut stored, out)?;
            Ok(())
        })?;
    }
    for (name, value) in [
        ("trainer_state.json", serde_json::to_value(state)),
        ("loader.json", serde_json::to_value(loader)),
    ] {
        file(&temporary, name, &mut sums, |out| {
            json(out, &value?).map_err(Failure::Io)
        })?;
    }
    verify::write_checksums(&temporary, sums)?;
    write_points::sync_folder(&temporary).map_err(io(&temporary, "sync"))?;
    write_points::rename(&temporary, &target).map_err(io(&target, "rename to"))?;
    write_points::sync_folder(folder).map_err(io(folder, "sync"))?;
    Ok(target)
}
