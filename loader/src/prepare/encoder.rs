//! A Hugging Face tokenizer, as transformers calls it.
//!
//! Reproduces what `AutoTokenizer.from_pretrained(folder)(texts)["input_ids"]` gives in transformers 5.24.0 for a
//! tokenizer that is its `tokenizer.json`: special tokens of the post-processor in, no truncation, no padding. What a
//! `tokenizer_config.json` would change on top of that is refused, not guessed.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tokenizers::Tokenizer;

use super::PrepareError;

/// A loaded tokenizer.
#[derive(Debug)]
pub struct Encoder {
    path: PathBuf,
    tokenizer: Tokenizer,
    special_tokens: bool,
    hash: String,
}

#[derive(Deserialize, Default)]
struct TokenizerConfig {
    #[serde(default)]
    added_tokens_decoder: std::collections::BTreeMap<String, AddedToken>,
    add_bos_token: Option<bool>,
    add_eos_token: Option<bool>,
}

#[derive(Deserialize)]
struct AddedToken {
    content: String,
}

impl Encoder {
    /// Loads a `tokenizer.json`, or the one in a folder. `special_tokens` false leaves out what the post-processor adds.
    ///
    /// # Errors
    /// A file that is no tokenizer, or a configuration beside it that changes what it does.
    pub fn open(path: &Path, special_tokens: bool) -> Result<Self, PrepareError> {
        let file = if path.is_dir() {
            path.join("tokenizer.json")
        } else {
            path.to_owned()
        };
        let bad = |problem: String| PrepareError::Tokenizer {
            path: file.clone(),
            problem,
        };
        let bytes = fs::read(&file).map_err(|e| PrepareError::io(&file, "read", e))?;
        let mut tokenizer =
            Tokenizer::from_bytes(&bytes).map_err(|e| bad(format!("no tokenizer.json: {e}")))?;
        tokenizer.with_truncation(None).map_err(|e| bad(e.to_string()))?;
        tokenizer.with_padding(None);
        let hash = blake3::hash(&bytes).to_hex().to_string();
        let encoder = Encoder {
            path: file.clone(),
            tokenizer,
            special_tokens,
            hash,
        };
        let config = file.with_file_name("tokenizer_config.json");
        if config.is_file() {
            encoder.check_config(&config)?;
        }
        Ok(encoder)
    }

    fn check_config(&self, path: &Path) -> Result<(), PrepareError> {
        let bad = |problem: String| PrepareError::Tokenizer {
            path: path.to_owned(),
            problem,
        };
        let text = fs::read_to_string(path).map_err(|e| PrepareError::io(path, "read", e))?;
        let config: TokenizerConfig = serde_json::from_str(&text).map_err(|e| bad(e.to_string()))?;
        for (id, token) in &config.added_tokens_decoder {
            let here = self.tokenizer.token_to_id(&token.content);
            if here.map(|id| id.to_string()).as_ref() != Some(id) {
                return Err(bad(format!(
                    "adds {:?} as token {id}, which tokenizer.json {}; save the tokenizer anew with \
                     save_pretrained, so that tokenizer.json holds everything",
                    token.content,
                    here.map_or("does not know".to_owned(), |id| format!("has as {id}"))
                )));
            }
        }
        if !self.special_tokens || (config.add_bos_token.is_none() && config.add_eos_token.is_none()) {
            return Ok(());
        }
        let plain = self.encode_with("a", false)?;
        let whole = self.encode_with("a", true)?;
        let at = whole.windows(plain.len().max(1)).position(|w| w == plain);
        let (front, back) = match at {
            Some(at) => (at > 0, at + plain.len() < whole.len()),
            None => (true, true),
        };
        for (key, asked, done) in [
            ("add_bos_token", config.add_bos_token, front),
            ("add_eos_token", config.add_eos_token, back),
        ] {
            if asked.is_some_and(|asked| asked != done) {
                return Err(bad(format!(
                    "says {key} {}, but tokenizer.json {} a token there; save the tokenizer anew, so that its \
                     post-processor does what the configuration says",
                    asked.unwrap_or_default(),
                    if done { "puts" } else { "does not put" }
                )));
            }
        }
        Ok(())
    }

    /// BLAKE3 of the tokenizer file.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// Special tokens are added.
    pub fn adds_special_tokens(&self) -> bool {
        self.special_tokens
    }

    /// Number of tokens, added ones included (`len(tokenizer)`).
    pub fn vocab_size(&self) -> u64 {
        self.tokenizer.get_vocab_size(true) as u64
    }

    /// Id of a token by its text.
    ///
    /// # Errors
    /// A token that does not exist.
    pub fn token_id(&self, token: &str) -> Result<i32, PrepareError> {
        let id = self
            .tokenizer
            .token_to_id(token)
            .and_then(|id| i32::try_from(id).ok());
        id.ok_or_else(|| PrepareError::Tokenizer {
            path: self.path.clone(),
            problem: format!("has no token {token:?}"),
        })
    }

    fn encode_with(&self, text: &str, special_tokens: bool) -> Result<Vec<i32>, PrepareError> {
        let encoding =
            self.tokenizer
                .encode_fast(text, special_tokens)
                .map_err(|e| PrepareError::Tokenizer {
                    path: self.path.clone(),
                    problem: format!("cannot encode a text: {e}"),
                })?;
        Ok(encoding.get_ids().iter().map(|&id| id as i32).collect())
    }

    /// The tokens of a text.
    ///
    /// # Errors
    /// What the tokenizer says.
    pub fn encode(&self, text: &str) -> Result<Vec<i32>, PrepareError> {
        self.encode_with(text, self.special_tokens)
    }
}
