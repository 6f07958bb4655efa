//! Settings: layers, refusals, provenance, names of other stacks.

use std::path::Path;

use ceteris_trainer::config::{self, Composed};
use tempfile::TempDir;

const BASE: &str = "
model: {hidden_size: 64, num_heads: 2, head_dim: 16, expand_v: 1.0, num_hidden_layers: 1, vocab_size: 97}
data: {cache_dir: some/where, seq_length: 128}
order: fla
train: {steps: 10}
";

fn load_with(files: &[(&str, &str)], sets: &[&str], env: &[(&str, &str)]) -> Result<Composed, String> {
    let folder = TempDir::new().unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let sets: Vec<String> = sets.iter().map(|s| (*s).to_owned()).collect();
    let environment = |name: &str| env.iter().find(|(k, _)| *k == name).map(|(_, v)| (*v).to_owned());
    let main: &Path = &folder.path().join(files[0].0);
    config::load(Some(main), &sets, &environment).map_err(|e| e.to_string())
}

fn load(text: &str, sets: &[&str]) -> Result<Composed, String> {
    load_with(&[("run.yaml", text)], sets, &[])
}

fn refused(text: &str, sets: &[&str]) -> String {
    load(text, sets).expect_err("must be refused")
}

#[test]
fn later_layers_win_and_their_origin_is_told() {
    let composed = load_with(
        &[
            (
                "run.yaml",
                "extends: [base.yaml, more.yaml]\ntrain: {steps: 20}\n",
            ),
            ("base.yaml", BASE),
            ("more.yaml", "optimizer: {lr: 2e-4}\nseeds: {init: 7}\n"),
        ],
        &["optimizer.lr=1e-4", "seeds.data=3"],
        &[],
    )
    .unwrap();
    assert_eq!(composed.config.train.steps, Some(20));
    assert_eq!(composed.config.optimizer.lr, 1e-4);
    assert_eq!((composed.config.seeds.data, composed.config.seeds.init), (3, 7));
    let table = composed.table();
    let line = |key: &str| {
        table
            .lines()
            .find(|l| l.split_whitespace().next() == Some(key))
            .unwrap_or_else(|| panic!("{key} is not in\n{table}"))
    };
    assert!(line("optimizer.lr").ends_with("--set"));
    assert!(line("seeds.init").ends_with("more.yaml"));
    assert!(line("model.hidden_size").ends_with("base.yaml"));
    assert!(line("train.steps").ends_with("run.yaml"));
    assert!(line("optimizer.eps").ends_with("default"));
}

#[test]
fn resolved_settings_read_back_to_themselves() {
    let composed = load(
        BASE,
        &["schedule.name=cosine_with_min_lr", "schedule.min_lr=1e-5"],
    )
    .unwrap();
    let text = composed.config.to_yaml().unwrap();
    let again = load(&text, &[]).unwrap();
    assert_eq!(composed.config, again.config, "{text}");
}

#[test]
fn what_no_setting_has_is_refused_with_the_nearest_one() {
    let typo = refused(&format!("{BASE}optimiser: {{lr: 1}}\n"), &[]);
    assert!(
        typo.contains("'optimiser'") && typo.contains("did you mean 'optimizer'?"),
        "{typo}"
    );
    let inner = refused(BASE, &["optimizer.weigth_decay=0.1"]);
    assert!(
        inner.contains("optimizer.weigth_decay") && inner.contains("'weight_decay'"),
        "{inner}"
    );
    let foreign = refused(BASE, &["order.split=1,2"]);
    assert!(foreign.contains("split"), "{foreign}");
    let unknown_order = refused(BASE, &["order=flaa"]);
    assert!(unknown_order.contains("fla"), "{unknown_order}");
    let section = refused(BASE, &["train=3"]);
    assert!(section.contains("not a section"), "{section}");
    let value = refused(BASE, &["seeds.init.x=3"]);
    assert!(value.contains("seeds.init"), "{value}");
}

#[test]
fn types_and_twice_given_keys_are_refused() {
    let typed = refused(BASE, &["train.steps=many"]);
    assert!(
        typed.contains("--set") && typed.contains("train.steps"),
        "{typed}"
    );
    let twice = refused(&format!("{BASE}train: {{steps: 5}}\n"), &[]);
    assert!(twice.contains("duplicate"), "{twice}");
    assert!(refused(BASE, &["train.steps"]).contains("key=value"));
    assert!(refused(BASE, &["train.steps="]).contains("key=value"));
    let missing = load_with(&[("run.yaml", "extends: nowhere.yaml\n")], &[], &[]).unwrap_err();
    assert!(missing.contains("nowhere.yaml"), "{missing}");
    let circle = load_with(&[("run.yaml", "extends: run.yaml\n")], &[], &[]).unwrap_err();
    assert!(circle.contains("extends itself"), "{circle}");
}

#[test]
fn combinations_are_refused_with_what_is_allowed() {
    for (set, part) in [
        ("model.num_v_heads=3", "num_v_heads"),
        ("batch.global_batch_size=3", "batch"),
        ("train.device=tpu", "allowed: auto, cpu"),
        ("order.seed=1", "seeds.data"),
        ("checkpoint.keep_last=0", "keep_last"),
        ("init.from=checkpoint", "init.path"),
        ("schedule.min_lr=1e-5", "not an option"),
        ("data.on_ragged=pad", "pad_token_id"),
        ("optimizer.decay=none", "hf-trainer"),
    ] {
        let sets = ["batch.micro_batch_size=2", set];
        let error = load(BASE, &sets)
            .map(|c| c.config.learning_rates(10).map(|_| ()).map_err(|e| e.to_string()))
            .unwrap_or_else(Err)
            .expect_err(set);
        assert!(error.contains(part), "{set}: {error}");
    }
}

