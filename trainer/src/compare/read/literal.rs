//! Python and JSON literals: what `print(dict)` and `json.dump` write.
//!
//! Numbers keep their text, for the digits; `nan`, `NaN`, `Infinity`, `None`, `True`, `null`, `true` are known, and a call
//! such as `np.float64(8.31)` or `tensor(1.2, device='cuda:0')` stands for its first argument.

use super::number::Logged;

/// Levels of nesting that are followed.
const DEEPEST: usize = 64;

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Literal {
    /// `None`, `null`.
    Nothing,
    /// `True`, `false`.
    Flag(bool),
    /// A number's text.
    Number(String),
    /// A string.
    Text(String),
    /// A list or tuple.
    List(Vec<Literal>),
    /// A dict, keys in order; keys that are no strings are left out.
    Dict(Vec<(String, Literal)>),
}

impl Literal {
    /// The value of a dict's key, the last where it has several.
    pub(crate) fn get(&self, key: &str) -> Option<&Literal> {
        match self {
            Literal::Dict(entries) => entries.iter().rev().find(|(k, _)| k == key).map(|(_, v)| v),
            _ => None,
        }
    }

    /// A number, or a string that holds one: newer Trainers print `'loss': '8.31'`.
    pub(crate) fn number(&self) -> Option<Logged> {
        match self {
            Literal::Number(text) | Literal::Text(text) => Logged::parse(text.trim()),
            _ => None,
        }
    }

    /// What it is, for an error.
    pub(crate) fn describe(&self) -> String {
        match self {
            Literal::Nothing => "None".to_owned(),
            Literal::Flag(flag) => flag.to_string(),
            Literal::Number(text) => text.clone(),
            Literal::Text(text) => format!("{:?}", text.chars().take(80).collect::<String>()),
            Literal::List(_) => "a list".to_owned(),
            Literal::Dict(_) => "a dict".to_owned(),
        }
    }
}

