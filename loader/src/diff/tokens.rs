//! How two samples' tokens differ, and which convention (first or last token, shift, begin and end tokens) explains it
//! everywhere.

use serde::Serialize;

use super::keys::Cut;

/// Ids shown before and behind the first difference.
const WINDOW: usize = 4;

/// How the tokens of `b` differ from those of `a`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Relation {
    /// Not at all.
    Same,
    /// In the last token only.
    LastToken,
    /// In the first token only.
    FirstToken,
    /// `b` is `a` without its first token, then one more: it runs one token ahead.
    OneAhead,
    /// `b` is one token, then `a` without its last one: it runs one token behind.
    OneBehind,
    /// `b` has one more token in front (a begin token).
    FrontAdded,
    /// `b` lacks the first token.
    FrontMissing,
    /// `b` has one more token at the end (an end token, or the extra token of shifted labels).
    EndAdded,
    /// `b` lacks the last token.
    EndMissing,
    /// `b` has one more token at both ends.
    BothAdded,
    /// `b` lacks the first and the last token.
    BothMissing,
    /// Most tokens agree around a stretch that differs: the same text, encoded otherwise.
    Inside,
    /// Little in common.
    Unrelated,
}

/// Relations that are conventions, with the parts of both samples that are equal under each, the plainest first.
pub const CONVENTIONS: &[(Relation, Cut, Cut)] = &[
    (Relation::LastToken, without_last, without_last),
    (Relation::FirstToken, without_first, without_first),
    (Relation::FrontAdded, all, without_first),
    (Relation::FrontMissing, without_first, all),
    (Relation::EndAdded, all, without_last),
    (Relation::EndMissing, without_last, all),
    (Relation::OneAhead, without_first, without_last),
    (Relation::OneBehind, without_last, without_first),
    (Relation::BothAdded, all, without_both),
    (Relation::BothMissing, without_both, all),
];

fn all(tokens: &[i32]) -> &[i32] {
    tokens
}

fn without_first(tokens: &[i32]) -> &[i32] {
    tokens.get(1..).unwrap_or(&[])
}

fn without_last(tokens: &[i32]) -> &[i32] {
    tokens.split_last().map_or(&[], |(_, rest)| rest)
}

fn without_both(tokens: &[i32]) -> &[i32] {
    without_last(without_first(tokens))
}

impl Relation {
    /// Between two samples.
    pub fn between(a: &[i32], b: &[i32]) -> Self {
        if a == b {
            return Self::Same;
        }
        for &(relation, cut_a, cut_b) in CONVENTIONS {
            if cut_a(a) == cut_b(b) && !cut_a(a).is_empty() {
                return relation;
            }
        }
        let front = a.iter().zip(b).take_while(|(x, y)| x == y).count();
        let back = a[front.min(a.len())..]
            .iter()
            .rev()
            .zip(b[front.min(b.len())..].iter().rev())
            .take_while(|(x, y)| x == y)
            .count();
        let longest = a.len().max(b.len());
        if 2 * (front + back) >= longest || shared(a, b) * 2 >= longest {
            Self::Inside
        } else {
            Self::Unrelated
        }
    }

    /// What it says of the second side, as the end of a sentence; `None` where it is no convention.
    pub fn in_words(self) -> Option<&'static str> {
        Some(match self {
            Self::LastToken => {
                "every sample differs in its last token only: another shift or label convention, or another end token"
            }
            Self::FirstToken => "every sample differs in its first token only: another begin token",
            Self::OneAhead => {
                "every sample runs one token ahead: inputs of one side are the labels of the other (shifted by one token)"
            }
            Self::OneBehind => {
                "every sample runs one token behind: labels of one side are the inputs of the other (shifted by one token)"
            }
            Self::FrontAdded => "the second has one more token in front of every sample: a begin token",
            Self::FrontMissing => "the second lacks the first token of every sample: a begin token",
            Self::EndAdded => {
                "the second has one more token at the end of every sample: an end token, or the extra token that labels are \
                 shifted into"
            }
            Self::EndMissing => {
                "the second lacks the last token of every sample: an end token, or the extra token that labels are shifted \
                 into"
            }
            Self::BothAdded => {
                "the second has one more token at both ends of every sample: begin and end tokens"
            }
            Self::BothMissing => {
                "the second lacks the first and the last token of every sample: begin and end tokens"
            }
            Self::Same | Self::Inside | Self::Unrelated => return None,
        })
    }
}

