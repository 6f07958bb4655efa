//! Knobs of the stack this trainer is compared with, under their YAML names and environment variables.
//!
//! Names, types, defaults and precedence (environment, then YAML) as its `fla_runtime_patches` resolves them. Each knob
//! either selects the matching setting or changes nothing, and then says why. The Megatron names of the same recipes are
//! taken as other spellings of our settings.

use serde_json::Value;

/// Type of a knob's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    Flag,
    Integer,
    Float,
    Text,
}

/// What a knob does.
#[derive(Clone, Copy, Debug)]
enum Action {
    /// Another spelling of a setting.
    Same(&'static str),
    /// Both seeds.
    Seed,
    /// Changes nothing, for this reason.
    Nothing(&'static str),
    /// `use_fla_data`.
    FlaData,
    /// `fla_cache_dir`.
    FlaCacheDir,
    /// `fused_ce_mode`.
    LossMode,
    /// `fused_ce_chunks`.
    LossChunks,
}

/// One knob.
#[derive(Debug)]
pub struct Knob {
    /// YAML name; for a knob that only exists as a variable, its variable.
    pub name: &'static str,
    /// Environment variable.
    pub variable: Option<&'static str>,
    kind: Type,
    action: Action,
}

/// Settings a knob asks for, and a sentence about it.
#[derive(Debug)]
pub(super) struct Effect {
    pub settings: Vec<(&'static str, Value)>,
    pub note: String,
}

const fn knob(name: &'static str, variable: Option<&'static str>, kind: Type, action: Action) -> Knob {
    Knob {
        name,
        variable,
        kind,
        action,
    }
}

const FUSED: &str = "changes nothing: this unit is one fused operator here, with the same mathematics";

/// Every knob.
pub static KNOBS: [Knob; 34] = [
    knob(
        "use_fla_fused_swiglu",
        Some("PRIMUS_FLA_SWIGLU"),
        Type::Flag,
        Action::Nothing(FUSED),
    ),
    knob(
        "use_fla_fused_swiglu_linear",
        Some("PRIMUS_FLA_SWIGLU_LINEAR"),
        Type::Flag,
        Action::Nothing(
            "changes nothing: whether the activation is kept or made anew changes no bit of a result",
        ),
    ),
    knob(
        "use_fla_fused_rmsnorm",
        Some("PRIMUS_FLA_NORM"),
        Type::Flag,
        Action::Nothing(FUSED),
    ),
    knob(
        "use_fla_fused_gated_norm",
        Some("PRIMUS_FLA_NORM"),
        Type::Flag,
        Action::Nothing(FUSED),
    ),
    knob(
        "use_fla_short_conv",
        Some("PRIMUS_FLA_CONV"),
        Type::Flag,
        Action::Nothing(FUSED),
    ),
    knob(
        "use_fla_data",
        Some("PRIMUS_FLA_DATA"),
        Type::Flag,
        Action::FlaData,
    ),
    knob(
        "fla_cache_dir",
        Some("PRIMUS_FLA_CACHE_DIR"),
        Type::Text,
        Action::FlaCacheDir,
    ),
    knob(
        "fused_ce_mode",
        Some("PRIMUS_FUSED_CE"),
        Type::Integer,
        Action::LossMode,
    ),
    knob(
        "fused_ce_chunks",
        Some("PRIMUS_FUSED_CE_CHUNKS"),
        Type::Integer,
        Action::LossChunks,
    ),
    knob(
        "fla_mla_attn",
        Some("PRIMUS_FLA_MLA_ATTN"),
        Type::Text,
        Action::Nothing("changes nothing: the network has no attention layers"),
    ),
    knob(
        "PRIMUS_TORCH_OPTIM",
        Some("PRIMUS_TORCH_OPTIM"),
        Type::Flag,
        Action::Nothing("changes nothing: AdamW always follows torch.optim.AdamW"),
    ),
    knob(
        "micro_batch_size",
        None,
        Type::Integer,
        Action::Same("batch.micro_batch_size"),
    ),
    knob(
        "global_batch_size",
        None,
        Type::Integer,
        Action::Same("batch.global_batch_size"),
    ),
    knob("seq_length", None, Type::Integer, Action::Same("data.seq_length")),
    knob("train_iters", None, Type::Integer, Action::Same("train.steps")),
    knob("lr", None, Type::Float, Action::Same("optimizer.lr")),
    knob("min_lr", None, Type::Float, Action::Same("schedule.min_lr")),
    knob(
        "lr_warmup_iters",
        None,
        Type::Integer,
        Action::Same("schedule.warmup_steps"),
    ),
    knob(
        "lr_decay_iters",
        None,
        Type::Integer,
        Action::Same("schedule.total_steps"),
    ),
    knob("adam_beta1", None, Type::Float, Action::Same("optimizer.beta1")),
    knob("adam_beta2", None, Type::Float, Action::Same("optimizer.beta2")),
    knob("adam_eps", None, Type::Float, Action::Same("optimizer.eps")),
    knob(
        "weight_decay",
        None,
        Type::Float,
        Action::Same("optimizer.weight_decay"),
    ),
    knob(
        "clip_grad",
        None,
        Type::Float,
        Action::Same("optimizer.max_grad_norm"),
    ),
    knob("norm_epsilon", None, Type::Float, Action::Same("model.norm_eps")),
    knob("seed", None, Type::Integer, Action::Seed),
    knob(
        "save_interval",
        None,
        Type::Integer,
        Action::Same("checkpoint.every"),
    ),
    knob("eval_interval", None, Type::Integer, Action::Same("eval.every")),
    knob("num_workers", None, Type::Integer, Action::Same("loader.workers")),
    knob(
        "use_short_conv",
        None,
        Type::Flag,
        Action::Same("model.use_short_conv"),
    ),
    knob(
        "linear_conv_kernel_dim",
        None,
        Type::Integer,
        Action::Same("model.conv_size"),
    ),
    knob(
        "linear_key_head_dim",
        None,
        Type::Integer,
        Action::Same("model.head_dim"),
    ),
    knob(
        "linear_num_key_heads",
        None,
        Type::Integer,
        Action::Same("model.num_heads"),
    ),
    knob(
        "linear_num_value_heads",
        None,
        Type::Integer,
        Action::Same("model.num_v_heads"),
    ),
];

/// The knob of this YAML name.
pub fn find(name: &str) -> Option<&'static Knob> {
    KNOBS.iter().find(|k| k.name == name)
}

/// Names a misspelt key may have meant.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    KNOBS.iter().map(|k| k.name)
}

/// Knobs that the environment sets: variable, knob, value.
pub(super) fn from_environment(
    environment: &dyn Fn(&str) -> Option<String>,
) -> Vec<(&'static str, &'static Knob, Result<Value, String>)> {
    KNOBS
        .iter()
        .filter_map(|knob| {
            let variable = knob.variable?;
            let text = environment(variable)?;
            Some((variable, knob, knob.parse(&text)))
        })
        .collect()
}

impl Knob {
    /// A variable's text as the knob's type: flags are on unless `0`, empty, `false` or `False`.
    fn parse(&self, text: &str) -> Result<Value, String> {
        match self.kind {
            Type::Flag => Ok(Value::Bool(!matches!(text, "0" | "" | "false" | "False"))),
            Type::Integer => text
                .trim()
                .parse::<i64>()
                .map(Value::from)
                .map_err(|_| format!("'{text}' is not a whole number")),
            Type::Float => text
                .trim()
                .parse::<f64>()
                .map(Value::from)
                .map_err(|_| format!("'{text}' is not a number")),
            Type::Text => Ok(Value::from(text)),
        }
    }