#[test]
fn naming_another_order_drops_the_options_of_the_first() {
    let text = format!(
        "{}\n",
        BASE.replace("order: fla", "order: {name: fla, drop_last: true}")
    );
    assert_eq!(load(&text, &[]).unwrap().config.order["drop_last"], true);
    let other = load(&text, &["order=sequential"]).unwrap();
    assert_eq!(other.config.order.len(), 1);
}

#[test]
fn the_data_seed_is_the_seed_of_the_order() {
    let spec = load(BASE, &["seeds.data=7"])
        .unwrap()
        .config
        .order_spec()
        .unwrap();
    assert!(spec.to_string().contains("seed=7"), "{spec}");
    assert!(load(BASE, &["seeds.data=7", "order.seed=7"]).is_ok());
}

#[test]
fn a_model_may_come_from_config_json() {
    let json = r#"{"model_type": "gated_deltanet", "architectures": ["GatedDeltaNetForCausalLM"], "hidden_size": 32,
        "num_heads": 1, "head_dim": 16, "expand_v": 1.0, "vocab_size": 50, "transformers_version": "5.24.0",
        "dtype": "float32", "num_hidden_layers": 1}"#;
    let run = "data: {cache_dir: x}\ntrain: {steps: 1}\nmodel: {config: config.json, norm_eps: 1e-5}\n";
    let composed = load_with(&[("run.yaml", run), ("config.json", json)], &[], &[]).unwrap();
    assert_eq!(
        (composed.config.model.hidden_size, composed.config.model.norm_eps),
        (32, 1e-5)
    );
    assert!(composed.table().contains("config.json"));
    let odd = json.replace("\"hidden_size\"", "\"hiden_size\"");
    let error = load_with(&[("run.yaml", run), ("config.json", &odd)], &[], &[]).unwrap_err();
    assert!(error.contains("'hidden_size'"), "{error}");
}

#[test]
fn knobs_of_the_other_stack_select_the_matching_setting_or_say_why_not() {
    let text = format!(
        "{}use_fla_data: true\nfla_cache_dir: /data/fla\nuse_fla_fused_swiglu: true\nfused_ce_mode: 1\nfused_ce_chunks: 16\n",
        BASE.replace("order: fla\n", "")
            .replace("cache_dir: some/where, ", "")
    );
    let composed = load(&text, &[]).unwrap();
    assert_eq!(composed.config.order["name"], "fla");
    assert_eq!(composed.config.data.cache_dir, Path::new("/data/fla"));
    assert_eq!(composed.config.loss.chunks, Some(16));
    let notes = composed.notes.join("\n");
    assert!(
        notes.contains("use_fla_fused_swiglu") && notes.contains("changes nothing"),
        "{notes}"
    );
    assert!(composed.table().contains("use_fla_data"));

    // The environment wins, also over what a file says; flags are off for 0 and empty.
    let env = [
        ("PRIMUS_FUSED_CE_CHUNKS", "4"),
        ("PRIMUS_FLA_CACHE_DIR", "/env"),
        ("PRIMUS_FLA_NORM", "0"),
    ];
    let composed = load_with(&[("run.yaml", &text)], &[], &env).unwrap();
    assert_eq!(composed.config.loss.chunks, Some(4));
    assert_eq!(composed.config.data.cache_dir, Path::new("/env"));
    let composed = load_with(&[("run.yaml", &text)], &[], &[("PRIMUS_FLA_DATA", "0")]);
    assert!(
        composed.unwrap_err().contains("data.cache_dir"),
        "without use_fla_data the folder is not taken"
    );

    let error = load(&format!("{BASE}fused_ce_mode: 3\n"), &[]).unwrap_err();
    assert!(error.contains("allowed: 0, 1, 2"), "{error}");
    let error = load_with(&[("run.yaml", BASE)], &[], &[("PRIMUS_FUSED_CE", "two")]).unwrap_err();
    assert!(error.contains("PRIMUS_FUSED_CE"), "{error}");
    let typo = refused(&format!("{BASE}use_fla_fused_swiglo: true\n"), &[]);
    assert!(typo.contains("use_fla_fused_swiglu"), "{typo}");
    // Two places that disagree, neither of them the environment.
    let clash = refused(
        &format!(
            "{}use_fla_data: true\n",
            BASE.replace("order: fla", "order: sequential")
        ),
        &[],
    );
    assert!(clash.contains("order.name"), "{clash}");
}

#[test]
fn every_knob_of_the_list_is_taken() {
    for knob in &ceteris_trainer::config::legacy::KNOBS {
        assert!(ceteris_trainer::config::legacy::find(knob.name).is_some());
    }
    let same = load(
        BASE,
        &[
            "train_iters=5",
            "lr=3e-4",
            "seed=9",
            "clip_grad=0.5",
            "norm_epsilon=1e-5",
        ],
    )
    .unwrap();
    assert_eq!(
        same.config.train.steps,
        Some(5),
        "--set wins over the file as any later layer"
    );
    assert_eq!(same.config.optimizer.lr, 3e-4);
    assert_eq!((same.config.seeds.data, same.config.seeds.init), (9, 9));
    assert_eq!(same.config.optimizer.max_grad_norm, Some(0.5));
}
