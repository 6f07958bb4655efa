//! Tests made from what people report in public, named by report id; one module per subject.

mod ingestion;
mod orders;
