"""Our checkpoint in flash-linear-attention's classes and back.

    python hf_round_trip.py FOLDER OUT

FOLDER: config.json + model.safetensors written by `trainer`. Loads it with AutoConfig/AutoModelForCausalLM, checks class, names,
shapes and bits, and saves it to OUT with save_pretrained. CPU only; needs torch, transformers, flash-linear-attention==0.6.0.
"""
import sys
import warnings

warnings.filterwarnings("ignore")
import fla.models  # noqa: E402,F401
import torch  # noqa: E402
from fla.models import GatedDeltaNetConfig, GatedDeltaNetForCausalLM  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

folder, out = sys.argv[1:3]
config = AutoConfig.from_pretrained(folder)
assert isinstance(config, GatedDeltaNetConfig), type(config)
model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
assert isinstance(model, GatedDeltaNetForCausalLM), type(model)
for key in ("missing_keys", "unexpected_keys", "mismatched_keys"):
    found = [k for k in info.get(key, []) if not (k == "lm_head.weight" and config.tie_word_embeddings)]
    assert not found, (key, found)
stored = load_file(f"{folder}/model.safetensors")
named = dict(model.named_parameters())
assert sorted(stored) == sorted(named), set(stored) ^ set(named)
for name, tensor in stored.items():
    assert torch.equal(tensor.view(torch.int32), named[name].detach().view(torch.int32)), name
model.save_pretrained(out)
print(len(stored), "tensors, bit-equal")
