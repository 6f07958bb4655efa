//! A comparison in sentences.

use crate::diff::classify::Class;
use crate::diff::keys::KeyKind;
use crate::diff::layout::At;
use crate::diff::outcome::{About, Comparison};
use crate::diff::tokens::{Relation, TokenDifference};

/// A place for reading.
pub fn place(at: &At) -> String {
    format!(
        "epoch {} step {} (micro_step {}) rank {} slot {}",
        at.epoch, at.step, at.micro_step, at.rank, at.slot
    )
}

/// `n sample(s)` and the like.
pub fn count(n: u64, noun: &str) -> String {
    let more = if noun.ends_with("ch") { "es" } else { "s" };
    format!("{} {noun}{}", grouped(n), if n == 1 { "" } else { more })
}

/// A number with its thousands set apart.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A share as a percentage.
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "–".to_owned();
    }
    let share = 100.0 * part as f64 / whole as f64;
    // 99.99 % is not all, and one of many is not none.
    match share {
        s if part == whole => format!("{s:.0} %"),
        s if s > 99.9 => "more than 99.9 %".to_owned(),
        s if part > 0 && s < 0.1 => "less than 0.1 %".to_owned(),
        s => format!("{s:.1} %"),
    }
}

/// The kind of difference in a few words.
pub fn headline(comparison: &Comparison) -> String {
    match (&comparison.class, comparison.compared_by) {
        // What lies within a micro-batch is not seen, so that another order looks like other data.
        (Class::OtherData, KeyKind::MicroBatches) => "no micro-batch in common".to_owned(),
        (Class::PartlyOtherSamples { common }, KeyKind::MicroBatches) => {
            format!("{:.1} % of the micro-batches in common", 100.0 * common)
        }
        (class, _) => kind(class),
    }
}

fn kind(class: &Class) -> String {
    match class {
        Class::Equal => "equal".to_owned(),
        Class::OtherPlaces { .. } => "the same samples, at other places".to_owned(),
        Class::EqualWhereBoth { .. } => "equal where both have lines".to_owned(),
        Class::Prefix {
            second_is_shorter, ..
        } => format!(
            "equal as far as {} goes",
            if *second_is_shorter { "B" } else { "A" }
        ),
        Class::OtherDealing { sets_differ_from, .. } => format!(
            "same global batches, other dealing{}",
            if sets_differ_from.is_some() {
                " (but for the end of the epoch)"
            } else {
                ""
            }
        ),
        Class::Swapped { places } if places.len() == 1 => "two samples swapped".to_owned(),
        Class::Swapped { places } => format!("{} pairs of samples swapped", places.len()),
        Class::Shifted { by } => format!(
            "shifted: B runs {} {}",
            count(by.unsigned_abs(), "sample"),
            if *by > 0 { "ahead" } else { "behind" }
        ),
        Class::Duplicated { count: n, .. } => format!("{} duplicated in B", count(*n, "sample")),
        Class::Missing { count: n, .. } => format!("{} missing in B", count(*n, "sample")),
        Class::Inserted { count: n, .. } => format!("{} of B that A does not have", count(*n, "sample")),
        Class::Moved { count: n, .. } => format!("{} moved", count(*n, "sample")),
        Class::Edited { edits } => format!("{} between them", count(*edits, "single difference")),
        Class::OtherSeed { .. } => "another seed, epoch or order of the same data".to_owned(),
        Class::OtherOrder => "the same samples in another order".to_owned(),
        Class::Convention { relation, beneath } => {
            let convention = match relation {
                Relation::LastToken => "another last token in every sample",
                Relation::FirstToken => "another first token in every sample",
                Relation::OneAhead | Relation::OneBehind => "every sample shifted by one token",
                Relation::FrontAdded | Relation::FrontMissing => "a begin token more or less in every sample",
                Relation::EndAdded | Relation::EndMissing => "a last token more or less in every sample",
                _ => "begin and end tokens more or less in every sample",
            };
            if beneath.is_equal() {
                convention.to_owned()
            } else {
                format!("{convention}; beyond that: {}", kind(beneath))
            }
        }
        Class::OtherTokenizer { documents, of, .. } => {
            format!("{documents} of {} encoded otherwise", count(*of, "document"))
        }
        Class::PartlyOtherSamples { common } => format!("{:.1} % of the samples in common", 100.0 * common),
        Class::TextShifted { by, .. } => format!(
            "the same text, shifted: B runs {} {}",
            count(by.unsigned_abs(), "token"),
            if *by > 0 { "ahead" } else { "behind" }
        ),
        Class::OtherCut { .. } => "the same text, cut into other samples".to_owned(),
        Class::OtherData => "different data".to_owned(),
    }
}

