//! Flags that say which order: `--order NAME`, one flag for every option an order in the registry has, and the
//! layout over ranks. The option flags are made from the registry, so an order's options appear here, in help and
//! in YAML under one name.

use std::collections::BTreeMap;
use std::sync::Arc;

use ceteris_samplers::orders::file::FileOrder;
use ceteris_samplers::orders::megatron_dataset::MegatronDataset;
use ceteris_samplers::orders::megatron_sampler::SamplerError;
use ceteris_samplers::orders::{self, OptionHelp};
use ceteris_samplers::spec::{OrderError, OrderInput};
use ceteris_samplers::{Geometry, Order, OrderSpec};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use serde_json::Value;

use super::config::Config;
use super::failure::{Failure, OrFix};
use crate::order_file;

/// Keys whose flag, `--key`, means the dataset or the part to write; an option of that name is set with
/// `--order-key`.
const TAKEN: &[&str] = &[
    "num_samples",
    "split",
    "column",
    "indices",
    "seq_length",
    "epoch",
    "epochs",
    "steps",
    "rank",
];

/// What the flags say of the order, before the configuration file is asked.
#[derive(Clone, Debug, Default)]
pub struct OrderArgs {
    name: Option<String>,
    options: Vec<(String, Value)>,
    geometry: GeometryArgs,
}

/// The layout over ranks.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct GeometryArgs {
    /// Data-parallel ranks of the run to replay (default 1). Any number runs on one machine: one process plays all
    /// ranks in turn.
    #[arg(long, value_name = "W", help_heading = "Layout")]
    world_size: Option<u64>,
    /// Rows of one forward pass on one rank (per_device_train_batch_size; default 1).
    #[arg(long, value_name = "B", help_heading = "Layout")]
    micro_batch_size: Option<u64>,
    /// Micro-steps of one optimizer step (default 1).
    #[arg(long, value_name = "A", help_heading = "Layout")]
    gradient_accumulation_steps: Option<u64>,
}

/// An option key, and every order that has it.
struct OptionOfOrders {
    help: &'static OptionHelp,
    orders: Vec<(&'static str, &'static OptionHelp)>,
}

impl OptionOfOrders {
    /// What --help says: the effect, and for each default the orders that have it.
    fn about(&self) -> String {
        let mut by_default: Vec<(&str, Vec<&str>)> = Vec::new();
        for (order, help) in &self.orders {
            match by_default
                .iter_mut()
                .find(|(default, _)| *default == help.default)
            {
                Some((_, orders)) => orders.push(order),
                None => by_default.push((help.default, vec![order])),
            }
        }
        let defaults: Vec<String> = by_default
            .iter()
            .map(|(default, orders)| format!("{}: default {default}", orders.join(", ")))
            .collect();
        let differs = self.orders.iter().any(|(_, help)| help.help != self.help.help);
        let more = if differs {
            "; `loader orders NAME` has the details of each"
        } else {
            ""
        };
        format!("{}{more} [{}]", self.help.help, defaults.join("; "))
    }

    /// Some order has it on when nothing is said.
    fn is_on_somewhere(&self) -> bool {
        self.orders.iter().any(|(_, help)| help.default == "true")
    }
}

/// Every option of every order, by key.
fn registry_options() -> BTreeMap<&'static str, OptionOfOrders> {
    let mut all: BTreeMap<&'static str, OptionOfOrders> = BTreeMap::new();
    for entry in orders::REGISTRY {
        for help in entry.options {
            let option = all.entry(help.key).or_insert_with(|| OptionOfOrders {
                help,
                orders: Vec::new(),
            });
            option.orders.push((entry.name, help));
        }
    }
    all
}

fn is_switch(help: &OptionHelp) -> bool {
    help.values == "true, false"
}

/// The flag of an option, without its dashes.
pub fn flag_name(key: &str) -> String {
    let prefix = if TAKEN.contains(&key) { "order-" } else { "" };
    format!("{prefix}{}", key.replace('_', "-"))
}

