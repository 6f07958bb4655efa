//! What is varied: a settings key and the values it takes.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::IsolateError;
use crate::config::{self, Composed, Origin};

/// Most values of one factor.
const MOST_LEVELS: usize = 10_000;

/// One factor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Factor {
    /// Settings key: `order`, `seeds.data`, `model.norm_eps`, ….
    pub key: String,
    /// Its values, as `--set` takes them. The first one is what the others are held against.
    pub levels: Vec<String>,
}

impl Factor {
    /// Reads `KEY=v1,v2,…` or `KEY=1..3` (both ends included). Commas inside brackets and quotes belong to the value.
    ///
    /// # Errors
    /// [`IsolateError::Vary`].
    pub fn parse(text: &str) -> Result<Self, IsolateError> {
        let bad = |problem: String| IsolateError::Vary {
            text: text.to_owned(),
            problem,
        };
        let (key, values) = text
            .split_once('=')
            .ok_or_else(|| bad("expected KEY=value,value or KEY=1..3".into()))?;
        let key = key.trim();
        if key.is_empty() || key.split('.').any(str::is_empty) {
            return Err(bad("names no settings key".into()));
        }
        owner(key).map_err(bad)?;
        let levels = match range(values) {
            Some((first, last)) => {
                let count = last
                    .checked_sub(first)
                    .filter(|n| (0..MOST_LEVELS as i64).contains(n));
                if count.is_none() {
                    return Err(bad(format!(
                        "{values} holds none or more than {MOST_LEVELS} values"
                    )));
                }
                (first..=last).map(|v| v.to_string()).collect()
            }
            None => split(values).map_err(bad)?,
        };
        if levels.len() > MOST_LEVELS {
            return Err(bad(format!("more than {MOST_LEVELS} values")));
        }
        if levels.len() < 2 {
            return Err(bad(format!(
                "one value varies nothing; use --set {key}={} to fix it",
                levels.first().map_or("", String::as_str)
            )));
        }
        for (i, level) in levels.iter().enumerate() {
            if levels[..i].contains(level) {
                return Err(bad(format!("the value {level} is given twice")));
            }
        }
        Ok(Factor {
            key: key.to_owned(),
            levels,
        })
    }

    /// A seed: its values are draws, and repeat what another factor is measured by.
    pub fn is_seed(&self) -> bool {
        self.key.starts_with("seeds.")
    }

    /// `KEY=value`, as `--set` takes it.
    pub fn set(&self, level: usize) -> String {
        format!("{}={}", self.key, self.levels[level])
    }
}

fn range(text: &str) -> Option<(i64, i64)> {
    let (first, last) = text.trim().split_once("..")?;
    Some((first.trim().parse().ok()?, last.trim().parse().ok()?))
}

/// Cuts at commas that lie in no bracket or quote.
fn split(text: &str) -> Result<Vec<String>, String> {
    let (mut out, mut current, mut depth) = (Vec::new(), String::new(), 0usize);
    let mut quote = None;
    for c in text.chars() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '{' | '[') => depth += 1,
            (None, '}' | ']') => {
                depth = depth
                    .checked_sub(1)
                    .ok_or("a bracket closes that was not opened")?
            }
            (None, ',') if depth == 0 => {
                out.push(std::mem::take(&mut current));
                continue;
            }
            _ => {}
        }
        current.push(c);
    }
    if depth > 0 || quote.is_some() {
        return Err("a bracket or quote is not closed".into());
    }
    out.push(current);
    let out: Vec<String> = out.iter().map(|v| v.trim().to_owned()).collect();
    if out.iter().any(String::is_empty) {
        return Err("a value is empty".into());
    }
    Ok(out)
}

/// What a run is made of, each with a hash of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// The stored rows.
    Corpus,
    /// How rows become samples: length, padding, label shift, documents.
    Samples,
    /// Which row every place of the run consumes.
    Order,
    /// Initial weights.
    Init,
    /// The network.
    Model,
    /// Ranks, micro-batch, accumulation.
    Batch,
    /// Optimizer, schedule, steps.
    Optimizer,
    /// Device, arithmetic, threads: what should change nothing but the last bits.
    Execution,
}

impl Part {
    /// All of them.
    pub const ALL: [Part; 8] = [
        Part::Corpus,
        Part::Samples,
        Part::Order,
        Part::Init,
        Part::Model,
        Part::Batch,
        Part::Optimizer,
        Part::Execution,
    ];

    /// As in reports and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Part::Corpus => "corpus",
            Part::Samples => "samples",
            Part::Order => "order",
            Part::Init => "init",
            Part::Model => "model",
            Part::Batch => "batch",
            Part::Optimizer => "optimizer",
            Part::Execution => "execution",
        }
    }
}

