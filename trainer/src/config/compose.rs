//! Layers of settings: YAML files that extend others, `--set`, the environment; and where each value came from.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::model_json::read_model_json;
use super::origin::{Composed, Origin};
use super::{RunConfig, SettingError, legacy};

/// Why settings cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file.
    #[error("{}: {problem}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// A key no setting has.
    #[error("{origin}: there is no setting '{key}'{hint}")]
    UnknownKey {
        /// Where it was given.
        origin: String,
        /// The key in full.
        key: String,
        /// The nearest one, as a sentence, or the keys there are.
        hint: String,
    },
    /// A value of another type.
    #[error("{origin}: {key}: {problem}")]
    Value {
        /// Where it was given.
        origin: String,
        /// The key in full.
        key: String,
        /// What is wrong.
        problem: String,
    },
    /// `--set` without a key or a value.
    #[error("--set {0}: expected key=value, for example --set optimizer.lr=1e-3")]
    Set(String),
    /// A setting that does not fit the others.
    #[error("{origin}: {error}")]
    Setting {
        /// Where the value came from.
        origin: String,
        /// What is wrong.
        error: SettingError,
    },
}

pub(super) fn join(at: &str, key: &str) -> String {
    if at.is_empty() {
        key.to_owned()
    } else {
        format!("{at}.{key}")
    }
}

