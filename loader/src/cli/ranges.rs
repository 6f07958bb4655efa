//! Values that flags take: ranges of steps, and which ranks to write.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, Visitor};

/// A half-open range of optimizer steps as a user writes it: `a..b` (b not included), `a..=b`, `a..`, `..b`, or
/// `a` for one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepRange {
    /// First step.
    pub start: u64,
    /// First step that is not part of it; `None` runs to the end.
    pub end: Option<u64>,
}

impl StepRange {
    /// Every step.
    pub const ALL: StepRange = StepRange { start: 0, end: None };
}

impl FromStr for StepRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let usage =
            || format!("`{text}` is not a range of steps: write 0..20 (20 not included), 5.., ..20 or 7");
        let number = |part: &str| part.trim().parse::<u64>().map_err(|_| usage());
        let next = |last: u64| last.checked_add(1).ok_or_else(usage);
        let (start, end) = match text.split_once("..") {
            None => {
                let step = number(text)?;
                (step, Some(next(step)?))
            }
            Some((start, end)) => {
                let start = if start.trim().is_empty() {
                    0
                } else {
                    number(start)?
                };
                let end = match end.trim() {
                    "" => None,
                    end => Some(match end.strip_prefix('=') {
                        Some(last) => next(number(last)?)?,
                        None => number(end)?,
                    }),
                };
                (start, end)
            }
        };
        if end.is_some_and(|end| end <= start) {
            return Err(format!(
                "the range of steps {text} is empty: its end is not included and must be larger"
            ));
        }
        Ok(Self { start, end })
    }
}

impl fmt::Display for StepRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.end {
            Some(end) => write!(f, "{}..{end}", self.start),
            None => write!(f, "{}..", self.start),
        }
    }
}

impl<'de> Deserialize<'de> for StepRange {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct RangeVisitor;
        impl Visitor<'_> for RangeVisitor {
            type Value = StepRange;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a range of steps like 0..20")
            }

            fn visit_u64<E: de::Error>(self, step: u64) -> Result<StepRange, E> {
                self.visit_str(&step.to_string())
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<StepRange, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(RangeVisitor)
    }
}

/// Which ranks are written: one, a list, or all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ranks {
    /// Every rank.
    All,
    /// These, ascending.
    Some(Vec<u64>),
}

impl Ranks {
    /// The ranks, given the number there are.
    ///
    /// # Errors
    /// A sentence naming the first rank that does not exist.
    pub fn resolve(&self, world_size: u64) -> Result<Vec<u64>, String> {
        match self {
            Ranks::All => Ok((0..world_size).collect()),
            Ranks::Some(ranks) => match ranks.iter().find(|&&rank| rank >= world_size) {
                Some(rank) => Err(format!(
                    "rank {rank} does not exist: a world of {world_size} has ranks 0 to {}",
                    world_size.saturating_sub(1)
                )),
                None => Ok(ranks.clone()),
            },
        }
    }
}

impl FromStr for Ranks {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Ranks::All);
        }
        let ranks: Result<Vec<u64>, _> = text.split(',').map(|rank| rank.trim().parse::<u64>()).collect();
        let mut ranks =
            ranks.map_err(|_| format!("`{text}` is no rank: write a number, a list like 0,2, or all"))?;
        ranks.sort_unstable();
        ranks.dedup();
        Ok(Ranks::Some(ranks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_half_open() {
        let range = |text: &str| text.parse::<StepRange>();
        assert_eq!(
            range("0..20"),
            Ok(StepRange {
                start: 0,
                end: Some(20)
            })
        );
        assert_eq!(range("5.."), Ok(StepRange { start: 5, end: None }));
        assert_eq!(
            range("..7"),
            Ok(StepRange {
                start: 0,
                end: Some(7)
            })
        );
        assert_eq!(
            range("3..=4"),
            Ok(StepRange {
                start: 3,
                end: Some(5)
            })
        );
        assert_eq!(
            range("9"),
            Ok(StepRange {
                start: 9,
                end: Some(10)
            })
        );
        assert_eq!(range(".."), Ok(StepRange::ALL));
        for bad in [
            "",
            "a",
            "1..b",
            "-1..2",
            "3..3",
            "4..2",
            "18446744073709551615",
            "0..=18446744073709551615",
        ] {
            assert!(range(bad).is_err(), "{bad}");
        }
        assert_eq!(
            StepRange {
                start: 2,
                end: Some(3)
            }
            .to_string(),
            "2..3"
        );
        let filed = |value: serde_json::Value| serde_json::from_value::<StepRange>(value).ok();
        assert_eq!(filed("0..20".into()), range("0..20").ok());
        assert_eq!(filed(9.into()), range("9").ok());
        assert_eq!(filed(true.into()), None);
    }

    #[test]
    fn ranks_are_checked_against_the_world() {
        let ranks = |text: &str| text.parse::<Ranks>();
        assert_eq!(ranks("all").and_then(|r| r.resolve(3)), Ok(vec![0, 1, 2]));
        assert_eq!(ranks("2,0,2").and_then(|r| r.resolve(3)), Ok(vec![0, 2]));
        assert!(
            ranks("3")
                .and_then(|r| r.resolve(3))
                .is_err_and(|e| e.contains("ranks 0 to 2"))
        );
        assert!(ranks("x").is_err());
        assert!(ranks("-1").is_err());
    }
}
