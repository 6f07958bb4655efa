//! Learning-rate schedules, with the names and the step convention of Hugging Face.
//!
//! Reproduces `transformers.optimization.get_scheduler` (5.24.0) under `torch.optim.lr_scheduler.LambdaLR`: the rate
//! of optimizer step `s`, counted from 0, is `lr * factor(s)`. With a warm-up the first step therefore has rate 0.
//! Everything is double precision, in the package's order of operations.

use serde::{Deserialize, Serialize};

/// Name of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleName {
    /// Linear warm-up, cosine down to `min_lr` (or `min_lr_rate` times the peak).
    CosineWithMinLr,
    /// Linear warm-up, cosine down to 0.
    Cosine,
    /// Linear warm-up, straight line down to 0.
    Linear,
    /// Warm-up, plateau, decay.
    WarmupStableDecay,
    /// The peak from the first step on.
    Constant,
    /// Linear warm-up, then the peak.
    ConstantWithWarmup,
}

/// Shape of the warm-up and the decay of `warmup_stable_decay`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ramp {
    /// A straight line.
    #[serde(rename = "linear")]
    Linear,
    /// Half a cosine.
    #[serde(rename = "cosine")]
    Cosine,
    /// `1 - sqrt(progress)`.
    #[serde(rename = "1-sqrt")]
    OneMinusSqrt,
}

/// Options of a schedule, under the names of `lr_scheduler_kwargs`. A key that the named schedule does not take is
/// refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScheduleConfig {
    /// Which schedule.
    pub name: ScheduleName,
    /// Steps of the warm-up.
    pub warmup_steps: Option<u64>,
    /// The same as a share of all steps, rounded up.
    pub warmup_ratio: Option<f64>,
    /// Steps the schedule spans; all steps of the run when absent. A run that stops earlier keeps the rates of the
    /// longer one.
    pub total_steps: Option<u64>,
    /// Waves of the cosine; 0.5 is one half wave down.
    pub num_cycles: Option<f64>,
    /// Lowest rate (`cosine_with_min_lr`).
    pub min_lr: Option<f64>,
    /// Lowest rate over the peak (`cosine_with_min_lr`).
    pub min_lr_rate: Option<f64>,
    /// Lowest rate over the peak (`warmup_stable_decay`).
    pub min_lr_ratio: Option<f64>,
    /// Steps of the decay (`warmup_stable_decay`).
    pub num_decay_steps: Option<u64>,
    /// Steps of the plateau (`warmup_stable_decay`); what is left when absent.
    pub num_stable_steps: Option<u64>,
    /// Shape of the warm-up (`warmup_stable_decay`).
    pub warmup_type: Option<Ramp>,
    /// Shape of the decay (`warmup_stable_decay`).
    pub decay_type: Option<Ramp>,
}

impl Default for ScheduleConfig {
    fn default() -> Self {
        ScheduleConfig {
            name: ScheduleName::Constant,
            warmup_steps: None,
            warmup_ratio: None,
            total_steps: None,
            num_cycles: None,
            min_lr: None,
            min_lr_rate: None,
            min_lr_ratio: None,
            num_decay_steps: None,
            num_stable_steps: None,
            warmup_type: None,
            decay_type: None,
        }
    }
}

/// Why a schedule is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("schedule.{key}: {problem}")]
pub struct ScheduleError {
    /// The key.
    pub key: &'static str,
    /// What is wrong and what is allowed.
    pub problem: String,
}

/// A schedule ready to be asked.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    peak: f64,
    shape: Shape,
}

#[derive(Clone, Debug, PartialEq)]
enum Shape {
    Constant,
    ConstantWithWarmup {
        warmup: u64,
    },
    Linear {
        warmup: u64,
        total: u64,
    },
    Cosine {
        warmup: u64,
        total: u64,
        cycles: f64,
        floor: f64,
    },
    WarmupStableDecay {
        warmup: u64,
        stable: u64,
        decay: u64,
        warmup_type: Ramp,
        decay_type: Ramp,
        floor: f64,
        cycles: f64,
    },
}