impl Args for OrderArgs {
    fn augment_args(command: Command) -> Command {
        let names: Vec<&str> = orders::REGISTRY.iter().map(|entry| entry.name).collect();
        let mut command = command.arg(
            Arg::new("order")
                .long("order")
                .value_name("NAME")
                .help_heading("Order")
                .help(format!(
                    "The order to replay: {}. `loader orders` says which one a run had",
                    names.join(", ")
                )),
        );
        for (key, option) in registry_options() {
            let about = option.about();
            let arg = Arg::new(format!("order.{key}"))
                .long(flag_name(key))
                .help_heading("Order")
                .help(about);
            command = command.arg(if is_switch(option.help) {
                arg.value_name("BOOL")
                    .num_args(0..=1)
                    .require_equals(true)
                    .default_missing_value("true")
            } else {
                arg.value_name("VALUE").allow_hyphen_values(true)
            });
            if is_switch(option.help) {
                command = command.arg(
                    Arg::new(format!("no-order.{key}"))
                        .long(format!("no-{}", flag_name(key)))
                        .action(ArgAction::SetTrue)
                        .hide(!option.is_on_somewhere())
                        .conflicts_with(format!("order.{key}"))
                        .help_heading("Order")
                        .help(format!("The same as --{}=false", flag_name(key))),
                );
            }
        }
        GeometryArgs::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for OrderArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut args = Self {
            name: matches.get_one("order").cloned(),
            options: Vec::new(),
            geometry: GeometryArgs::from_arg_matches(matches)?,
        };
        for (key, option) in registry_options() {
            if let Some(text) = matches.get_one::<String>(&format!("order.{key}")) {
                args.options.push((key.to_string(), yaml_value(key, text)?));
            } else if is_switch(option.help) && matches.get_flag(&format!("no-order.{key}")) {
                args.options.push((key.to_string(), Value::Bool(false)));
            }
        }
        Ok(args)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The value of an option flag, written as it would be in YAML.
fn yaml_value(key: &str, text: &str) -> Result<Value, clap::Error> {
    let wrong = |why: String| {
        let message = format!("--{} {text}: {why}\n", flag_name(key));
        clap::Error::raw(clap::error::ErrorKind::ValueValidation, message)
    };
    let yaml: serde_yaml::Value = serde_yaml::from_str(text).map_err(|e| wrong(e.to_string()))?;
    serde_json::to_value(yaml).map_err(|e| wrong(e.to_string()))
}

/// The order asked for, by flags and file together.
#[derive(Clone, Debug)]
pub struct OrderChoice {
    /// The spec.
    pub spec: OrderSpec,
    /// The layout as the user gave it.
    pub geometry: Geometry,
}

impl OrderArgs {
    /// Flags and file together.
    ///
    /// # Errors
    /// A failure naming the option at fault.
    pub fn resolve(&self, config: &mut Config) -> Result<OrderChoice, Failure> {
        self.resolve_with(
            config,
            Geometry {
                world_size: 1,
                micro_batch_size: 1,
                gradient_accumulation_steps: 1,
            },
        )
    }

    /// Flags and file together; what neither says of the layout is as in `otherwise`.
    ///
    /// # Errors
    /// A failure naming the option at fault.
    pub fn resolve_with(&self, config: &mut Config, otherwise: Geometry) -> Result<OrderChoice, Failure> {
        let (name, options) = self.name_and_options(config)?;
        let spec = OrderSpec::from_options(&name, options).map_err(|error| match config.path() {
            Some(path) => Failure::from(error).context(format!("{} and the flags", path.display())),
            None => Failure::from(error),
        });
        let spec = spec.or_fix("`loader orders` lists every order and its options")?;
        Ok(OrderChoice {
            spec,
            geometry: self.geometry.resolve(config, otherwise)?,
        })
    }

    /// The order's name, and its options with those of the flags in place of the file's.
    fn name_and_options(&self, config: &mut Config) -> Result<(String, Vec<(String, Value)>), Failure> {
        let mut options = config.order_options();
        let filed = options
            .iter()
            .position(|(key, _)| key == "name")
            .map(|at| options.remove(at).1);
        let name = match (&self.name, filed) {
            (Some(flag), Some(filed)) => {
                let filed = filed.as_str().unwrap_or_default();
                if flag != filed {
                    config.note(&format!("--order {flag}"), "order", "name", filed);
                }
                flag.clone()
            }
            (Some(flag), None) => flag.clone(),
            (None, Some(Value::String(filed))) => filed,
            (None, Some(other)) => {
                return Err(Failure::new(format!("order.name must be a name, not {other}")));
            }
            (None, None) => {
                return Err(Failure::new("no order is named").fix(
                    "give --order NAME, or `order: { name: … }` in a --config file; `loader orders` lists them",
                ));
            }
        };
        for (key, value) in &self.options {
            match options.iter_mut().find(|(filed, _)| filed == key) {
                Some((_, filed)) => {
                    if filed != value {
                        config.note(
                            &format!("--{} {value}", flag_name(key)),
                            "order",
                            key,
                            &filed.to_string(),
                        );
                    }
                    *filed = value.clone();
                }
                None => options.push((key.clone(), value.clone())),
            }
        }
        Ok((name, options))
    }
}

impl OrderArgs {
    /// The same flags but for those that set one of `keys`.
    #[must_use]
    pub fn without(&self, keys: &[&str]) -> Self {
        let mut args = self.clone();
        if keys.contains(&"name") {
            args.name = None;
        }
        args.options.retain(|(key, _)| !keys.contains(&key.as_str()));
        for (key, flag) in [
            ("world_size", &mut args.geometry.world_size),
            ("micro_batch_size", &mut args.geometry.micro_batch_size),
            (
                "gradient_accumulation_steps",
                &mut args.geometry.gradient_accumulation_steps,
            ),
        ] {
            if keys.contains(&key) {
                *flag = None;
            }
        }
        args
    }

    /// A flag names the order.
    pub fn is_named(&self) -> bool {
        self.name.is_some()
    }

    /// The layout that flags ask for, 1 where they do not.
    pub fn layout_asked(&self) -> Geometry {
        Geometry {
            world_size: self.geometry.world_size.unwrap_or(1),
            micro_batch_size: self.geometry.micro_batch_size.unwrap_or(1),
            gradient_accumulation_steps: self.geometry.gradient_accumulation_steps.unwrap_or(1),
        }
    }

    /// A flag says how many micro-steps make a step.
    pub fn asks_for_accumulation(&self) -> bool {
        self.geometry.gradient_accumulation_steps.is_some()
    }
}

impl GeometryArgs {
    fn resolve(self, config: &mut Config, otherwise: Geometry) -> Result<Geometry, Failure> {
        let mut choose = |key: &str, flag, otherwise| -> Result<u64, Failure> {
            Ok(config.choose("run", key, flag)?.unwrap_or(otherwise))
        };
        let geometry = Geometry {
            world_size: choose("world_size", self.world_size, otherwise.world_size)?,
            micro_batch_size: choose(
                "micro_batch_size",
                self.micro_batch_size,
                otherwise.micro_batch_size,
            )?,
            gradient_accumulation_steps: choose(
                "gradient_accumulation_steps",
                self.gradient_accumulation_steps,
                otherwise.gradient_accumulation_steps,
            )?,
        };
        geometry.check()?;
        Ok(geometry)
    }
}

impl OrderChoice {
    /// Builds the order over a dataset of `num_samples` rows, or over a Megatron dataset of that many ids.
    ///
    /// # Errors
    /// A failure when dataset and spec do not fit.
    pub fn build(
        &self,
        num_samples: u64,
        megatron: Option<Arc<MegatronDataset>>,
    ) -> Result<Arc<dyn Order>, Failure> {
        let mut input = OrderInput::new(num_samples, self.geometry);
        input.megatron = megatron;
        let mut spec = self.spec.clone();
        if let Some(file) = self.spec.downcast::<FileOrder>() {
            let (list, digest) = order_file::read(file, num_samples)?;
            spec = OrderSpec::new(file.with_digest(digest));
            input.list = Some(Arc::new(list));
        }
        spec.build(&input).map_err(|error| {
            let fix = fix_of(&error);
            let failure = Failure::from(error);
            match fix {
                Some(fix) => failure.fix(fix),
                None => failure,
            }
        })
    }
}

/// What to do about a Megatron sampler that cannot start.
fn fix_of(error: &OrderError) -> Option<&'static str> {
    match error {
        OrderError::MegatronSampler(SamplerError::Consumed { .. }) => Some(
            "give a smaller --consumed-samples, or the run's own --samples (train_samples, or train_iters times the \
             global batch), which may lay the data out more than once",
        ),
        OrderError::MegatronSampler(SamplerError::NoBatch { .. }) => Some(
            "use a smaller --world-size or --micro-batch-size, or ask for more with --samples, which lays the data out \
             again",
        ),
        OrderError::MegatronSampler(SamplerError::InsideBatch { .. }) => {
            Some("give the --world-size and --micro-batch-size that the run had")
        }
        _ => None,
    }
}
