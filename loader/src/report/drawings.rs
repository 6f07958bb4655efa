//! The drawings of the page, each with its sentence.

use std::fmt::Write as _;

use super::svg::{self, Cell, Series, number};
use super::words::{grouped, percent, place};
use crate::diff::outcome::{Comparison, GridCell};
use crate::diff::stats::MAP;

/// Places of a step that are drawn.
const PLACES: usize = 128;

/// Overlap over steps.
pub(super) fn overlap(page: &mut String, comparison: &Comparison) {
    let stats = &comparison.stats;
    let share = |part: u64, whole: u64| {
        if whole == 0 {
            0.0
        } else {
            part as f64 / whole as f64
        }
    };
    let end = comparison.stats.overlap.len() as f64 * stats.steps_per_bin as f64;
    let end = end.min(comparison.a.steps.max(1) as f64);
    let middle = stats.steps_per_bin as f64 / 2.0;
    let points = |value: &dyn Fn(&crate::diff::stats::Overlap) -> f64| -> Vec<(f64, f64)> {
        stats
            .overlap
            .iter()
            .map(|bin| (bin.step as f64 + middle, value(bin)))
            .collect()
    };
    let _ = writeln!(
        page,
        "<section><h2>Overlap over steps</h2>{}<p class=\"dim\">{} different samples in A, {} in B, {} in both. Of those in \
         both, {} are at the same place, {} in the same step, {} on the same rank.</p></section>",
        svg::shares(
            "Overlap over steps",
            "step of A",
            end,
            &[
                Series {
                    name: "of A's samples so far, seen by B",
                    colour: "#1f4e8c",
                    points: points(&|bin| share(bin.seen_so_far, bin.samples_so_far)),
                },
                Series {
                    name: "of a step's samples, in the same step of B",
                    colour: "#d0782a",
                    points: points(&|bin| share(bin.same_step, bin.samples)),
                },
            ],
        ),
        grouped(stats.a.distinct),
        grouped(stats.b.distinct),
        grouped(stats.common),
        percent(stats.same_place, stats.common),
        percent(stats.same_step, stats.common),
        percent(stats.same_rank, stats.common)
    );
}

/// Colours of the datasets of a mix, in turn.
const DATASETS: [&str; 8] = [
    "#1f4e8c", "#d0782a", "#2e7d4f", "#c05746", "#7a5195", "#8c6d31", "#3a9ea5", "#6b7785",
];

/// What each side takes of the datasets of its mix, over time.
pub(super) fn mixes(page: &mut String, comparison: &Comparison) {
    for (name, mix) in [("A", &comparison.mix_a), ("B", &comparison.mix_b)] {
        let Some(mix) = mix else { continue };
        let width = comparison.stats.steps_per_bin as f64;
        let series: Vec<Series<'_>> = mix
            .datasets
            .iter()
            .enumerate()
            .take(DATASETS.len())
            .map(|(which, dataset)| Series {
                name: dataset,
                colour: DATASETS[which],
                points: mix
                    .samples
                    .iter()
                    .enumerate()
                    .map(|(bin, counts)| {
                        let all = counts.iter().sum::<u64>().max(1);
                        ((bin as f64 + 0.5) * width, counts[which] as f64 / all as f64)
                    })
                    .collect(),
            })
            .collect();
        let _ = writeln!(
            page,
            "<section><h2>Datasets in {name} over time</h2>{}</section>",
            svg::shares(
                "Share of each dataset",
                &format!("step of {name}"),
                mix.samples.len() as f64 * width,
                &series,
            )
        );
    }
}

/// Colours and names of where B has a sample.
const WHERE: [(&str, &str); 5] = [
    ("#2e7d4f", "the same place"),
    ("#8fbf6a", "same step and rank, other slot"),
    ("#e3b23c", "same step, other rank"),
    ("#c05746", "another step"),
    ("#9aa5b1", "nowhere"),
];

fn whereabouts(cell: &GridCell) -> usize {
    let Some(b) = &cell.b else { return 4 };
    let a = &cell.a;
    if (a.epoch, a.micro_step, a.rank, a.slot) == (b.epoch, b.micro_step, b.rank, b.slot) {
        0
    } else if (a.epoch, a.step) != (b.epoch, b.step) {
        3
    } else if a.rank == b.rank {
        1
    } else {
        2
    }
}

