//! Planted effects: intervals cover them at the stated rate, and nothing is claimed that was not planted.

use ceteris_trainer::isolate::anova::Anova;
use ceteris_trainer::isolate::design::Design;
use ceteris_trainer::isolate::effects::{Effect, Effects};
use ceteris_trainer::isolate::student;

const REPETITIONS: u64 = 200;

/// Normal draws from a fixed seed (SplitMix64, Box and Muller).
struct Noise(u64);

impl Noise {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn normal(&mut self, deviation: f64) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        deviation * radius * (std::f64::consts::TAU * self.uniform()).cos()
    }
}

/// Whether so many of the repetitions covered is what a rate of 95 % gives: 3.3 standard deviations around 190 of 200.
fn is_95_percent(covered: u64) -> bool {
    (180..=199).contains(&covered)
}

fn covers(effect: &Effect, truth: f64, width: f64) -> bool {
    let (low, high) = effect.interval.unwrap();
    let (low, high) = (
        effect.difference - width * (effect.difference - low),
        effect.difference + width * (high - effect.difference),
    );
    low <= truth && truth <= high
}

/// Responses of a design: `value` of each cell's levels.
fn responses(design: &Design, value: &mut dyn FnMut(&[usize]) -> f64) -> Vec<f64> {
    design.cells.iter().map(|cell| value(cell)).collect()
}

/// What a seed does, drawn anew in each repetition: the same for every cell that has it.
fn draws(noise: &mut Noise, count: usize, deviation: f64) -> Vec<f64> {
    (0..count).map(|_| noise.normal(deviation)).collect()
}

/// How often an effect's interval covers `truth`, at its width and at others; how often it is claimed; its mean.
struct Counted {
    covered: u64,
    half: u64,
    wide: u64,
    shown: u64,
    mean: f64,
}

fn repeat(truth: f64, mut one: impl FnMut(&mut Noise) -> Effect) -> Counted {
    let mut noise = Noise(1);
    let mut out = Counted {
        covered: 0,
        half: 0,
        wide: 0,
        shown: 0,
        mean: 0.0,
    };
    for _ in 0..REPETITIONS {
        let effect = one(&mut noise);
        out.covered += u64::from(covers(&effect, truth, 1.0));
        out.half += u64::from(covers(&effect, truth, 0.5));
        out.wide += u64::from(covers(&effect, truth, 10.0));
        out.shown += u64::from(effect.shown);
        out.mean += effect.difference / REPETITIONS as f64;
    }
    out
}

#[test]
fn a_planted_effect_is_covered_at_the_stated_rate() {
    let design = Design::of_sizes(&[2, 5], None).unwrap();
    let truth = 0.3;
    let counted = repeat(truth, |noise| {
        // The seed moves the loss five times as much as the order does.
        let seed = draws(noise, 5, 1.5);
        let y = responses(&design, &mut |l| {
            truth * l[0] as f64 + seed[l[1]] + noise.normal(0.1)
        });
        Effects::new(&design, &[false, true], 0.95).main(&y).remove(0)
    });
    assert!(is_95_percent(counted.covered), "{} of 200", counted.covered);
    // The same check tells intervals of another width.
    assert!(!is_95_percent(counted.half), "half the width: {}", counted.half);
    assert!(
        !is_95_percent(counted.wide),
        "ten times the width: {}",
        counted.wide
    );
    // Four standard errors of the mean of 200 means of 5 differences of two draws of 0.1.
    let error = 0.1 * 2f64.sqrt() / (5.0 * 200f64).sqrt();
    assert!((counted.mean - truth).abs() < 4.0 * error, "{}", counted.mean);
    assert!(counted.shown > 150, "claimed {} times", counted.shown);
}

#[test]
fn no_effect_is_covered_at_the_stated_rate_and_rarely_claimed() {
    let design = Design::of_sizes(&[2, 4], None).unwrap();
    let counted = repeat(0.0, |noise| {
        let seed = draws(noise, 4, 1.0);
        let y = responses(&design, &mut |l| seed[l[1]] + noise.normal(0.2));
        Effects::new(&design, &[false, true], 0.95).main(&y).remove(0)
    });
    assert!(is_95_percent(counted.covered), "{} of 200", counted.covered);
    // At most what the intervals leave: 200 - 180.
    assert!(counted.shown <= 20, "claimed {} times", counted.shown);
}

