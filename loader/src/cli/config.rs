//! `--config FILE.yaml`: the options of a command as data, with nothing dropped silently.
//!
//! ```yaml
//! data:  { cache_dir: tests/data/shakespeare, seq_length: 128 }
//! order: { name: fla, seed: 42 }
//! run:   { world_size: 8, micro_batch_size: 4 }
//! ```
//!
//! Keys are the names of the flags with `_` for `-`. An unknown section or key, a key given twice and a value of
//! the wrong type are refused. A flag on the command line wins over the file, and says so once on stderr.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde_json::Value;

/// Sections a file may have and their keys; the keys of `order` are those of the order named in it.
const SECTIONS: &[(&str, &[&str])] = &[
    (
        "data",
        &[
            "cache_dir",
            "split",
            "column",
            "indices",
            "seq_length",
            "on_ragged",
            "truncate",
            "pad_id",
            "vocab_size",
            "decode_cache",
            "num_samples",
            "data_path",
            "train_data_path",
            "valid_data_path",
            "test_data_path",
            "data_split",
            "data_cache_path",
            "megatron_cache",
            "no_rebuild",
        ],
    ),
    ("order", &[]),
    (
        "run",
        &[
            "world_size",
            "micro_batch_size",
            "gradient_accumulation_steps",
            "epoch",
            "epochs",
            "steps",
            "workers",
            "prefetch",
        ],
    ),
];

/// What a configuration file says, or nothing.
#[derive(Clone, Debug, Default)]
pub struct Config {
    path: PathBuf,
    sections: Vec<(String, Vec<(String, Value)>)>,
    notes: Vec<String>,
}

/// Why a configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be read.
    #[error("{}: cannot read the configuration", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It is not YAML, or a key stands in it twice.
    #[error("{}: {problem}", path.display())]
    Yaml {
        /// The file.
        path: PathBuf,
        /// What and where.
        problem: String,
    },
    /// A section or key that does not exist.
    #[error("{}: unknown key `{key}`{hint} (valid here: {valid})", path.display())]
    UnknownKey {
        /// The file.
        path: PathBuf,
        /// The key, with its section.
        key: String,
        /// The nearest valid one, as a sentence, or nothing.
        hint: String,
        /// All valid ones.
        valid: String,
    },
    /// A value of the wrong type.
    #[error("{}: `{key}`: {problem}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// The key, with its section.
        key: String,
        /// What is wrong.
        problem: String,
    },
}

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// [`ConfigError`] naming file and key.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Io {
            path: path.to_path_buf(),
            source,
        })?;
        Self::parse(path, &text)
    }

    fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let wrong = |problem: String| ConfigError::Yaml {
            path: path.to_path_buf(),
            problem,
        };
        // yaml_serde's own mapping refuses a key given twice; a map of JSON would keep the last one.
        let yaml: serde_yaml::Value = serde_yaml::from_str(text)
            .map_err(|e| wrong(e.to_string().replace("duplicate entry with key", "given twice:")))?;
        Self::from_json(
            path,
            serde_json::to_value(&yaml).map_err(|e| wrong(e.to_string()))?,
        )
    }

    /// Checks a configuration that `path` holds.
    ///
    /// # Errors
    /// [`ConfigError`] naming the key.
    pub fn from_json(path: &Path, value: Value) -> Result<Self, ConfigError> {
        let wrong = |problem: String| ConfigError::Yaml {
            path: path.to_path_buf(),
            problem,
        };
        let Value::Object(sections) = value else {
            return Err(wrong(
                "a configuration is a map with the sections data, order and run".into(),
            ));
        };
        let mut config = Self {
            path: path.to_path_buf(),
            ..Self::default()
        };
        let names: Vec<&str> = SECTIONS.iter().map(|(name, _)| *name).collect();
        for (section, content) in sections {
            let Some((_, keys)) = SECTIONS.iter().find(|(name, _)| *name == section) else {
                // A key at the top level that belongs into a section is the likeliest mistake.
                let owner = SECTIONS.iter().find(|(_, keys)| keys.contains(&section.as_str()));
                let hint = owner.map(|(owner, _)| format!("; did you mean `{owner}: {{ {section}: … }}`?"));
                return Err(config.unknown(&section, &section, &names, hint));
            };
            let options = match content {
                Value::Object(options) => options.into_iter().collect(),
                // `order: sequential` is short for `order: { name: sequential }`.
                Value::String(name) if section == "order" => vec![("name".to_string(), Value::String(name))],
                Value::Null => Vec::new(),
                other => {
                    let problem = format!("expected a map of options, found {other}");
                    return Err(ConfigError::Value {
                        path: config.path,
                        key: section,
                        problem,
                    });
                }
            };
            for (key, _) in options.iter().filter(|_| section != "order") {
                if !keys.contains(&key.as_str()) {
                    return Err(config.unknown(&format!("{section}.{key}"), key, keys, None));
                }
            }
            config.sections.push((section, options));
        }
        Ok(config)
    }

    fn unknown(&self, full: &str, key: &str, valid: &[&str], hint: Option<String>) -> ConfigError {
        let hint = hint
            .or_else(|| nearest(key, valid).map(|n| format!("; did you mean `{n}`?")))
            .unwrap_or_default();
        ConfigError::UnknownKey {
            path: self.path.clone(),
            key: full.to_string(),
            hint,
            valid: valid.join(", "),
        }
    }

    fn value(&self, section: &str, key: &str) -> Option<&Value> {
        let (_, options) = self.sections.iter().find(|(name, _)| name == section)?;
        options
            .iter()
            .find(|(name, _)| name == key)
            .map(|(_, value)| value)
            .filter(|value| !value.is_null())
    }

    /// The value of `section.key`: the flag's where one was given, else the file's.
    ///
    /// # Errors
    /// [`ConfigError::Value`] when the file's value has another type, also where the flag wins.
    pub fn choose<T>(&mut self, section: &str, key: &str, flag: Option<T>) -> Result<Option<T>, ConfigError>
    where
        T: DeserializeOwned + PartialEq + Display,
    {
        let Some(value) = self.value(section, key) else {
            return Ok(flag);
        };
        let filed: T = serde_json::from_value(value.clone()).map_err(|e| ConfigError::Value {
            path: self.path.clone(),
            key: format!("{section}.{key}"),
            problem: e.to_string(),
        })?;
        match flag {
            Some(flag) => {
                if flag != filed {
                    self.note(
                        &format!("--{} {flag}", key.replace('_', "-")),
                        section,
                        key,
                        &filed.to_string(),
                    );
                }
                Ok(Some(flag))
            }
            None => Ok(Some(filed)),
        }
    }

    /// Notes that a flag won over the file.
    pub fn note(&mut self, flag: &str, section: &str, key: &str, filed: &str) {
        self.notes.push(format!(
            "{flag} overrides {section}.{key} = {filed} of {}",
            self.path.display()
        ));
    }

    /// The keys of the `order` section as written, `name` included.
    pub fn order_options(&self) -> Vec<(String, Value)> {
        let order = self.sections.iter().find(|(name, _)| name == "order");
        order.map(|(_, options)| options.clone()).unwrap_or_default()
    }

    /// The file, for error messages; `None` when none was given.
    pub fn path(&self) -> Option<&Path> {
        (!self.path.as_os_str().is_empty()).then_some(self.path.as_path())
    }

    /// Takes the notes on flags that won, each to be shown once.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }
}

