//! `loader`: streams, prints and checks data orders.

fn main() {}
