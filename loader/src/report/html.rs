//! The page of a comparison: one file, drawings inline, nothing loaded from anywhere.

use std::fmt::Write as _;

use super::drawings;
use super::svg::escape;
use super::words::{self, count, grouped, place};
use crate::diff::classify::Class;
use crate::diff::outcome::{About, Comparison};
use crate::diff::tokens::TokenDifference;

/// Documents listed on the page.
const DOCUMENTS: usize = 100;

pub(super) const STYLE: &str = "
:root{color-scheme:light}
body{font:15px/1.5 system-ui,-apple-system,'Segoe UI',sans-serif;color:#1c2733;background:#f6f7f9;margin:0}
main{max-width:820px;margin:0 auto;padding:24px 20px 48px}
h1{font-size:22px;margin:0 0 4px}h2{font-size:16px;margin:0 0 8px}
section{background:#fff;border:1px solid #dfe4ea;border-radius:8px;padding:16px 18px;margin:14px 0}
.badge{display:inline-block;border-radius:6px;padding:4px 12px;font-weight:600;color:#fff}
.same{background:#2e7d4f}.near{background:#b7791f}.other{background:#b3382c}
table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:3px 10px 3px 0;vertical-align:top;font-variant-numeric:tabular-nums}
th{color:#5a6b7b;font-weight:500;white-space:nowrap}
code{font:13px/1.45 ui-monospace,Menlo,Consolas,monospace;overflow-wrap:anywhere}
.ids{overflow-x:auto;white-space:nowrap}.hit{background:#f7d9d5;border-radius:3px;padding:0 2px}
p{margin:4px 0}.dim{color:#5a6b7b;font-size:13px}
svg{display:block;max-width:100%;height:auto}
svg text{fill:#1c2733;font:12px system-ui,sans-serif}svg .tick{font-size:11px;fill:#5a6b7b}svg .axis{fill:#5a6b7b}
svg .rule{stroke:#e3e8ee}svg .zero{stroke:#5a6b7b;stroke-dasharray:4 3}svg .frame{fill:#f2f5f8;stroke:#cdd5dd}
.key{display:flex;flex-wrap:wrap;gap:4px 16px;margin:8px 0 0;font-size:13px}.key i{display:inline-block;width:12px;height:12px;border-radius:2px;margin-right:6px;vertical-align:-1px}
.row{display:flex;flex-wrap:wrap;gap:24px}
details{margin:8px 0}summary{cursor:pointer;color:#5a6b7b}pre{font:12px/1.4 ui-monospace,Menlo,monospace;overflow-x:auto}
.scroll{overflow-x:auto}.num{width:auto}.num td{white-space:nowrap}.num td:not(:first-child),.num th:not(:first-child){text-align:right;padding-left:12px}
";

/// The page.
pub fn page(comparison: &Comparison) -> String {
    let mut page = String::new();
    let headline = words::headline(comparison);
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width,initial-scale=1\"><title>{} – data order of two runs</title><style>{STYLE}</style></head>\n\
         <body><main>\n<h1>Data order of two runs</h1>\n",
        escape(&headline)
    );
    page.push_str(&sections(comparison));
    super::chart::end_page(&mut page);
    page
}

/// The sections of the page, for a page of another report.
pub fn sections(comparison: &Comparison) -> String {
    let mut page = String::new();
    verdict(&mut page, comparison, &words::headline(comparison));
    first(&mut page, comparison);
    if !comparison.class.is_equal() {
        drawings::overlap(&mut page, comparison);
        drawings::dealing(&mut page, comparison);
        drawings::displacement(&mut page, comparison);
        drawings::ranks(&mut page, comparison);
        drawings::mixes(&mut page, comparison);
    }
    documents(&mut page, comparison);
    epochs(&mut page, comparison);
    page
}

fn badge(class: &Class) -> &'static str {
    match class {
        Class::Equal => "same",
        Class::Prefix { .. }
        | Class::EqualWhereBoth { .. }
        | Class::OtherPlaces { .. }
        | Class::OtherDealing { .. }
        | Class::Convention { .. } => "near",
        _ => "other",
    }
}

fn verdict(page: &mut String, comparison: &Comparison, headline: &str) {
    let _ = writeln!(
        page,
        "<section><p><span class=\"badge {}\">{}</span></p>",
        badge(&comparison.class),
        escape(headline)
    );
    for sentence in words::explanation(comparison) {
        let _ = writeln!(page, "<p>{}</p>", escape(&sentence));
    }
    let side = |about: &About| {
        let mut text = format!("<b>{}</b>", escape(&about.label));
        if let Some(order) = about.order.as_ref().map(ToString::to_string)
            && order != about.label
        {
            let _ = write!(text, "<br><code>{}</code>", escape(&order));
        }
        let _ = write!(
            text,
            "<br>{} in {}; {} x micro-batch {}, {} a step, dealt {}",
            count(about.samples, "sample"),
            count(about.steps, "step"),
            count(about.world_size, "rank"),
            about.micro_batch_size,
            about.global_batch_size,
            about.deal
        );
        text
    };
    let _ = writeln!(
        page,
        "<table><tr><th>A</th><td>{}</td></tr><tr><th>B</th><td>{}</td></tr></table></section>",
        side(&comparison.a),
        side(&comparison.b)
    );
}

fn first(page: &mut String, comparison: &Comparison) {
    let Some(first) = &comparison.first else { return };
    page.push_str("<section><h2>Where they part</h2><table>");
    let mut row = |name: &str, html: String| {
        let _ = writeln!(page, "<tr><th>{}</th><td>{html}</td></tr>", escape(name));
    };
    let name = |sample: Option<u64>| sample.map_or(String::new(), |id| format!(": sample {}", grouped(id)));
    match &first.a {
        Some(at) => row("A", escape(&format!("{}{}", place(at), name(first.sample_a)))),
        None => row("A", "no sample there".to_owned()),
    }
    match &first.b {
        Some(at) => row("B", escape(&format!("{}{}", place(at), name(first.sample_b)))),
        None => row("B", "no sample there".to_owned()),
    }
    if let Some(at) = &first.sample_a_in_b {
        row("A's sample in B", escape(&place(at)));
    }
    if let Some(difference) = &first.tokens {
        row("token", grouped(difference.token));
        row("A has", ids(difference, &difference.window_a));
        row("B has", ids(difference, &difference.window_b));
        for (name, text) in [("A reads", &difference.text_a), ("B reads", &difference.text_b)] {
            if let Some(text) = text {
                row(name, format!("<code>{}</code>", escape(&format!("{text:?}"))));
            }
        }
    }
    page.push_str("</table></section>\n");
}

/// Ids around a difference, the first that differs marked.
fn ids(difference: &TokenDifference, window: &[i32]) -> String {
    let mark = (difference.token - difference.window_start) as usize;
    let ids: Vec<String> = window
        .iter()
        .enumerate()
        .map(|(i, id)| {
            if i == mark {
                format!("<span class=\"hit\">{id}</span>")
            } else {
                id.to_string()
            }
        })
        .collect();
    format!("<code class=\"ids\">… {} …</code>", ids.join(" "))
}

fn documents(page: &mut String, comparison: &Comparison) {
    if comparison.documents.is_empty() {
        return;
    }
    let _ = write!(
        page,
        "<section><h2>{} that differ</h2><table><tr><th>document</th><th>first token</th><th>A</th><th>B</th></tr>",
        count(comparison.documents_different, "document")
    );
    for document in comparison.documents.iter().take(DOCUMENTS) {
        let number = if document.a == document.b {
            grouped(document.a)
        } else {
            format!("{} / {}", grouped(document.a), grouped(document.b))
        };
        let side = |window: &[i32], text: &Option<String>| {
            let mut cell = ids(&document.difference, window);
            if let Some(text) = text {
                let _ = write!(
                    cell,
                    "<br><span class=\"dim\">{}</span>",
                    escape(&format!("{text:?}"))
                );
            }
            cell
        };
        let _ = writeln!(
            page,
            "<tr><td>{number}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            document.difference.token,
            side(&document.difference.window_a, &document.difference.text_a),
            side(&document.difference.window_b, &document.difference.text_b)
        );
    }
    page.push_str("</table></section>\n");
}

fn epochs(page: &mut String, comparison: &Comparison) {
    if comparison.epochs.len() < 2 {
        return;
    }
    page.push_str(
        "<section><h2>Epochs</h2><table><tr><th>A</th><th>B</th><th>equal</th><th>same samples</th><th>first difference</th></tr>",
    );
    let word = |yes: bool| if yes { "yes" } else { "no" };
    for epoch in &comparison.epochs {
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            epoch.a,
            epoch.b,
            word(epoch.equal),
            word(epoch.same_samples),
            epoch
                .first_difference
                .as_ref()
                .map_or(String::new(), |at| escape(&place(at)))
        );
    }
    page.push_str("</table></section>\n");
}