/// Reads settings from a file (or from the defaults alone), `--set` pairs and environment variables.
///
/// Relative paths inside a file (`extends`, `model.config`) are taken from the folder of that file; data and output
/// folders from the working folder.
///
/// # Errors
/// [`ConfigError`], which names the place and, for a key that does not exist, the nearest one that does.
pub fn load(
    file: Option<&Path>,
    sets: &[String],
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<Composed, ConfigError> {
    let mut layers = Layers::new();
    if let Some(file) = file {
        layers.file(file, &mut Vec::new())?;
    }
    for set in sets {
        layers.set(set)?;
    }
    for (variable, key, value) in legacy::from_environment(environment) {
        let origin = Origin::Legacy {
            name: variable.to_owned(),
            place: "environment".into(),
        };
        let value = value.map_err(|problem| ConfigError::Value {
            origin: "environment".into(),
            key: variable.to_owned(),
            problem,
        })?;
        layers.legacy_key(key, value, origin)?;
    }
    layers.finish()
}

struct Layers {
    schema: Value,
    tree: Map<String, Value>,
    origins: BTreeMap<String, Origin>,
    /// Legacy keys in the order given; the last one of a name wins.
    legacy: Vec<(&'static legacy::Knob, Value, Origin)>,
}

impl Layers {
    fn new() -> Self {
        Layers {
            schema: serde_json::to_value(RunConfig::default()).unwrap_or_default(),
            tree: Map::new(),
            origins: BTreeMap::new(),
            legacy: Vec::new(),
        }
    }

    fn file(&mut self, path: &Path, open: &mut Vec<PathBuf>) -> Result<(), ConfigError> {
        let fail = |problem: String| ConfigError::File {
            path: path.to_owned(),
            problem,
        };
        let real = path
            .canonicalize()
            .map_err(|e| fail(format!("cannot read: {e}")))?;
        if open.contains(&real) {
            return Err(fail("extends itself".into()));
        }
        let text = std::fs::read_to_string(path).map_err(|e| fail(format!("cannot read: {e}")))?;
        let layer = parse_mapping(&text).map_err(fail)?;
        open.push(real);
        let folder = path.parent().unwrap_or(Path::new(""));
        let mut layer = layer;
        match layer.remove("extends") {
            None => {}
            Some(Value::String(one)) => self.file(&folder.join(one), open)?,
            Some(Value::Array(list)) => {
                for entry in list {
                    let Value::String(entry) = entry else {
                        return Err(fail(format!("extends: {entry} is not a file name")));
                    };
                    self.file(&folder.join(entry), open)?;
                }
            }
            Some(other) => {
                return Err(fail(format!(
                    "extends: {other} is not a file name or a list of them"
                )));
            }
        }
        open.pop();
        self.merge(layer, &Origin::File(path.to_owned()), folder)
    }

    fn set(&mut self, pair: &str) -> Result<(), ConfigError> {
        let bad = || ConfigError::Set(pair.to_owned());
        let (key, text) = pair.split_once('=').ok_or_else(bad)?;
        let key = key.trim();
        if key.is_empty() || key.split('.').any(str::is_empty) {
            return Err(bad());
        }
        let value = if text.trim().is_empty() {
            return Err(bad());
        } else {
            parse_yaml(text).map_err(|problem| ConfigError::Value {
                origin: "--set".into(),
                key: key.to_owned(),
                problem,
            })?
        };
        let layer = key.rsplit('.').fold(value, |inner, part| {
            Value::Object(Map::from_iter([(part.to_owned(), inner)]))
        });
        match layer {
            Value::Object(layer) => self.merge(layer, &Origin::Set, Path::new("")),
            _ => Err(bad()),
        }
    }

    fn merge(
        &mut self,
        layer: Map<String, Value>,
        origin: &Origin,
        folder: &Path,
    ) -> Result<(), ConfigError> {
        for (key, value) in layer {
            if let Some(knob) = legacy::find(&key) {
                self.legacy_key(
                    knob,
                    value,
                    Origin::Legacy {
                        name: key.clone(),
                        place: origin.to_string(),
                    },
                )?;
                continue;
            }
            let schema = match self.schema.get(&key) {
                Some(schema) => schema.clone(),
                None => {
                    let mut names: Vec<&str> = self
                        .schema
                        .as_object()
                        .into_iter()
                        .flatten()
                        .map(|(k, _)| k.as_str())
                        .collect();
                    legacy::names().for_each(|name| names.push(name));
                    return Err(unknown(origin, &key, &key, names.into_iter()));
                }
            };
            let value = match (key.as_str(), value) {
                // A name alone is an order or a schedule with its defaults.
                ("order" | "schedule", Value::String(name)) => {
                    Value::Object(Map::from_iter([("name".to_owned(), Value::String(name))]))
                }
                (_, value) => value,
            };
            let Value::Object(mut inner) = value else {
                if schema.is_object() {
                    return Err(ConfigError::Value {
                        origin: origin.to_string(),
                        key,
                        problem: format!("{value} is not a section; it has keys of its own"),
                    });
                }
                self.put(&[&key], value, origin);
                continue;
            };
            if !schema.is_object() {
                return Err(ConfigError::Value {
                    origin: origin.to_string(),
                    key,
                    problem: "is a single value, not a section".into(),
                });
            }
            // Options of one order or schedule mean nothing to another: naming one starts it anew.
            if matches!(key.as_str(), "order" | "schedule") && inner.contains_key("name") {
                self.tree.remove(&key);
                self.origins
                    .retain(|k, _| k != &key && !k.starts_with(&format!("{key}.")));
            }
            if key == "model"
                && let Some(file) = inner.remove("config")
            {
                self.model_json(&file, origin, folder)?;
            }
            for (option, value) in inner {
                if key != "order" && schema.get(&option).is_none() {
                    let full = join(&key, &option);
                    let names = schema.as_object().into_iter().flatten().map(|(k, _)| k.as_str());
                    return Err(unknown(origin, &full, &option, names));
                }
                self.put(&[&key, &option], value, origin);
            }
        }
        Ok(())
    }

    /// Merges a Hugging Face `config.json`. Its keys for inference and book-keeping are known and left out.
    fn model_json(&mut self, file: &Value, origin: &Origin, folder: &Path) -> Result<(), ConfigError> {
        let Value::String(name) = file else {
            return Err(ConfigError::Value {
                origin: origin.to_string(),
                key: "model.config".into(),
                problem: format!("{file} is not a file name"),
            });
        };
        let path = folder.join(name);
        let origin = Origin::File(path.clone());
        let keys = read_model_json(&path)?;
        let schema = self.schema["model"].clone();
        for (key, value) in keys {
            if schema.get(&key).is_none() {
                let names = schema.as_object().into_iter().flatten().map(|(k, _)| k.as_str());
                return Err(unknown(&origin, &key, &key, names));
            }
            self.put(&["model", &key], value, &origin);
        }
        Ok(())
    }

    fn put(&mut self, path: &[&str], value: Value, origin: &Origin) {
        let (last, sections) = match path.split_last() {
            Some(split) => split,
            None => return,
        };
        let mut at = &mut self.tree;
        for section in sections {
            let entry = at
                .entry((*section).to_owned())
                .or_insert_with(|| Value::Object(Map::new()));
            match entry {
                Value::Object(map) => at = map,
                _ => return,
            }
        }
        at.insert((*last).to_owned(), value);
        self.origins.insert(path.join("."), origin.clone());
    }

    fn legacy_key(
        &mut self,
        knob: &'static legacy::Knob,
        value: Value,
        origin: Origin,
    ) -> Result<(), ConfigError> {
        let value = knob.check(value).map_err(|problem| ConfigError::Value {
            origin: origin.to_string(),
            key: knob.name.to_owned(),
            problem,
        })?;
        self.legacy.retain(|(other, _, _)| other.name != knob.name);
        self.legacy.push((knob, value, origin));
        Ok(())
    }

    fn finish(mut self) -> Result<Composed, ConfigError> {
        let given: Vec<(&'static legacy::Knob, Value)> =
            self.legacy.iter().map(|(k, v, _)| (*k, v.clone())).collect();
        let mut notes = Vec::new();
        let legacy = std::mem::take(&mut self.legacy);
        for (knob, value, origin) in legacy {
            let mut effect = knob.effect(&value, &given);
            for (key, value) in std::mem::take(&mut effect.settings) {
                let (section, option) = key.split_once('.').unwrap_or((key, ""));
                let now = self.tree.get(section).and_then(|s| s.get(option));
                if now == Some(&value) {
                    continue;
                }
                if let (Some(other), Some(now)) = (self.origins.get(key), now) {
                    match origin.rank().cmp(&other.rank()) {
                        Ordering::Greater => {}
                        Ordering::Less => {
                            effect.note = format!("overridden: {other} gives {key} = {now}");
                            continue;
                        }
                        Ordering::Equal => {
                            return Err(ConfigError::Value {
                                origin: origin.to_string(),
                                key: knob.name.to_owned(),
                                problem: format!("asks for {key} = {value}, but {other} gives {now}"),
                            });
                        }
                    }
                }
                if key == "order.name" {
                    self.tree.remove("order");
                    self.origins.retain(|k, _| !k.starts_with("order."));
                }
                let path: Vec<&str> = key.split('.').collect();
                self.put(&path, value, &origin);
            }
            notes.push(format!("{}: {}", origin, effect.note));
        }
        let Layers { tree, origins, .. } = self;
        let config: RunConfig = serde_path_to_error::deserialize(Value::Object(tree)).map_err(|e| {
            let key = e.path().to_string();
            let place = Composed {
                config: RunConfig::default(),
                origins: origins.clone(),
                notes: Vec::new(),
            };
            ConfigError::Value {
                origin: place.origin(&key).to_string(),
                key,
                problem: e.into_inner().to_string(),
            }
        })?;
        let composed = Composed {
            config,
            origins,
            notes,
        };
        composed.config.validate().map_err(|error| ConfigError::Setting {
            origin: composed.origin(&error.key).to_string(),
            error,
        })?;
        Ok(composed)
    }
}

fn unknown<'a>(origin: &Origin, full: &str, key: &str, names: impl Iterator<Item = &'a str>) -> ConfigError {
    let names: Vec<&str> = names.collect();
    let nearest = names
        .iter()
        .map(|name| (strsim::jaro_winkler(key, name), *name))
        .filter(|(likeness, _)| *likeness > 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(a.1)));
    let hint = match nearest {
        Some((_, name)) => format!("; did you mean '{name}'?"),
        None => format!("; there are: {}", names.join(", ")),
    };
    ConfigError::UnknownKey {
        origin: origin.to_string(),
        key: full.to_owned(),
        hint,
    }
}

fn parse_yaml(text: &str) -> Result<Value, String> {
    let yaml: serde_yaml::Value = serde_yaml::from_str(text).map_err(|e| e.to_string())?;
    serde_json::to_value(yaml).map_err(|e| e.to_string())
}

fn parse_mapping(text: &str) -> Result<Map<String, Value>, String> {
    match parse_yaml(text)? {
        Value::Object(map) => Ok(map),
        Value::Null => Ok(Map::new()),
        _ => Err("is not a mapping of settings".into()),
    }
}