#[test]
fn a_planted_interaction_is_covered_at_the_stated_rate() {
    let design = Design::of_sizes(&[2, 2, 5], None).unwrap();
    let truth = -0.4;
    let counted = repeat(truth, |noise| {
        let seed = draws(noise, 5, 1.0);
        let y = responses(&design, &mut |l| {
            let (a, b) = (l[0] as f64, l[1] as f64);
            0.7 * a - 0.2 * b + truth * a * b + seed[l[2]] + noise.normal(0.1)
        });
        Effects::new(&design, &[false, false, true], 0.95)
            .interactions(&y)
            .remove(0)
    });
    assert!(is_95_percent(counted.covered), "{} of 200", counted.covered);
    assert!(!is_95_percent(counted.half), "half the width: {}", counted.half);
}

#[test]
fn crossed_seeds_are_covered_at_least_at_the_stated_rate() {
    let design = Design::of_sizes(&[2, 4, 4], None).unwrap();
    let truth = 0.5;
    let (mut naive, mut own) = (0, 0);
    let counted = repeat(truth, |noise| {
        let (data, init) = (draws(noise, 4, 1.0), draws(noise, 4, 1.0));
        // Each data seed deals other batches under the other order: that is what the difference varies with.
        let dealt = draws(noise, 4, 0.3);
        let y = responses(&design, &mut |l| {
            let order = l[0] as f64;
            (truth + dealt[l[1]]) * order + data[l[1]] + init[l[2]] + noise.normal(0.05)
        });
        // Sixteen differences taken for independent.
        let differences: Vec<f64> = (0..16).map(|i| y[16 + i] - y[i]).collect();
        let mean = differences.iter().sum::<f64>() / 16.0;
        let squares: f64 = differences.iter().map(|d| (d - mean).powi(2)).sum();
        let half = student::two_sided(0.05, 15.0) * (squares / 15.0 / 16.0).sqrt();
        naive += u64::from((mean - truth).abs() <= half);
        own += 1;
        Effects::new(&design, &[false, true, true], 0.95)
            .main(&y)
            .remove(0)
    });
    assert_eq!(own, REPETITIONS);
    assert!(counted.covered >= 180, "{} of 200", counted.covered);
    assert!(naive < 180, "taken for independent: {naive} of 200");
}

#[test]
fn part_of_the_combinations_is_covered_at_the_stated_rate() {
    let design = Design::of_sizes(&[2, 3, 3], Some(9)).unwrap();
    assert!(!design.is_full());
    let truth = 0.3;
    let counted = repeat(truth, |noise| {
        let (data, init) = (draws(noise, 3, 1.0), draws(noise, 3, 1.0));
        let y = responses(&design, &mut |l| {
            truth * l[0] as f64 + data[l[1]] + init[l[2]] + noise.normal(0.1)
        });
        Effects::new(&design, &[false, true, true], 0.95)
            .main(&y)
            .remove(0)
    });
    assert!(is_95_percent(counted.covered), "{} of 200", counted.covered);
    assert!(!is_95_percent(counted.half), "half the width: {}", counted.half);
}

#[test]
fn variance_falls_to_the_factor_it_was_planted_in() {
    let design = Design::of_sizes(&[3, 3, 3], None).unwrap();
    let mut noise = Noise(1);
    let y = responses(&design, &mut |l| {
        1.0 * l[0] as f64 + 0.1 * l[1] as f64 + noise.normal(0.01)
    });
    let shares = Anova::new(&design).shares(&y);
    let share = |effect: &[usize]| shares.iter().find(|s| s.effect == effect).unwrap().share;
    // Sums of squares are as 1 to 0.01.
    assert!((share(&[0]) - 1.0 / 1.01).abs() < 0.01, "{shares:?}");
    assert!((share(&[1]) - 0.01 / 1.01).abs() < 0.01, "{shares:?}");
    assert!(share(&[2]) < 0.001 && share(&[0, 1]) < 0.001);
    assert!((shares.iter().map(|s| s.share).sum::<f64>() - 1.0).abs() < 1e-9);
}

#[test]
fn nothing_varied_is_exactly_nothing() {
    let design = Design::of_sizes(&[2, 3], None).unwrap();
    let y = vec![5.123_456_789; 6];
    for effect in Effects::new(&design, &[false, true], 0.95).main(&y) {
        assert!(
            effect.exactly_zero && !effect.shown && effect.difference == 0.0,
            "{effect:?}"
        );
    }
    assert!(Anova::new(&design).shares(&y).iter().all(|s| s.share == 0.0));
}