/// The part of a run that a settings key belongs to.
///
/// # Errors
/// Why the key is no factor, in words.
pub fn owner(key: &str) -> Result<Part, String> {
    let (section, option) = key.split_once('.').unwrap_or((key, ""));
    Ok(match (section, option) {
        ("order", _) | ("seeds", "data") => Part::Order,
        ("init", _) | ("seeds", "init") => Part::Init,
        ("model", _) => Part::Model,
        ("data", "cache_dir" | "split" | "column" | "indices") => Part::Corpus,
        ("data", _) | ("loss", "shift_in_model") => Part::Samples,
        ("batch", "device_micro_batch_size") | ("loss", "chunks") | ("loader", _) => Part::Execution,
        ("batch", _) => Part::Batch,
        ("optimizer" | "schedule", _) => Part::Optimizer,
        ("train", "steps" | "epochs") => {
            return Err(
                "all runs of a design have the same steps: curves of other lengths are no comparison".into(),
            );
        }
        ("train", _) => Part::Execution,
        ("output_dir" | "eval" | "checkpoint" | "log", _) => {
            return Err(format!("{section} decides nothing that a run learns"));
        }
        _ => {
            return Err(format!(
                "there is no setting '{key}' to vary; sections: batch, data, init, loader, loss, model, optimizer, order, \
                 schedule, seeds, train"
            ));
        }
    })
}

/// Settings of the runs of a design: a base and what is set over it.
pub struct Base<'a> {
    /// File.
    pub config: Option<PathBuf>,
    /// `--set` pairs.
    pub sets: Vec<String>,
    /// Environment.
    pub environment: &'a dyn Fn(&str) -> Option<String>,
}

impl Base<'_> {
    /// The settings themselves, nothing varied.
    ///
    /// # Errors
    /// [`IsolateError::Config`].
    pub fn load(&self) -> Result<Composed, IsolateError> {
        Ok(config::load(
            self.config.as_deref(),
            &self.sets,
            self.environment,
        )?)
    }

    /// Settings of one cell: one level of each factor.
    ///
    /// # Errors
    /// [`IsolateError::Config`], or a factor that another layer overrides.
    pub fn cell(&self, factors: &[Factor], levels: &[usize]) -> Result<Composed, IsolateError> {
        let mut sets = self.sets.clone();
        sets.extend(factors.iter().zip(levels).map(|(f, &l)| f.set(l)));
        let composed = config::load(self.config.as_deref(), &sets, self.environment)?;
        for factor in factors {
            // A file of its own, whose keys come from it.
            if factor.key == "model.config" {
                continue;
            }
            let under = format!("{}.", factor.key);
            let own: Vec<&Origin> = composed
                .origins
                .iter()
                .filter(|(key, _)| **key == factor.key || key.starts_with(&under))
                .map(|(_, origin)| origin)
                .collect();
            let environment =
                |o: &&&Origin| matches!(o, Origin::Legacy { place, .. } if place == "environment");
            let other = own.first().filter(|_| !own.contains(&&Origin::Set));
            if let Some(origin) = own.iter().find(environment).or(other) {
                return Err(IsolateError::Vary {
                    text: factor.key.clone(),
                    problem: format!("{origin} decides this setting whatever is varied; take it away"),
                });
            }
        }
        Ok(composed)
    }
}

/// Refuses factors that share a setting.
///
/// # Errors
/// [`IsolateError::Vary`].
pub fn check_apart(factors: &[Factor]) -> Result<(), IsolateError> {
    for (i, a) in factors.iter().enumerate() {
        for b in &factors[..i] {
            let within = |a: &str, b: &str| a == b || a.starts_with(&format!("{b}."));
            let whole_model = |x: &str, y: &str| x == "model.config" && y.starts_with("model.");
            if within(&a.key, &b.key)
                || within(&b.key, &a.key)
                || whole_model(&a.key, &b.key)
                || whole_model(&b.key, &a.key)
            {
                return Err(IsolateError::Vary {
                    text: format!("{} and {}", b.key, a.key),
                    problem:
                        "set the same thing; give the combinations as values of one factor, for example \
                              order={name: fla, shuffle: false},megatron"
                            .into(),
                });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_lists_or_ranges() {
        let levels = |text: &str| Factor::parse(text).map(|f| f.levels);
        assert_eq!(levels("seeds.data=1..3").unwrap(), ["1", "2", "3"]);
        assert_eq!(levels("seeds.data=-1..0").unwrap(), ["-1", "0"]);
        assert_eq!(levels("order=fla, megatron").unwrap(), ["fla", "megatron"]);
        assert_eq!(
            levels("order={name: fla, shuffle: false},megatron").unwrap(),
            ["{name: fla, shuffle: false}", "megatron"]
        );
        for (bad, why) in [
            ("order", "expected KEY"),
            ("order=fla", "one value varies nothing"),
            ("seeds.data=3..1", "holds none"),
            ("seeds.data=0..9999999", "more than"),
            ("seeds.data=1,1", "given twice"),
            ("order={a,b", "not closed"),
            ("order=a,,b", "is empty"),
            ("train.steps=1,2", "the same steps"),
            ("output_dir=a,b", "decides nothing"),
            ("nothing.at=1,2", "no setting"),
        ] {
            let error = levels(bad).unwrap_err().to_string();
            assert!(error.contains(why), "{bad}: {error}");
        }
    }

    #[test]
    fn factors_that_share_a_setting_are_refused() {
        let factors = |a: &str, b: &str| [Factor::parse(a).unwrap(), Factor::parse(b).unwrap()];
        assert!(check_apart(&factors("order=fla,megatron", "order.shuffle=true,false")).is_err());
        assert!(check_apart(&factors("order=fla,megatron", "seeds.data=1..2")).is_ok());
    }
}