/// The first steps, place by place.
pub(super) fn dealing(page: &mut String, comparison: &Comparison) {
    if comparison.grid.is_empty() {
        return;
    }
    let slots = comparison.a.micro_batch_size.max(1);
    // Columns go rank by rank, within one slot by slot.
    let per_micro = (comparison.a.world_size * slots) as usize;
    let columns = per_micro.min(PLACES);
    let mut rows: Vec<(u64, u64)> = comparison
        .grid
        .iter()
        .map(|c| (c.a.step, c.a.micro_step))
        .collect();
    rows.dedup();
    let cells: Vec<Cell> = comparison
        .grid
        .iter()
        .filter_map(|cell| {
            let column = (cell.a.rank * slots + cell.a.slot) as usize;
            let row = rows
                .iter()
                .position(|row| *row == (cell.a.step, cell.a.micro_step))?;
            (column < columns).then(|| Cell {
                row,
                column,
                colour: WHERE[whereabouts(cell)].0,
                title: match &cell.b {
                    Some(b) => format!("A: {}; B: {}", place(&cell.a), place(b)),
                    None => format!("A: {}; B: nowhere", place(&cell.a)),
                },
            })
        })
        .collect();
    let accumulated = rows.windows(2).any(|pair| pair[0].0 == pair[1].0);
    let names: Vec<String> = rows
        .iter()
        .map(|(step, micro)| {
            if accumulated {
                format!("{step} (m {micro})")
            } else {
                format!("step {step}")
            }
        })
        .collect();
    let _ = writeln!(
        page,
        "<section><h2>Where B has A's samples: the first steps, rank by rank</h2>{}",
        svg::cells(
            "Dealing of the first steps",
            &names,
            columns,
            slots as usize,
            &cells
        )
    );
    page.push_str("<p class=\"key\">");
    for (colour, name) in WHERE {
        let _ = write!(page, "<span><i style=\"background:{colour}\"></i>{name}</span>");
    }
    page.push_str("</p>");
    let _ = writeln!(
        page,
        "<p class=\"dim\">Each row is a {} of A, each group of {} the micro-batch of one rank{}.</p></section>",
        if accumulated { "micro-step" } else { "step" },
        slots,
        if columns < per_micro {
            format!(" (the first {columns} of {per_micro} places)")
        } else {
            String::new()
        }
    );
}

/// Where samples went.
pub(super) fn displacement(page: &mut String, comparison: &Comparison) {
    let Some(moved) = &comparison.stats.displacement else {
        return;
    };
    // Rows of the map are parts of A; the drawing has A along the bottom and B upwards.
    let mut map = vec![0; MAP * MAP];
    for a in 0..MAP {
        for b in 0..MAP {
            map[b * MAP + a] = moved.map[a * MAP + b];
        }
    }
    let bars: Vec<(String, u64)> = moved
        .by_power_of_two
        .iter()
        .enumerate()
        .map(|(power, n)| {
            let name = match power {
                0 => "0".to_owned(),
                1 => "1".to_owned(),
                power => format!("{}–", number((1u64 << (power - 1)) as f64)),
            };
            (name, *n)
        })
        .collect();
    let _ = writeln!(
        page,
        "<section><h2>Displacement</h2><div class=\"row\">{}</div>{}<p class=\"dim\">Mean {:.1} samples, median {}, 99 % up to \
         {}, largest {}.{}</p></section>",
        svg::map(
            "Positions in A and in B",
            ("position in A, start to end", "position in B"),
            &map,
            MAP,
            false,
        ),
        svg::bars(
            "Distances",
            "distance between the two positions, in samples",
            &bars
        ),
        moved.mean,
        grouped(moved.quantiles[0]),
        grouped(moved.quantiles[2]),
        grouped(moved.max),
        comparison
            .stats
            .correlation
            .as_ref()
            .map_or(String::new(), |correlation| format!(
                " Kendall's tau {:.3}{}, Spearman's rho {:.3}{}.",
                correlation.kendall_tau.value,
                error(correlation.kendall_tau.standard_error),
                correlation.spearman_rho.value,
                error(correlation.spearman_rho.standard_error)
            ))
    );
}

fn error(standard_error: f64) -> String {
    if standard_error == 0.0 {
        String::new()
    } else {
        format!(" ± {standard_error:.4}")
    }
}

/// Who has whose samples.
pub(super) fn ranks(page: &mut String, comparison: &Comparison) {
    let ranks = &comparison.stats.ranks;
    if ranks.len() < 2 && ranks.first().is_none_or(|row| row.len() < 2) {
        return;
    }
    let columns = ranks.first().map_or(1, Vec::len);
    let counts: Vec<u64> = ranks.iter().flatten().copied().collect();
    let _ = writeln!(
        page,
        "<section><h2>Which rank has whose samples</h2>{}<p class=\"dim\">Samples of rank r of A that rank s of B \
         consumes; a dark diagonal means that ranks see the same samples.</p></section>",
        svg::map(
            "Agreement of ranks",
            ("rank of B", "rank of A"),
            &counts,
            columns,
            true,
        )
    );
}
