//! Settings together with where each of their values came from.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde_json::Value;

use super::RunConfig;
use super::compose::join;

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nobody gave it.
    Default,
    /// A file.
    File(PathBuf),
    /// `--set`.
    Set,
    /// A key of another stack, with where that came from.
    Legacy {
        /// The key or variable.
        name: String,
        /// Where it was given.
        place: String,
    },
}

impl Origin {
    /// Layers of a higher rank win.
    pub(super) fn rank(&self) -> u8 {
        match self {
            Origin::Default => 0,
            Origin::File(_) => 1,
            Origin::Set => 2,
            Origin::Legacy { place, .. } => match place.as_str() {
                "environment" => 3,
                "--set" => 2,
                _ => 1,
            },
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File(path) => write!(f, "{}", path.display()),
            Origin::Set => f.write_str("--set"),
            Origin::Legacy { name, place } => write!(f, "{name} ({place})"),
        }
    }
}

/// Settings with their origins.
#[derive(Clone, Debug)]
pub struct Composed {
    /// The settings.
    pub config: RunConfig,
    /// Origin of each leaf that somebody gave, by full key.
    pub origins: BTreeMap<String, Origin>,
    /// What legacy keys were taken for, one sentence each.
    pub notes: Vec<String>,
}

impl Composed {
    /// Every setting with its value and where it came from, one line each.
    pub fn table(&self) -> String {
        let tree = serde_json::to_value(&self.config).unwrap_or_default();
        let mut rows = Vec::new();
        leaves("", &tree, &mut rows);
        let wide = rows.iter().map(|(k, _)| k.len()).max().unwrap_or(0);
        let broad = rows.iter().map(|(_, v)| v.len().min(40)).max().unwrap_or(0);
        let mut out = String::new();
        for (key, value) in rows {
            out.push_str(&format!("{key:wide$}  {value:broad$}  {}\n", self.origin(&key)));
        }
        out
    }

    /// Where the value of a key, or of the section it lies in, came from.
    pub fn origin(&self, key: &str) -> Origin {
        let mut at = key;
        loop {
            if let Some(origin) = self.origins.get(at) {
                return origin.clone();
            }
            match at.rsplit_once('.') {
                Some((section, _)) => at = section,
                None => return Origin::Default,
            }
        }
    }
}

fn leaves(at: &str, value: &Value, out: &mut Vec<(String, String)>) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (key, value) in map {
                leaves(&join(at, key), value, out);
            }
        }
        other => out.push((at.to_owned(), other.to_string())),
    }
}