/// What the difference is and what it means, sentence by sentence.
pub fn explanation(comparison: &Comparison) -> Vec<String> {
    let mut words = of_class(&comparison.class, comparison);
    if comparison.compared_by == KeyKind::MicroBatches {
        words.push(
            "One side holds one fingerprint a micro-batch, so whole micro-batches were compared, not samples.".to_owned(),
        );
    }
    if let [only] = &comparison.epochs[..] {
        if only.a != only.b {
            words.push(format!(
                "Epoch {} of A was compared with epoch {} of B.",
                only.a, only.b
            ));
        }
    } else {
        let equal = comparison.epochs.iter().filter(|epoch| epoch.equal).count();
        words.push(format!(
            "{equal} of {} epochs are equal; the counts are of {}.",
            comparison.epochs.len(),
            comparison
                .epochs
                .get(comparison.counted_epoch)
                .map_or(String::new(), |epoch| format!("epoch {}", epoch.a))
        ));
    }
    words
}

fn of_class(class: &Class, comparison: &Comparison) -> Vec<String> {
    let (a, b) = (&comparison.a, &comparison.b);
    match class {
        Class::Equal => vec!["Every place holds the same sample on both sides.".to_owned()],
        Class::OtherPlaces { a, b } => vec![format!(
            "Both hold the same samples in the same sequence, but what A numbers {} is {} in B: other epochs or steps, or a \
             damaged number.",
            place(a),
            place(b)
        )],
        Class::EqualWhereBoth {
            both,
            only_a,
            only_b,
            from,
        } => {
            let mut words = vec![format!(
                "Both have {}, from {} on, and hold the same samples there.",
                count(*both, "micro-batch"),
                place(from)
            )];
            for (n, there, lacks) in [(only_a, "A", "B"), (only_b, "B", "A")] {
                if *n > 0 {
                    words.push(format!("{} of {there} {lacks} has no line of.", count(*n, "micro-batch")));
                }
            }
            words
        }
        Class::Prefix {
            samples_beyond,
            second_is_shorter,
        } => {
            let (shorter, longer) = if *second_is_shorter { ("B", "A") } else { ("A", "B") };
            vec![format!(
                "Every place of {shorter} holds the sample that {longer} has there; {longer} goes on for {} more.",
                count(*samples_beyond, "sample")
            )]
        }
        Class::OtherDealing {
            same_list,
            sets_differ_from,
        } => dealing(a, b, comparison, *same_list, sets_differ_from.as_ref()),
        Class::Swapped { places } => places
            .iter()
            .take(4)
            .map(|[one, two]| {
                format!(
                    "The samples of {} and of {} have changed places.",
                    place(one),
                    place(two)
                )
            })
            .collect(),
        Class::Shifted { by } => vec![format!(
            "From the start on, each place of B holds the sample that A has {} {}.",
            count(by.unsigned_abs(), "place"),
            if *by > 0 { "later" } else { "earlier" }
        )],
        Class::Duplicated {
            at,
            also_at,
            replaces_another,
            ..
        } => vec![format!(
            "B consumes the sample of {} a second time at {}; {}.",
            place(also_at),
            place(at),
            if *replaces_another {
                "it took the place of a sample that B never consumes"
            } else {
                "everything behind it comes that much later"
            }
        )],
        Class::Missing { at, count: n } => vec![format!(
            "B leaves out {}, which A has from {} on; everything behind comes that much earlier.",
            count(*n, "sample"),
            place(at)
        )],
        Class::Inserted { at, count: n } => vec![format!(
            "B has {} from {} on that A does not have.",
            count(*n, "sample"),
            place(at)
        )],
        Class::Moved { from, to, count: n } => vec![format!(
            "{} that A consumes from {} on stand at {} in B.",
            count(*n, "sample"),
            place(from),
            place(to)
        )],
        Class::Edited { edits } => vec![format!(
            "{} turn A into B.",
            count(*edits, "single difference")
        )],
        Class::OtherSeed { a, b } => vec![format!(
            "A has {}, B has {}: another permutation was drawn.",
            options(a),
            options(b)
        )],
        Class::OtherOrder => vec![
            "Both consume the same samples, each as often (but for repeats and drops at the end of an epoch), in another \
             sequence."
                .to_owned(),
        ],
        Class::Convention { relation, beneath } => {
            let mut words = vec![format!(
                "It is a convention, not the data: {}.",
                relation.in_words().unwrap_or("samples differ at their ends")
            )];
            if beneath.is_equal() {
                words.push("Without that token every place holds the same sample.".to_owned());
            } else {
                words.push("Without that token there still is a difference:".to_owned());
                words.extend(of_class(beneath, comparison));
            }
            words
        }
        Class::OtherTokenizer {
            documents,
            of,
            only_in_a,
            only_in_b,
        } => {
            let mut words = vec![format!(
                "{documents} of {} differ in some of their tokens and agree in the rest: the same text, encoded by another \
                 tokenizer (or another version of it).",
                count(*of, "document")
            )];
            for (n, there, lacks) in [(only_in_a, "A", "B"), (only_in_b, "B", "A")] {
                if *n > 0 {
                    words.push(format!("{} of {there} {lacks} does not have.", count(*n, "document")));
                }
            }
            words
        }
        Class::PartlyOtherSamples { common } => vec![format!(
            "{:.1} % of the smaller side's different samples are samples of the other one as well.",
            100.0 * common
        )],
        Class::TextShifted {
            by,
            at,
            token,
            tokens,
        } => vec![format!(
            "From token {token} of {} on, B's stream of tokens runs {} {} of A's, and agrees with it to the end of the shorter \
             one ({} tokens): the same text, cut into samples at other places.",
            place(at),
            count(by.unsigned_abs(), "token"),
            if *by > 0 { "ahead" } else { "behind" },
            grouped(*tokens)
        )],
        Class::OtherCut { share } => vec![format!(
            "No sample is the same on both sides, yet {:.0} % of the runs of 16 tokens looked at stand in both: the same text, \
             cut into samples at other places.",
            100.0 * share
        )],
        Class::OtherData if comparison.compared_by == KeyKind::MicroBatches => vec![
            "The two sides have no micro-batch in common: another order of the same samples, or other data; fingerprints of \
             whole micro-batches do not tell which."
                .to_owned(),
        ],
        Class::OtherData => vec!["The two sides have no sample in common.".to_owned()],
    }
}

