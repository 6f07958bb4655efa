"""Learning rates, weight-decay groups and initial weights of the real packages.

    pip install torch==2.15.0 transformers==5.24.0 flash-linear-attention==0.6.0 fla-core==0.6.0 einops
    python training.py --out ../training

learning_rates.json  transformers.get_scheduler on an AdamW, the rate before each optimizer step
weight_decay.json    Trainer.get_decay_parameter_names on a FLA model, and its _no_weight_decay marks
init.json            torch.manual_seed(seed); AutoModelForCausalLM.from_config(config): names, shapes, sha256 (float32)
"""
import argparse
import hashlib
import importlib.metadata as md
import json
import os
import warnings

import torch

warnings.filterwarnings("ignore")
import fla.models  # noqa: E402,F401
from fla.models import GatedDeltaNetConfig  # noqa: E402
from transformers import AutoModelForCausalLM, get_scheduler  # noqa: E402
from transformers.trainer import Trainer  # noqa: E402

ap = argparse.ArgumentParser()
ap.add_argument("--out", required=True)
a = ap.parse_args()
VERSIONS = {p: md.version(p) for p in ("torch", "transformers", "flash-linear-attention")}


def dump(name, obj):
    with open(os.path.join(a.out, name), "w") as f:
        json.dump({"versions": VERSIONS, **obj}, f, indent=None)
        f.write("\n")


SCHEDULES = [
    ("cosine_with_min_lr", 2e-4, 200, 4768, {"min_lr": 2e-5}),
    ("cosine_with_min_lr", 1e-3, 0, 50, {"min_lr_rate": 0.1}),
    ("cosine_with_min_lr", 3e-4, 10, 60, {"min_lr": 3e-5, "num_cycles": 1.5}),
    ("cosine", 5e-4, 7, 40, {}),
    ("cosine", 5e-4, 0, 40, {"num_cycles": 2.0}),
    ("cosine", 5e-4, 50, 20, {}),
    ("linear", 1e-3, 5, 37, {}),
    ("linear", 1e-3, 0, 1, {}),
    ("constant", 1e-3, 0, 12, {}),
    ("constant_with_warmup", 7e-4, 6, 12, {}),
    ("warmup_stable_decay", 1e-3, 8, 50, {"num_decay_steps": 12}),
    ("warmup_stable_decay", 1e-3, 8, 50, {"num_decay_steps": 12, "num_stable_steps": 5, "min_lr_ratio": 0.05}),
    ("warmup_stable_decay", 1e-3, 8, 50, {"num_decay_steps": 20, "warmup_type": "cosine", "decay_type": "1-sqrt",
                                          "min_lr_ratio": 0.1}),
    ("warmup_stable_decay", 1e-3, 9, 50, {"num_decay_steps": 20, "warmup_type": "1-sqrt", "decay_type": "linear"}),
]
cases = []
for name, lr, warmup, total, kw in SCHEDULES:
    opt = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    sch = get_scheduler(name, opt, num_warmup_steps=warmup, num_training_steps=total, scheduler_specific_kwargs=kw)
    rates = []
    for _ in range(total + 3):
        rates.append(opt.param_groups[0]["lr"])
        opt.step()
        sch.step()
    steps = list(range(len(rates))) if total < 100 else [*range(0, 210, 7), *range(210, total + 3, 211), total - 1, total, total + 2]
    cases.append({"name": name, "lr": lr, "warmup_steps": warmup, "total_steps": total, "options": kw,
                  "steps": steps, "rates": [rates[s].hex() for s in steps]})
dump("learning_rates.json", {"cases": cases})

BASE = dict(hidden_size=64, num_hidden_layers=2, intermediate_size=128, num_heads=2, num_v_heads=4, head_dim=16, expand_v=1.0,
            vocab_size=97, tie_word_embeddings=True)
CONFIGS = [
    ("tied", BASE, 42), ("untied", {**BASE, "tie_word_embeddings": False}, 7),
    ("no_gate", {**BASE, "use_gate": False}, 3), ("no_conv", {**BASE, "use_short_conv": False}, 4),
    ("expand_v2", {**BASE, "expand_v": 2.0, "num_v_heads": None, "intermediate_size": None}, 5),
    ("pad_token", {**BASE, "pad_token_id": 3}, 6), ("seed_above_32_bits", BASE, 2**32 + 5),
    ("odd_sizes", {**BASE, "hidden_size": 24, "vocab_size": 11, "num_v_heads": 2, "head_dim": 8, "intermediate_size": 20,
                   "conv_size": 3}, 8),
    ("initializer_range", {**BASE, "initializer_range": 0.006, "num_hidden_layers": 3}, 9),
]
inits, decays = [], []
for name, cfg, seed in CONFIGS:
    torch.manual_seed(seed)
    m = AutoModelForCausalLM.from_config(GatedDeltaNetConfig(**cfg))
    inits.append({"name": name, "config": cfg, "seed": seed, "parameters": {
        n: {"shape": list(p.shape), "sha256": hashlib.sha256(p.detach().numpy().tobytes()).hexdigest(),
            "first": [float(v).hex() for v in p.detach().reshape(-1)[:8]]} for n, p in m.named_parameters()}})
    decay = set(Trainer.get_decay_parameter_names(None, m))
    decays.append({"name": name, "config": cfg, "decay": {n: n in decay for n, _ in m.named_parameters()},
                   "marked_no_weight_decay": [n for n, p in m.named_parameters() if getattr(p, "_no_weight_decay", False)]})
dump("weight_decay.json", {"cases": decays})
dump("init.json", {
    "notes": "A_log and dt_bias go through log and exp of torch's vector library, whose last bit depends on the processor: "
             "their sha256 holds for the machine named, their values to one unit in the last place elsewhere",
    "machine": open("/proc/cpuinfo").read().split("model name")[1].split("\n")[0].strip("\t: "), "cases": inits})

torch.manual_seed(11)
small = AutoModelForCausalLM.from_config(GatedDeltaNetConfig(**{**BASE, "hidden_size": 16, "head_dim": 8, "intermediate_size": 24}))
small.save_pretrained(os.path.join(a.out, "hf_saved"))      # read by the tests of checkpoints
