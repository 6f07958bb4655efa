//! One text on both sides, cut into samples so many tokens later or earlier.
//!
//! The samples of each side are read as one stream of tokens, in deal order. Behind the tokens with which both begin, the
//! next 32 of one side are looked for in up to 2^24 of the other's, in both directions; what is found counts if the rest
//! of both streams then agrees to the end of the shorter one. Time is linear in the tokens. Memory: 128 MB at most.

use super::layout::At;
use super::side::Side;
use super::stretch::Stretch;
use crate::source::SourceError;

/// Tokens by which places in the other stream are found.
const NEEDLE: usize = 32;
/// Tokens that are searched: the longest shift found.
const SEARCHED: usize = 1 << 24;
/// Places that are tried in each direction, the nearest first.
const TRIED: usize = 16;

/// A shift of the tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TextShift {
    /// Tokens that the second runs ahead, or behind where negative.
    pub by: i64,
    /// The sample of the first that holds the first token that differs.
    pub at: At,
    /// That token's index within the sample.
    pub token: u64,
    /// Tokens behind it that agree once shifted: all that both have.
    pub agreeing: u64,
}

/// The shift that explains everything behind the first difference, if there is one and both sides have tokens.
///
/// # Errors
/// Samples that cannot be read.
pub(super) fn find(a: &Side, b: &Side, stretch: &Stretch<'_>) -> Result<Option<TextShift>, SourceError> {
    if !stretch.same_law() || !samples_stay_apart(stretch.a.keys, stretch.b.keys) {
        return Ok(None);
    }
    let mut of_a = Stream::new(a, stretch.a.base, stretch.a.keys.len());
    let mut of_b = Stream::new(b, stretch.b.base, stretch.b.keys.len());
    loop {
        match (of_a.next()?, of_b.next()?) {
            (Some(x), Some(y)) if x == y => {}
            (Some(_), Some(_)) => break,
            _ => return Ok(None),
        }
    }
    of_a.back();
    of_b.back();
    let (head_a, head_b) = (of_a.clone().head()?, of_b.clone().head()?);
    // The side that lacks tokens continues where its beginning stands in the other one.
    let ahead = places(&head_a, &head_b).into_iter().map(|k| (k, true));
    let behind = places(&head_b, &head_a).into_iter().map(|k| (k, false));
    let mut candidates: Vec<(usize, bool)> = ahead.chain(behind).collect();
    candidates.sort_by_key(|&(k, ahead)| (k, !ahead));
    for (k, ahead) in candidates {
        let (mut one, mut other) = if ahead {
            (of_a.clone(), of_b.clone())
        } else {
            (of_b.clone(), of_a.clone())
        };
        one.skip(k)?;
        let Some(agreeing) = agree_to_the_end(&mut one, &mut other)? else {
            continue;
        };
        // What is left over of the side that ran out last is the shift itself, or less where an end was dropped.
        if agreeing < NEEDLE as u64 || agreeing < k as u64 / 3 {
            continue;
        }
        return Ok(Some(TextShift {
            by: if ahead { k as i64 } else { -(k as i64) },
            at: stretch.at_a(of_a.index),
            token: of_a.at as u64,
            agreeing,
        }));
    }
    Ok(None)
}

/// Behind the first that differs, hardly any sample is the same at its place: what a cut elsewhere does, and documents
/// encoded otherwise do not.
fn samples_stay_apart(a: &[u32], b: &[u32]) -> bool {
    let first = a.iter().zip(b).take_while(|(x, y)| x == y).count();
    let rest = a.len().min(b.len()) - first;
    let same = a[first..].iter().zip(&b[first..]).filter(|(x, y)| x == y).count();
    rest > 0 && 10 * same <= rest
}

/// Tokens that agree until one stream ends; `None` where any does not.
fn agree_to_the_end(one: &mut Stream<'_>, other: &mut Stream<'_>) -> Result<Option<u64>, SourceError> {
    let mut agreeing = 0;
    loop {
        match (one.next()?, other.next()?) {
            (Some(x), Some(y)) if x == y => agreeing += 1,
            (Some(_), Some(_)) => return Ok(None),
            _ => return Ok(Some(agreeing)),
        }
    }
}

