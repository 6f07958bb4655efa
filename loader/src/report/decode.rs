//! Text around differences, where a tokenizer is given.

use std::path::{Path, PathBuf};

use tokenizers::Tokenizer;

use crate::diff::outcome::Comparison;
use crate::diff::tokens::TokenDifference;

/// A tokenizer that turns ids back into text.
#[derive(Debug)]
pub struct Decoder(Tokenizer);

/// A file is no tokenizer.
#[derive(Debug, thiserror::Error)]
#[error("{}: no tokenizer.json: {problem}", path.display())]
pub struct DecoderError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong.
    pub problem: String,
}

impl Decoder {
    /// Loads a `tokenizer.json`, or the one in a folder.
    ///
    /// # Errors
    /// [`DecoderError`].
    pub fn open(path: &Path) -> Result<Self, DecoderError> {
        let file = if path.is_dir() {
            path.join("tokenizer.json")
        } else {
            path.to_owned()
        };
        Tokenizer::from_file(&file).map(Self).map_err(|e| DecoderError {
            path: file,
            problem: e.to_string(),
        })
    }

    /// The text of some ids, special tokens included.
    fn text(&self, ids: &[i32]) -> String {
        let ids: Vec<u32> = ids.iter().map(|id| id.unsigned_abs()).collect();
        // Ids the tokenizer does not have are shown as they are.
        self.0.decode(&ids, false).unwrap_or_else(|_| format!("{ids:?}"))
    }
}

/// Puts texts beside the tokens of a comparison.
pub fn decode(comparison: &mut Comparison, a: &Decoder, b: &Decoder) {
    let text = |difference: &mut TokenDifference| {
        difference.text_a = Some(a.text(&difference.window_a));
        difference.text_b = Some(b.text(&difference.window_b));
    };
    if let Some(difference) = comparison.first.as_mut().and_then(|first| first.tokens.as_mut()) {
        text(difference);
    }
    for document in &mut comparison.documents {
        text(&mut document.difference);
    }
}