    /// Checks a value from YAML or `--set`.
    pub(super) fn check(&self, value: Value) -> Result<Value, String> {
        let fits = match self.kind {
            Type::Flag => value.is_boolean(),
            Type::Integer => value.is_i64() || value.is_u64(),
            Type::Float => value.is_number(),
            Type::Text => value.is_string(),
        };
        let expected = match self.kind {
            Type::Flag => "true or false",
            Type::Integer => "a whole number",
            Type::Float => "a number",
            Type::Text => "text",
        };
        if !fits {
            return Err(format!("{value} is not {expected}"));
        }
        match (self.action, value.as_i64()) {
            (Action::LossMode, Some(mode)) if !(0..=2).contains(&mode) => {
                Err(format!("{mode}; allowed: 0, 1, 2"))
            }
            (Action::LossChunks, Some(chunks)) if chunks < 1 => Err(format!("{chunks}; allowed: 1 or more")),
            _ => Ok(value),
        }
    }

    /// What the knob asks for, given all knobs that are set.
    pub(super) fn effect(&self, value: &Value, given: &[(&'static Knob, Value)]) -> Effect {
        let of = |name: &str| given.iter().find(|(k, _)| k.name == name).map(|(_, v)| v);
        let nothing = |note: &str| Effect {
            settings: Vec::new(),
            note: note.to_owned(),
        };
        let set = |settings: Vec<(&'static str, Value)>| Effect {
            note: settings
                .iter()
                .map(|(key, value)| format!("taken as {key} = {value}"))
                .collect::<Vec<_>>()
                .join(", "),
            settings,
        };
        match self.action {
            Action::Same(key) => set(vec![(key, value.clone())]),
            Action::Seed => set(vec![("seeds.data", value.clone()), ("seeds.init", value.clone())]),
            Action::Nothing(why) => nothing(why),
            Action::FlaData if *value == Value::Bool(true) => set(vec![("order.name", Value::from("fla"))]),
            Action::FlaData => nothing("changes nothing: the order is what `order` says"),
            Action::FlaCacheDir if value.as_str() == Some("") => nothing("changes nothing: it is empty"),
            Action::FlaCacheDir if of("use_fla_data") == Some(&Value::Bool(true)) => {
                set(vec![("data.cache_dir", value.clone())])
            }
            Action::FlaCacheDir => nothing("changes nothing without use_fla_data: true, as there"),
            Action::LossMode => match (value.as_i64(), of("fused_ce_chunks")) {
                (Some(1), None) => set(vec![("loss.chunks", Value::from(32))]),
                (Some(1), Some(_)) => {
                    nothing("the loss is computed in chunks; fused_ce_chunks says in how many")
                }
                _ => nothing(
                    "changes nothing: the loss is always computed in chunks and a full logits tensor never exists; the sum \
                     over chunks is the same token mean",
                ),
            },
            Action::LossChunks => match of("fused_ce_mode").and_then(Value::as_i64) {
                Some(0 | 2) => nothing("changes nothing with fused_ce_mode 0 or 2, as there"),
                _ => set(vec![("loss.chunks", value.clone())]),
            },
        }
    }
}
