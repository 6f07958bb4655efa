//! A result in plain words. Nothing is called an effect that its interval or the spread of its seeds does not bear out.

use super::design::{Choice, Design};
use super::effects::Effect;
use super::factors::Factor;
use super::report::{Named, Report, Response};

/// A share for reading.
pub fn percent(share: f64) -> String {
    match 100.0 * share {
        p if p > 0.0 && p < 0.5 => "<1 %".to_owned(),
        p => format!("{p:.0} %"),
    }
}

/// A difference in loss with its sign.
pub fn signed(value: f64) -> String {
    if value == 0.0 {
        "0".to_owned()
    } else {
        format!("{value:+.4}")
    }
}

/// Where a response is taken: `At step 25`.
fn place(response: &Response) -> String {
    match response.step {
        Some(step) => format!("At step {step}"),
        None => "On the area under the curve".to_owned(),
    }
}

/// What can be said of a response: first where the variance lies, then each difference.
pub fn response(response: &Response, factors: &[Factor], seeds: &[bool], confidence: f64) -> Vec<String> {
    if factors.is_empty() {
        return Vec::new();
    }
    let at = place(response);
    let runs = response.values.len();
    if response
        .values
        .iter()
        .all(|v| v.to_bits() == response.values[0].to_bits())
    {
        return vec![format!(
            "{at} all {runs} runs are equal: every difference is exactly 0."
        )];
    }
    let (mut explain, mut unshown, mut rest) = (Vec::new(), Vec::new(), Vec::new());
    for (which, factor) in factors.iter().enumerate() {
        let share = share_of(response, &[which]);
        let own: Vec<&Effect> = response
            .effects
            .iter()
            .map(|e| &e.of)
            .filter(|e| e.factors == [which])
            .collect();
        let bound = own
            .iter()
            .map(|e| e.bound())
            .try_fold(0.0, |most: f64, b| b.map(|b| most.max(b)));
        let (key, part) = (&factor.key, percent(share));
        if own.iter().all(|e| e.exactly_zero) {
            rest.push((share, format!("{key} changes nothing (exactly 0)")));
        } else if own.iter().any(|e| e.shown) {
            explain.push((share, format!("{key} explains {part} of the variance")));
        } else if let Some(bound) = bound {
            unshown.push((
                share,
                format!("{key} ({part} of the variance, |effect| <= {bound:.4})"),
            ));
        } else if seeds[which] {
            let spread = response.seed_spreads.iter().find(|s| s.of.factor == which);
            rest.push((
                share,
                format!(
                    "{key} has {part} of the variance, a spread of {:.4} over {} seeds",
                    spread.map_or(0.0, |s| s.of.standard_deviation),
                    factor.levels.len()
                ),
            ));
        } else {
            rest.push((
                share,
                format!("{key} has {part} of the variance, with no replicate to tell it from chance"),
            ));
        }
    }
    let sorted = |mut all: Vec<(f64, String)>| -> Vec<String> {
        all.sort_by(|a, b| b.0.total_cmp(&a.0));
        all.into_iter().map(|(_, text)| text).collect()
    };
    let mut parts = sorted(explain);
    if !unshown.is_empty() {
        parts.push(format!("no effect shown of {}", sorted(unshown).join(", ")));
    }
    parts.extend(sorted(rest));
    parts.extend(interactions(response));
    let mut out = vec![format!("{at}, {}.", parts.join("; "))];
    let fixed_alone = !seeds.iter().any(|s| !*s);
    for effect in response
        .effects
        .iter()
        .filter(|e| fixed_alone || !seeds[e.of.factors[0]])
    {
        out.extend(difference(effect, confidence));
    }
    for effect in response.interactions.iter().filter(|e| e.of.shown) {
        out.extend(difference(effect, confidence));
    }
    out
}

fn share_of(response: &Response, effect: &[usize]) -> f64 {
    let found = response.variance.iter().find(|s| s.of.effect == effect);
    found.map_or(0.0, |s| s.of.share)
}