impl ScheduleConfig {
    fn given(&self) -> [(&'static str, bool); 11] {
        [
            ("warmup_steps", self.warmup_steps.is_some()),
            ("warmup_ratio", self.warmup_ratio.is_some()),
            ("total_steps", self.total_steps.is_some()),
            ("num_cycles", self.num_cycles.is_some()),
            ("min_lr", self.min_lr.is_some()),
            ("min_lr_rate", self.min_lr_rate.is_some()),
            ("min_lr_ratio", self.min_lr_ratio.is_some()),
            ("num_decay_steps", self.num_decay_steps.is_some()),
            ("num_stable_steps", self.num_stable_steps.is_some()),
            ("warmup_type", self.warmup_type.is_some()),
            ("decay_type", self.decay_type.is_some()),
        ]
    }

    /// Builds the schedule of a run of `steps` optimizer steps with peak rate `peak`.
    ///
    /// # Errors
    /// A key the schedule does not take, a missing or contradicting one, or a value out of range.
    pub fn build(&self, peak: f64, steps: u64) -> Result<Schedule, ScheduleError> {
        use ScheduleName as N;
        let refuse = |key, problem: String| Err(ScheduleError { key, problem });
        let allowed: &[&str] = match self.name {
            N::Constant => &[],
            N::ConstantWithWarmup => &["warmup_steps", "warmup_ratio", "total_steps"],
            N::Linear => &["warmup_steps", "warmup_ratio", "total_steps"],
            N::Cosine => &["warmup_steps", "warmup_ratio", "total_steps", "num_cycles"],
            N::CosineWithMinLr => &[
                "warmup_steps",
                "warmup_ratio",
                "total_steps",
                "num_cycles",
                "min_lr",
                "min_lr_rate",
            ],
            N::WarmupStableDecay => &[
                "warmup_steps",
                "warmup_ratio",
                "total_steps",
                "num_cycles",
                "min_lr_ratio",
                "num_decay_steps",
                "num_stable_steps",
                "warmup_type",
                "decay_type",
            ],
        };
        if let Some((key, _)) = self
            .given()
            .into_iter()
            .find(|(k, given)| *given && !allowed.contains(k))
        {
            let name = serde_json::to_value(self.name).unwrap_or_default();
            let list = if allowed.is_empty() {
                "no options".to_string()
            } else {
                allowed.join(", ")
            };
            return refuse(
                key,
                format!("is not an option of schedule {name} (it takes: {list})"),
            );
        }
        for (key, value) in [
            ("min_lr", self.min_lr),
            ("min_lr_rate", self.min_lr_rate),
            ("min_lr_ratio", self.min_lr_ratio),
            ("warmup_ratio", self.warmup_ratio),
            ("num_cycles", self.num_cycles),
        ] {
            if value.is_some_and(|v| !v.is_finite() || v < 0.0) {
                return refuse(key, "must be finite and not negative".into());
            }
        }
        let total = self.total_steps.unwrap_or(steps);
        let warmup = match (self.warmup_steps, self.warmup_ratio) {
            (Some(_), Some(_)) => {
                return refuse("warmup_ratio", "give either warmup_steps or warmup_ratio".into());
            }
            (Some(n), None) => n,
            (None, Some(ratio)) if ratio <= 1.0 => (total as f64 * ratio).ceil() as u64,
            (None, Some(_)) => return refuse("warmup_ratio", "must be at most 1".into()),
            (None, None) => 0,
        };
        let cycles = self.num_cycles.unwrap_or(0.5);
        let shape = match self.name {
            N::Constant => Shape::Constant,
            N::ConstantWithWarmup => Shape::ConstantWithWarmup { warmup },
            N::Linear => Shape::Linear { warmup, total },
            N::Cosine => Shape::Cosine {
                warmup,
                total,
                cycles,
                floor: 0.0,
            },
            N::CosineWithMinLr => {
                let floor = match (self.min_lr, self.min_lr_rate) {
                    (Some(_), Some(_)) => {
                        return refuse("min_lr_rate", "give either min_lr or min_lr_rate".into());
                    }
                    (Some(min), None) => min / peak,
                    (None, Some(rate)) => rate,
                    (None, None) => return refuse("min_lr", "give min_lr or min_lr_rate".into()),
                };
                Shape::Cosine {
                    warmup,
                    total,
                    cycles,
                    floor,
                }
            }
            N::WarmupStableDecay => {
                let Some(decay) = self.num_decay_steps else {
                    return refuse("num_decay_steps", "is required".into());
                };
                let stable = match self.num_stable_steps {
                    Some(stable) => stable,
                    None => match total.checked_sub(warmup + decay) {
                        Some(stable) => stable,
                        None => {
                            return refuse(
                                "num_decay_steps",
                                format!(
                                    "warm-up {warmup} and decay {decay} are longer than the {total} steps"
                                ),
                            );
                        }
                    },
                };
                Shape::WarmupStableDecay {
                    warmup,
                    stable,
                    decay,
                    warmup_type: self.warmup_type.unwrap_or(Ramp::Linear),
                    decay_type: self.decay_type.unwrap_or(Ramp::Cosine),
                    floor: self.min_lr_ratio.unwrap_or(0.0),
                    cycles,
                }
            }
        };
        if !(peak.is_finite() && peak >= 0.0) {
            return refuse(
                "name",
                format!("the learning rate {peak} must be finite and not negative"),
            );
        }
        Ok(Schedule { peak, shape })
    }
}

impl Schedule {
    /// Learning rate of optimizer step `step`, counted from 0.
    pub fn learning_rate(&self, step: u64) -> f64 {
        self.peak * self.factor(step)
    }