/// Reads the literal at the start of `text`; also gives the bytes it took.
///
/// # Errors
/// What is wrong and at which byte.
pub(crate) fn parse(text: &str) -> Result<(Literal, usize), String> {
    let mut parser = Parser { text, at: 0 };
    let value = parser.value(0)?;
    Ok((value, parser.at))
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl Parser<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn blanks(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
    }

    fn eat(&mut self, c: char) -> bool {
        self.blanks();
        if self.peek() == Some(c) {
            self.at += c.len_utf8();
            return true;
        }
        false
    }

    fn wrong<T>(&self, expected: &str) -> Result<T, String> {
        let found: String = self.rest().chars().take(20).collect();
        Err(if found.is_empty() {
            format!("ends where {expected} should follow")
        } else {
            format!("{expected} should stand before {found:?}")
        })
    }

    fn value(&mut self, depth: usize) -> Result<Literal, String> {
        if depth > DEEPEST {
            return Err(format!("nested deeper than {DEEPEST} levels"));
        }
        self.blanks();
        match self.peek() {
            Some('{') => self.dict(depth),
            Some('[') => self.list(depth, '[', ']'),
            Some('(') => self.list(depth, '(', ')'),
            Some(quote @ ('\'' | '"')) => self.string(quote).map(Literal::Text),
            Some(c) if c.is_ascii_digit() || matches!(c, '-' | '+' | '.') => Ok(self.number()),
            Some(c) if c.is_ascii_alphabetic() || c == '_' => self.word(depth),
            _ => self.wrong("a value"),
        }
    }

    fn dict(&mut self, depth: usize) -> Result<Literal, String> {
        self.at += 1;
        let mut entries = Vec::new();
        loop {
            if self.eat('}') {
                return Ok(Literal::Dict(entries));
            }
            let key = self.value(depth + 1)?;
            if !self.eat(':') {
                return self.wrong("a colon");
            }
            let value = self.value(depth + 1)?;
            if let Literal::Text(key) = key {
                entries.push((key, value));
            }
            if !self.eat(',') && self.peek() != Some('}') {
                return self.wrong("a comma or }");
            }
        }
    }

    fn list(&mut self, depth: usize, open: char, close: char) -> Result<Literal, String> {
        self.at += open.len_utf8();
        let mut values = Vec::new();
        loop {
            if self.eat(close) {
                return Ok(Literal::List(values));
            }
            values.push(self.value(depth + 1)?);
            if !self.eat(',') && self.peek() != Some(close) {
                return self.wrong(&format!("a comma or {close}"));
            }
        }
    }

    fn string(&mut self, quote: char) -> Result<String, String> {
        self.at += 1;
        let mut out = String::new();
        let mut chars = self.text[self.at..].char_indices();
        while let Some((i, c)) = chars.next() {
            match c {
                c if c == quote => {
                    self.at += i + c.len_utf8();
                    return Ok(out);
                }
                '\\' => match chars.next() {
                    Some((_, 'n')) => out.push('\n'),
                    Some((_, 't')) => out.push('\t'),
                    // Texts of four digits are not needed: keys and numbers of logs are ASCII.
                    Some((_, c)) => out.push(c),
                    None => break,
                },
                c => out.push(c),
            }
        }
        Err("a string does not end".to_owned())
    }

    fn number(&mut self) -> Literal {
        let rest = self.rest();
        let len = rest
            .find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '+' | '-' | '_')))
            .unwrap_or(rest.len());
        let text = rest[..len].replace("-Infinity", "-inf");
        self.at += len;
        Literal::Number(text)
    }

    fn word(&mut self, depth: usize) -> Result<Literal, String> {
        let rest = self.rest();
        let len = rest
            .find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '_')))
            .unwrap_or(rest.len());
        let word = rest[..len].to_owned();
        self.at += len;
        match word.as_str() {
            "None" | "null" => return Ok(Literal::Nothing),
            "True" | "true" => return Ok(Literal::Flag(true)),
            "False" | "false" => return Ok(Literal::Flag(false)),
            "nan" | "NaN" | "inf" | "Infinity" => return Ok(Literal::Number(word)),
            _ => {}
        }
        if self.peek() != Some('(') {
            return Err(format!("{word:?} is no value"));
        }
        self.at += 1;
        let first = self.value(depth + 1)?;
        // The rest of the call: keyword arguments, which are no literals.
        let mut open = 1_u32;
        while let Some(c) = self.peek() {
            self.at += c.len_utf8();
            match c {
                '(' => open += 1,
                ')' if open == 1 => return Ok(first),
                ')' => open -= 1,
                _ => {}
            }
        }
        Err("a call does not end".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_trainers_print() -> Result<(), String> {
        let text = "{'loss': '8.31', 'grad_norm': np.float64(1.5), 'x': tensor([2., 3.], device='cuda:0'), \"lr\": 3e-04, 'n': \
                    nan, 'none': None, 1: 2, 'ok': True} tail";
        let (value, taken) = parse(text)?;
        assert_eq!(&text[taken..], " tail");
        let number = |key: &str| value.get(key).and_then(Literal::number).map(|n| n.value);
        assert_eq!(number("loss"), Some(8.31));
        assert_eq!(number("grad_norm"), Some(1.5));
        assert_eq!(number("lr"), Some(3e-4));
        assert!(number("n").is_some_and(f64::is_nan));
        assert_eq!(value.get("none"), Some(&Literal::Nothing));
        assert_eq!(value.get("ok"), Some(&Literal::Flag(true)));
        Ok(())
    }

    #[test]
    fn what_is_no_literal_is_an_error() {
        for text in [
            "", "{", "{'a'", "{'a': ", "{'a': 1", "{'a' 1}", "[1 2]", "'a", "word", "f(1", "{'a': }", "é",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse(&"[".repeat(100_000)).is_err());
        assert!(parse(&"f(".repeat(100_000)).is_err());
    }

    #[test]
    fn json_of_python_has_nan_and_infinity() -> Result<(), String> {
        let (value, _) = parse("{\"a\": NaN, \"b\": -Infinity, \"c\": [1, 2,], \"d\": null}")?;
        assert!(
            value
                .get("a")
                .and_then(Literal::number)
                .is_some_and(|n| n.value.is_nan())
        );
        assert_eq!(
            value.get("b").and_then(Literal::number).map(|n| n.value),
            Some(f64::NEG_INFINITY)
        );
        assert_eq!(value.get("d"), Some(&Literal::Nothing));
        Ok(())
    }
}