/// Tokens in common as multisets.
fn shared(a: &[i32], b: &[i32]) -> usize {
    let (mut a, mut b) = (a.to_vec(), b.to_vec());
    a.sort_unstable();
    b.sort_unstable();
    let (mut i, mut j, mut shared) = (0, 0, 0);
    while i < a.len() && j < b.len() {
        match a[i].cmp(&b[j]) {
            std::cmp::Ordering::Less => i += 1,
            std::cmp::Ordering::Greater => j += 1,
            std::cmp::Ordering::Equal => {
                shared += 1;
                i += 1;
                j += 1;
            }
        }
    }
    shared
}

/// The first token that differs, with its surroundings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TokenDifference {
    /// Index of the first token that differs (the shorter one's length where one is the beginning of the other).
    pub token: u64,
    /// Tokens of the first sample.
    pub len_a: u64,
    /// Tokens of the second.
    pub len_b: u64,
    /// Index of the first token shown.
    pub window_start: u64,
    /// Ids of the first around it.
    pub window_a: Vec<i32>,
    /// Ids of the second around it.
    pub window_b: Vec<i32>,
    /// How the two samples differ.
    pub relation: Relation,
    /// Text of the first around it, where a tokenizer is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text_a: Option<String>,
    /// Text of the second around it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text_b: Option<String>,
}

impl TokenDifference {
    /// Between two samples; `None` when they are equal.
    pub fn between(a: &[i32], b: &[i32]) -> Option<Self> {
        if a == b {
            return None;
        }
        let token = a.iter().zip(b).take_while(|(x, y)| x == y).count();
        let start = token.saturating_sub(WINDOW);
        let window = |tokens: &[i32]| {
            let end = (token + WINDOW + 1).min(tokens.len());
            tokens.get(start..end).unwrap_or(&[]).to_vec()
        };
        Some(Self {
            token: token as u64,
            len_a: a.len() as u64,
            len_b: b.len() as u64,
            window_start: start as u64,
            window_a: window(a),
            window_b: window(b),
            relation: Relation::between(a, b),
            text_a: None,
            text_b: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relations_are_told_apart() {
        let a = [10, 11, 12, 13, 14, 15, 16, 17];
        for (b, relation) in [
            (vec![10, 11, 12, 13, 14, 15, 16, 17], Relation::Same),
            (vec![10, 11, 12, 13, 14, 15, 16, 2], Relation::LastToken),
            (vec![1, 11, 12, 13, 14, 15, 16, 17], Relation::FirstToken),
            (vec![11, 12, 13, 14, 15, 16, 17, 18], Relation::OneAhead),
            (vec![9, 10, 11, 12, 13, 14, 15, 16], Relation::OneBehind),
            (vec![1, 10, 11, 12, 13, 14, 15, 16, 17], Relation::FrontAdded),
            (vec![11, 12, 13, 14, 15, 16, 17], Relation::FrontMissing),
            (vec![10, 11, 12, 13, 14, 15, 16, 17, 2], Relation::EndAdded),
            (vec![10, 11, 12, 13, 14, 15, 16], Relation::EndMissing),
            (vec![1, 10, 11, 12, 13, 14, 15, 16, 17, 2], Relation::BothAdded),
            (vec![11, 12, 13, 14, 15, 16], Relation::BothMissing),
            (vec![10, 11, 12, 99, 98, 14, 15, 16, 17], Relation::Inside),
            (vec![50, 51, 52, 53, 54, 55, 56, 57], Relation::Unrelated),
        ] {
            assert_eq!(Relation::between(&a, &b), relation, "{b:?}");
            assert_eq!(
                TokenDifference::between(&a, &b).is_none(),
                relation == Relation::Same
            );
        }
    }

    #[test]
    fn windows_stay_inside() {
        let d = TokenDifference::between(&[1, 2, 3], &[1, 2, 3, 4]).expect("differs");
        assert_eq!((d.token, d.window_start), (3, 0));
        assert_eq!((d.window_a, d.window_b), (vec![1, 2, 3], vec![1, 2, 3, 4]));
        let long: Vec<i32> = (0..100).collect();
        let mut other = long.clone();
        other[50] = -1;
        let d = TokenDifference::between(&long, &other).expect("differs");
        assert_eq!((d.token, d.window_start, d.window_a.len()), (50, 46, 9));
    }
}