fn options(options: &[(String, serde_json::Value)]) -> String {
    let words: Vec<String> = options
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    words.join(" ")
}

fn dealing(
    a: &About,
    b: &About,
    comparison: &Comparison,
    same_list: bool,
    differ: Option<&At>,
) -> Vec<String> {
    let mut words = Vec::new();
    if same_list {
        words.push(
            "Both go through one and the same list of samples; they deal it to ranks and slots in other ways.".to_owned(),
        );
    } else {
        words.push("Each step consumes the same samples on both sides, on other ranks or slots.".to_owned());
    }
    let law = |side: &About, name: &str| match side.deal {
        "strided" => format!(
            "{name} deals strided: sample by sample round the {} ranks, as torch's DistributedSampler does",
            side.world_size
        ),
        "blocked" => format!(
            "{name} deals blocked: a whole micro-batch of {} to each rank in turn, as accelerate's BatchSamplerShard and \
             Megatron do",
            side.micro_batch_size
        ),
        _ => format!("{name} deals to {} ranks", side.world_size),
    };
    if a.deal != b.deal {
        words.push(format!("{}; {}.", law(a, "A"), law(b, "B")));
        words.push(
            "With the whole global batch averaged, gradients of those steps differ by rounding only; what a rank sees, and \
             anything kept per rank, differs."
                .to_owned(),
        );
    }
    if a.global_batch_size != b.global_batch_size {
        words.push(format!(
            "Their steps hold {} and {} samples, so that steps cannot be held against each other.",
            a.global_batch_size, b.global_batch_size
        ));
    }
    match differ {
        Some(at) => words.push(format!(
            "The samples of a step first differ at epoch {} step {}, the last of the epoch: its end is filled up or cut in \
             another way ({} against {} places).",
            at.epoch,
            at.step,
            grouped(comparison.stats.samples_a),
            grouped(comparison.stats.samples_b)
        )),
        None if comparison.step_sets.comparable => {
            words.push("No step consumes other samples on the two sides.".to_owned());
        }
        None => {}
    }
    words
}

/// Tokens around a difference, for reading.
pub fn tokens(difference: &TokenDifference) -> String {
    format!(
        "token {} ({} tokens in A, {} in B); from token {} on A has {:?}, B has {:?}",
        difference.token,
        difference.len_a,
        difference.len_b,
        difference.window_start,
        difference.window_a,
        difference.window_b
    )
}