/// Where the beginning of `of` stands in `text` behind its start: the first places, ascending.
fn places(text: &[i32], of: &[i32]) -> Vec<usize> {
    let Some(needle) = of.get(..NEEDLE) else {
        return Vec::new();
    };
    // Lengths of the longest proper border of each beginning (Knuth, Morris, Pratt).
    let mut borders = vec![0; needle.len()];
    let mut matched = 0;
    for at in 1..needle.len() {
        while matched > 0 && needle[at] != needle[matched] {
            matched = borders[matched - 1];
        }
        matched += usize::from(needle[at] == needle[matched]);
        borders[at] = matched;
    }
    let (mut found, mut matched) = (Vec::new(), 0);
    for (at, token) in text.iter().enumerate().skip(1) {
        while matched > 0 && *token != needle[matched] {
            matched = borders[matched - 1];
        }
        matched += usize::from(*token == needle[matched]);
        if matched == needle.len() {
            found.push(at + 1 - needle.len());
            matched = borders[matched - 1];
            if found.len() == TRIED {
                break;
            }
        }
    }
    found
}

/// Tokens of a stretch, one by one.
#[derive(Clone)]
struct Stream<'a> {
    side: &'a Side,
    base: usize,
    samples: usize,
    /// The sample in `buffer`, within the stretch; the one before the first at the start.
    index: usize,
    buffer: Vec<i32>,
    /// The next token within it.
    at: usize,
    opened: bool,
}

impl<'a> Stream<'a> {
    fn new(side: &'a Side, base: usize, samples: usize) -> Self {
        Self {
            side,
            base,
            samples,
            index: 0,
            buffer: Vec::new(),
            at: 0,
            opened: false,
        }
    }

    /// Reads on to the next sample that has tokens; `false` at the end.
    fn open(&mut self) -> Result<bool, SourceError> {
        while self.at == self.buffer.len() {
            let next = if self.opened { self.index + 1 } else { 0 };
            if next >= self.samples || self.side.tokens(self.base + next, &mut self.buffer)?.is_none() {
                return Ok(false);
            }
            (self.index, self.at, self.opened) = (next, 0, true);
        }
        Ok(true)
    }

    fn next(&mut self) -> Result<Option<i32>, SourceError> {
        if !self.open()? {
            return Ok(None);
        }
        self.at += 1;
        Ok(Some(self.buffer[self.at - 1]))
    }

    /// Takes the token read last back.
    fn back(&mut self) {
        self.at = self.at.saturating_sub(1);
    }

    fn skip(&mut self, tokens: usize) -> Result<(), SourceError> {
        let mut left = tokens;
        while left > 0 && self.open()? {
            let now = left.min(self.buffer.len() - self.at);
            self.at += now;
            left -= now;
        }
        Ok(())
    }

    /// The tokens that are searched.
    fn head(mut self) -> Result<Vec<i32>, SourceError> {
        let mut head = Vec::new();
        while head.len() < SEARCHED && self.open()? {
            let now = (SEARCHED - head.len()).min(self.buffer.len() - self.at);
            head.extend_from_slice(&self.buffer[self.at..self.at + now]);
            self.at += now;
        }
        Ok(head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beginning_is_found_wherever_it_stands() {
        let needle: Vec<i32> = (0..40).collect();
        let mut text = vec![0; 5];
        text.extend(&needle);
        text.extend(&needle);
        assert_eq!(places(&text, &needle), [5, 45]);
        assert!(places(&needle, &text).is_empty());
        assert!(places(&text, &needle[..NEEDLE - 1]).is_empty());
        // Overlapping ones, and never the start itself.
        assert_eq!(places(&[7; NEEDLE + 2], &[7; NEEDLE]), [1, 2]);
    }

    #[test]
    fn samples_that_come_together_again_are_no_shift() {
        assert!(samples_stay_apart(&[1, 2, 3, 4], &[1, 5, 6, 7]));
        assert!(!samples_stay_apart(&[1, 2, 3, 4], &[1, 5, 3, 4]));
        assert!(!samples_stay_apart(&[1, 2], &[1, 2, 3]));
    }
}