    fn factor(&self, step: u64) -> f64 {
        let share = |step: u64, of: u64| step as f64 / of.max(1) as f64;
        let wave = |cycles: f64, progress: f64| (std::f64::consts::PI * cycles * 2.0 * progress).cos();
        match self.shape {
            Shape::Constant => 1.0,
            Shape::ConstantWithWarmup { warmup } if step < warmup => share(step, warmup),
            Shape::ConstantWithWarmup { .. } => 1.0,
            Shape::Linear { warmup, .. } | Shape::Cosine { warmup, .. } if step < warmup => {
                share(step, warmup)
            }
            Shape::Linear { warmup, total } => {
                (0f64).max((total as f64 - step as f64) / total.saturating_sub(warmup).max(1) as f64)
            }
            Shape::Cosine {
                warmup,
                total,
                cycles,
                floor,
            } => {
                let progress = share(step - warmup, total.saturating_sub(warmup));
                let factor = 0.5 * (1.0 + wave(cycles, progress));
                (0f64).max(factor * (1.0 - floor) + floor)
            }
            Shape::WarmupStableDecay {
                warmup,
                stable,
                decay,
                warmup_type,
                decay_type,
                floor,
                cycles,
            } => {
                let lifted = |factor: f64| (0f64).max(factor * (1.0 - floor) + floor);
                if step < warmup {
                    let progress = share(step, warmup);
                    lifted(match warmup_type {
                        Ramp::Linear => progress,
                        Ramp::Cosine => 0.5 * (1.0 - (std::f64::consts::PI * progress).cos()),
                        Ramp::OneMinusSqrt => 1.0 - (1.0 - progress).sqrt(),
                    })
                } else if step < warmup + stable {
                    1.0
                } else if step < warmup + stable + decay {
                    let progress = share(step - warmup - stable, decay);
                    lifted(match decay_type {
                        Ramp::Linear => 1.0 - progress,
                        Ramp::Cosine => 0.5 * (1.0 + wave(cycles, progress)),
                        Ramp::OneMinusSqrt => 1.0 - progress.sqrt(),
                    })
                } else {
                    floor
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_step_of_a_warmup_has_rate_zero() {
        let config = ScheduleConfig {
            name: ScheduleName::CosineWithMinLr,
            warmup_steps: Some(200),
            min_lr: Some(2e-5),
            ..Default::default()
        };
        let schedule = config.build(2e-4, 4768).unwrap();
        assert_eq!(schedule.learning_rate(0), 0.0);
        assert_eq!(schedule.learning_rate(200), 2e-4);
        assert!((schedule.learning_rate(4768) - 2e-5).abs() < 1e-18);
    }

    #[test]
    fn keys_of_another_schedule_are_refused() {
        let config = ScheduleConfig {
            name: ScheduleName::Linear,
            min_lr: Some(1e-5),
            ..Default::default()
        };
        let error = config.build(1e-3, 10).unwrap_err();
        assert_eq!(error.key, "min_lr");
        assert!(error.to_string().contains("warmup_steps"), "{error}");
        let none = ScheduleConfig {
            name: ScheduleName::CosineWithMinLr,
            ..Default::default()
        };
        assert_eq!(none.build(1e-3, 10).unwrap_err().key, "min_lr");
    }
}
