//! `trainer_state.json`: the `log_history` that a Hugging Face checkpoint carries.

use std::path::Path;

use super::hf_record::{self, Found};
use super::literal::{self, Literal};
use super::{Collected, hf_console, lines};
use crate::compare::log_error::LogError;

/// Bytes read at most.
const LARGEST: u64 = 1 << 28;

/// Reads the history.
pub(super) fn read(path: &Path) -> Result<Collected, LogError> {
    let text = lines::whole(path, LARGEST)?;
    let wrong = |problem: String| LogError::File {
        path: path.to_owned(),
        problem,
    };
    let (state, _) = literal::parse(&text).map_err(|problem| wrong(format!("not JSON: {problem}")))?;
    let Some(Literal::List(history)) = state.get("log_history") else {
        return Err(wrong(
            "no list \"log_history\": not a trainer_state.json".to_owned(),
        ));
    };
    let mut records = Vec::new();
    let mut all = Collected::default();
    for (i, dict) in history.iter().enumerate() {
        let number = i as u64 + 1;
        let at = |(field, problem): (String, String)| LogError::Line {
            path: path.to_owned(),
            line: number,
            field: format!("log_history: {field}"),
            problem,
        };
        match hf_record::look_at(dict).map_err(at)? {
            Found::Step(record) => {
                let Some(step) = record.step else {
                    return Err(at(("step".to_owned(), "is missing".to_owned())));
                };
                records.push((number, step, record));
            }
            Found::End { seconds, steps_per_s } => {
                let known = state
                    .get("global_step")
                    .and_then(Literal::number)
                    .map(|n| n.value as u64);
                all.whole_run = hf_console::sum_up(seconds, steps_per_s, known.as_slice());
            }
            Found::Other => {}
        }
    }
    hf_console::put(&mut all, records);
    Ok(all)
}
