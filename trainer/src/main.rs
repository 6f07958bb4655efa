//! `trainer`: trains, resumes and inspects runs.

fn main() {}