/// What is left for interactions, the large ones by name.
fn interactions(response: &Response) -> Option<String> {
    const LARGE: f64 = 0.1;
    let all: Vec<_> = response
        .variance
        .iter()
        .filter(|s| s.of.effect.len() != 1)
        .collect();
    if all.is_empty() {
        return None;
    }
    let total: f64 = all.iter().map(|s| s.of.share).sum();
    let mut large: Vec<_> = all.into_iter().filter(|s| s.of.share >= LARGE).collect();
    large.sort_by(|a, b| b.of.share.total_cmp(&a.of.share));
    let names: Vec<String> = large
        .iter()
        .map(|s| format!("{} {}", s.name, percent(s.of.share)))
        .collect();
    let of = if names.is_empty() {
        String::new()
    } else {
        format!(" (of it {})", names.join(", "))
    };
    Some(format!("interactions have {}{of}", percent(total)))
}

/// One difference.
fn difference(effect: &Named<Effect>, confidence: f64) -> Option<String> {
    let of = &effect.of;
    let name = &effect.name;
    if of.exactly_zero {
        return Some(format!("{name}: exactly 0."));
    }
    let (low, high) = of.interval?;
    let detail = format!(
        "{}, {:.0} % interval {} to {}, spread {:.4} over {} {}",
        signed(of.difference),
        confidence * 100.0,
        signed(low),
        signed(high),
        of.spread.unwrap_or(0.0),
        of.replicates,
        if of.replicates == 1 {
            "pair of runs"
        } else {
            "pairs of runs"
        }
    );
    Some(if of.shown {
        format!("{name}: {detail}.")
    } else {
        format!(
            "{name}: no effect shown ({detail}): |effect| <= {:.4}.",
            of.bound().unwrap_or(0.0)
        )
    })
}

/// The whole result in one paragraph.
pub fn headline(report: &Report) -> String {
    let mut out = Vec::new();
    if report.factors.is_empty() {
        out.push(match &report.null_check {
            Some(check) if check.exact => {
                format!(
                    "Nothing is varied: the run and its repetition differ by exactly 0 over {} steps.",
                    check.steps
                )
            }
            Some(_) => "Nothing is varied, and yet the run and its repetition differ.".to_owned(),
            None => "Nothing is varied.".to_owned(),
        });
    } else if let Some(last) = report.last() {
        out.extend(last.sentences.first().cloned());
    }
    match &report.null_check {
        Some(check) if !check.exact => out.push(format!(
            "NULL CHECK FAILED: repeating {} gave another loss from step {} on (largest difference {:e}), so no difference here \
             can be trusted.",
            check.run,
            check.first_difference.unwrap_or(0),
            check.largest_difference
        )),
        Some(_) if !report.factors.is_empty() => {
            out.push("Repeating one run gave a difference of exactly 0.".to_owned());
        }
        _ => {}
    }
    for turned in report.proof.flagged() {
        out.push(format!(
            "FLAGGED: turning {} moves no hash at all.",
            turned.factor
        ));
    }
    if !report.confounding.is_empty() {
        out.push(format!(
            "Only {} of {} combinations were run: {}.",
            report.runs.len(),
            report.design.sizes.iter().product::<usize>(),
            report.confounding.first().map_or("", String::as_str)
        ));
    }
    out.join(" ")
}

/// How intervals and shares are computed.
pub fn method(design: &Design, seeds: &[bool]) -> String {
    let varied = seeds.iter().filter(|s| **s).count();
    let shares = match design.choice {
        Choice::Full => "Shares of the variance: all combinations were run, so effects are orthogonal.",
        _ => {
            "Shares of the variance: sequential sums of squares, main effects in the order given, then interactions; what two \
             effects share goes to the earlier one."
        }
    };
    let intervals = match (&design.choice, varied) {
        (_, 0) => "No seed is varied, so there is no spread to hold a difference against, and no interval.",
        (Choice::Full, 1) => {
            "Intervals: Student's t over differences paired by seed; a factor's intervals hold together (Bonferroni)."
        }
        (Choice::Full, _) => {
            "Intervals: differences paired by seed; both seeds' mean squares count, with Satterthwaite's degrees of freedom \
             (crossed seeds are not taken for independent); a factor's intervals hold together (Bonferroni)."
        }
        _ => {
            "Intervals: a model of main effects fitted by least squares, its residual as the error; interactions are taken to \
             be none."
        }
    };
    format!(
        "{shares} {intervals} An effect is called shown when its interval excludes 0 and it is larger than the spread of the \
         differences."
    )
}
