//! Reports of a comparison: sentences and numbers for a terminal, JSON for programs, a page for people.

pub mod chart;
pub mod decode;
mod drawings;
pub mod html;
pub mod intervals;
pub mod json;
pub mod svg;
pub mod text;
pub mod words;
