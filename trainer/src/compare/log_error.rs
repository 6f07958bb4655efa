//! What can be wrong with a log.

use std::path::PathBuf;

/// A log cannot be read; the text names the file, and the line and field where there is one.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The operating system says no.
    #[error("{}: cannot be read", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The file as a whole is not what it should be.
    #[error("{}: {problem}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong and what to do about it.
        problem: String,
    },
    /// A record of it is wrong.
    #[error("{}: line {line}: {field}: {problem}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// From 1; in a JSON document, the number of the record.
        line: u64,
        /// The field.
        field: String,
        /// What is wrong.
        problem: String,
    },
}