/// The candidate most like `word`, `None` when nothing is like it.
pub fn nearest<'a>(word: &str, candidates: &[&'a str]) -> Option<&'a str> {
    let word = word.to_lowercase().replace('-', "_");
    let mut best: Option<(f64, &str)> = None;
    for candidate in candidates {
        let score = strsim::normalized_damerau_levenshtein(&word, candidate);
        if score > 0.5 && best.is_none_or(|(top, _)| score > top) {
            best = Some((score, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(Path::new("run.yaml"), text).map_err(|e| e.to_string())
    }

    #[test]
    fn flags_win_over_the_file_and_say_so() {
        let mut config =
            parse("data: { seq_length: 128 }\nrun: { world_size: 8, workers: 4 }").expect("valid");
        assert_eq!(
            config
                .choose::<u64>("data", "seq_length", None)
                .expect("a number"),
            Some(128)
        );
        assert_eq!(
            config.choose("run", "workers", Some(4u64)).expect("a number"),
            Some(4)
        );
        assert_eq!(
            config.choose("run", "world_size", Some(2u64)).expect("a number"),
            Some(2)
        );
        assert_eq!(config.choose::<u64>("run", "epochs", None).expect("absent"), None);
        assert_eq!(
            config.take_notes(),
            ["--world-size 2 overrides run.world_size = 8 of run.yaml"]
        );
        assert!(config.take_notes().is_empty());
    }

    #[test]
    fn the_order_section_is_handed_on_as_written() {
        let config = parse("order: { name: fla, seed: 18446744073709551615 }").expect("valid");
        let options = config.order_options();
        assert_eq!(
            options,
            [("name".into(), "fla".into()), ("seed".into(), u64::MAX.into())]
        );
        assert_eq!(
            parse("order: sequential").expect("valid").order_options(),
            [("name".into(), "sequential".into())]
        );
        assert!(Config::default().order_options().is_empty());
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for (text, needle) in [
            (
                "data: { seq_lenght: 4 }",
                "unknown key `data.seq_lenght`; did you mean `seq_length`?",
            ),
            (
                "runs: { world_size: 4 }",
                "unknown key `runs`; did you mean `run`?",
            ),
            ("world_size: 4", "did you mean `run: { world_size: … }`?"),
            (
                "run: { world_size: 4, world_size: 4 }",
                "given twice: \"world_size\"",
            ),
            ("run: { world_size: 4 }\nrun: {}", "given twice: \"run\""),
            ("run: 4", "expected a map"),
            ("- 4", "a configuration is a map"),
            ("run: {", "run.yaml: "),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(needle), "{text}: {error}");
        }
        let mut config = parse("run: { world_size: many }").expect("types are checked on use");
        let error = config
            .choose("run", "world_size", Some(3u64))
            .expect_err("a word is no number")
            .to_string();
        assert!(error.contains("`run.world_size`: invalid type"), "{error}");
    }
}
