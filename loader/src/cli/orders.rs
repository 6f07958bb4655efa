//! `loader orders`: every order there is, whose behaviour it is, who needs it, and its options.

use std::io::Write;

use ceteris_samplers::orders::{OrderEntry, REGISTRY, entry};
use clap::Args;
use serde_json::{Value, json};

use super::config::nearest;
use super::failure::Failure;
use super::order_args::flag_name;

/// Flags of `loader orders`.
#[derive(Args, Debug)]
pub struct OrdersArgs {
    /// Only this order, with its options.
    name: Option<String>,
    /// Write JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// There is no order of that name.
pub fn run(args: &OrdersArgs, out: &mut dyn Write) -> Result<(), Failure> {
    let entries: Vec<&OrderEntry> = match &args.name {
        None => REGISTRY.to_vec(),
        Some(name) => vec![entry(name).ok_or_else(|| {
            let names: Vec<&str> = REGISTRY.iter().map(|entry| entry.name).collect();
            let hint = nearest(name, &names)
                .map(|name| format!("; did you mean `{name}`?"))
                .unwrap_or_default();
            Failure::new(format!(
                "there is no order `{name}`{hint} (there are: {})",
                names.join(", ")
            ))
        })?],
    };
    if args.json {
        let list: Vec<Value> = entries.iter().map(|entry| as_json(entry)).collect();
        serde_json::to_writer_pretty(&mut *out, &list)?;
        writeln!(out)?;
    } else {
        for (i, entry) in entries.iter().enumerate() {
            if i > 0 {
                writeln!(out)?;
            }
            write_text(out, entry, args.name.is_some())?;
        }
        if args.name.is_none() {
            writeln!(out, "\nOptions of one order: loader orders NAME")?;
        }
    }
    Ok(out.flush()?)
}

fn write_text(out: &mut dyn Write, entry: &OrderEntry, with_options: bool) -> std::io::Result<()> {
    writeln!(out, "{}", entry.name)?;
    writeln!(out, "  what      {}", entry.summary)?;
    writeln!(out, "  source    {}", entry.source)?;
    writeln!(out, "  for whom  {}", entry.for_whom)?;
    if !with_options {
        let keys: Vec<&str> = entry.options.iter().map(|option| option.key).collect();
        return writeln!(out, "  options   {}", keys.join(", "));
    }
    writeln!(out, "  options")?;
    for option in entry.options {
        writeln!(
            out,
            "    {} (--{}): {}",
            option.key,
            flag_name(option.key),
            option.help
        )?;
        writeln!(
            out,
            "      values: {}; default: {}",
            option.values, option.default
        )?;
    }
    writeln!(out, "  examples")?;
    entry
        .examples
        .iter()
        .try_for_each(|example| writeln!(out, "    order: {example}"))
}

fn as_json(entry: &OrderEntry) -> Value {
    let options: Vec<Value> = entry
        .options
        .iter()
        .map(|o| json!({"key": o.key, "values": o.values, "default": o.default, "help": o.help}))
        .collect();
    json!({
        "name": entry.name,
        "summary": entry.summary,
        "source": entry.source,
        "for_whom": entry.for_whom,
        "options": options,
    })
}
