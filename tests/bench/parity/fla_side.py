"""The side of flash-linear-attention: jobs that parity_fla.py starts in a process of their own.

    python -m parity.fla_side JOB.json OUT.json

JOB says `kind` (throughput, gradients, curve, kernels) and its inputs; OUT is written anew after every part of a result. Weights are
float32 under bfloat16 autocast with FLA's fused cross entropy: what transformers' Trainer does with --bf16.
"""

import gc
import json
import os
import re
import statistics
import sys
import time
import warnings

import numpy as np
import torch

from . import files

# The parameters that transformers' Trainer gives no weight decay.
NO_DECAY = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")
# Keys of a checkpoint's config.json that are no argument of the configuration class.
NOT_ARGUMENTS = ("model_type", "architectures", "dtype")


def say(text):
    print(text, file=sys.stderr, flush=True)


def versions():
    import fla
    import transformers
    import triton
    return {"fla": fla.__version__, "torch": torch.__version__, "triton": triton.__version__, "transformers": transformers.__version__,
            "device": torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu", "cuda": torch.version.cuda}


def build(config, weights=None, device="cuda", **changes):
    """FLA's model of a configuration with the weights of a safetensors file."""
    warnings.filterwarnings("ignore")
    from fla.models import GatedDeltaNetConfig, GatedDeltaNetForCausalLM
    arguments = {k: v for k, v in {**config, **changes}.items() if k not in NOT_ARGUMENTS}
    arguments.update(fuse_cross_entropy=True, fuse_linear_cross_entropy=False, use_cache=False)
    with torch.device(device):
        model = GatedDeltaNetForCausalLM(GatedDeltaNetConfig(**arguments))
    if weights:
        from safetensors.torch import load_file
        left, over = model.load_state_dict(load_file(weights), strict=False)
        tied = {"lm_head.weight"} if config.get("tie_word_embeddings") else set()
        if set(left) - tied or over:
            raise SystemExit(f"{weights}: parameters missing {sorted(set(left) - tied)}, not of the model {over}")
    if next(model.parameters()).dtype != torch.float32:
        raise SystemExit(f"parameters are {next(model.parameters()).dtype}, not float32")
    return model.train()


def adamw(model, c):
    """Fused AdamW with the Trainer's two groups; c: beta1, beta2, eps, weight_decay."""
    named = list(model.named_parameters())
    groups = [{"params": [p for n, p in named if bool(NO_DECAY.search(n.lower())) == exempt],
               "weight_decay": 0.0 if exempt else c["weight_decay"]} for exempt in (False, True)]
    return torch.optim.AdamW(groups, lr=0.0, betas=(c["beta1"], c["beta2"]), eps=c["eps"], fused=True)


def forward(model, x):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return model(input_ids=x, labels=x, use_cache=False).loss


def step(model, optimizer, parameters, x, lr, clip):
    """One whole step; the loss and the gradient norm stay on the device."""
    for group in optimizer.param_groups:
        group["lr"] = lr
    loss = forward(model, x)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(parameters, clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach(), norm.detach()


def throughput(job, flush):
    """Steps on batches [steps, B, T] that already lie on the device, timed by events."""
    batches = torch.from_numpy(np.load(job["batches"])).cuda().long()
    model = build(job["model"], job["weights"])
    optimizer, parameters = adamw(model, job["optimizer"]), list(model.parameters())
    events = [torch.cuda.Event(enable_timing=True) for _ in range(len(batches) + 1)]
    losses, norms = [], []
    try:
        # Choosing kernels is no step: the first call of each shape autotunes.
        forward(model, batches[0]).backward()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        say("steps")
        events[0].record()
        for i, x in enumerate(batches):
            loss, norm = step(model, optimizer, parameters, x, job["lrs"][i], job["optimizer"]["max_grad_norm"])
            losses.append(loss)
            norms.append(norm)
            events[i + 1].record()
        torch.cuda.synchronize()
    except torch.OutOfMemoryError as e:
        flush({"out_of_memory": f"out of memory: {str(e).splitlines()[0]}"})
        return
    ms = [a.elapsed_time(b) for a, b in zip(events, events[1:])]
    gib = 2**30
    flush({"step_ms": ms[job["warm_up"]:], "median_ms": statistics.median(ms[job["warm_up"]:]),
           "losses": [x.item() for x in losses], "grad_norms": [x.item() for x in norms],
           "allocated_gib": torch.cuda.max_memory_allocated() / gib, "reserved_gib": torch.cuda.max_memory_reserved() / gib})


def curve(job, flush):
    """A training run over rows of a token file in a given order."""
    tokens = torch.from_numpy(files.read_tokens(job["tokens"], job["seq_length"]))
    model = build(job["model"], job["weights"])
    optimizer, parameters = adamw(model, job["optimizer"]), list(model.parameters())
    size, losses, norms = job["micro_batch"], [], []
    for i, lr in enumerate(job["lrs"]):
        x = tokens[job["order"][i * size:(i + 1) * size]].cuda().long()
        loss, norm = step(model, optimizer, parameters, x, lr, job["optimizer"]["max_grad_norm"])
        losses.append(loss)
        norms.append(norm)
        if i % 50 == 49 or i + 1 == len(job["lrs"]):
            flush({"losses": [x.item() for x in losses], "grad_norms": [x.item() for x in norms]})
            say(f"step {i + 1}: loss {losses[-1].item():.4f}")


def gradients(job, flush):
    """Loss and gradient errors of each side against float64, per case: weights and tokens."""
    from safetensors.torch import load_file

    from .reference import loss_and_gradients
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = False
    out = []
    for case in job["cases"]:
        start = time.time()
        x = torch.tensor(case["tokens"])
        weights = load_file(case["weights"])
        reference, wanted = loss_and_gradients(job["model"], weights, x, x, device)
        out.append({"name": case["name"], "batch": case["batch"], "shape": list(x.shape), "reference_loss": reference, "sides": {}})
        say(f"{case['name']}: float64 loss {reference:.7f}, {time.time() - start:.0f} s")
        flush({"cases": out})
        if "ours" in case:
            moments = load_file(case["ours"]["moments"])
            got = {n: moments[f"{n}.exp_avg"] for n in wanted}
            out[-1]["sides"]["ours"] = errors(case["ours"]["loss"], got, reference, wanted)
            del moments, got
            flush({"cases": out})
        if job["fla"]:
            model = build(job["model"], case["weights"])
            loss = forward(model, x.to(device))
            loss.backward()
            got = {n: p.grad for n, p in model.named_parameters()}
            out[-1]["sides"]["fla"] = errors(loss.item(), got, reference, wanted)
            del model, loss, got
            flush({"cases": out})
        del wanted
        gc.collect()
        torch.cuda.empty_cache()


def kind(name):
    """A parameter's name without its layer."""
    return re.sub(r"^model\.(layers\.\d+\.)?", "", name)


def errors(loss, got, reference, wanted):
    """||x - ref|| / ||ref||: per parameter, per kind, over all."""
    missed, sizes = {}, {}
    for name, want in wanted.items():
        missed[name] = (got[name].to(want.device, torch.float64).view_as(want) - want).square().sum().item()
        sizes[name] = want.square().sum().item()

    def over(names):
        return (sum(missed[n] for n in names) / max(sum(sizes[n] for n in names), 1e-300)) ** 0.5
    kinds = {}
    for name in wanted:
        kinds.setdefault(kind(name), []).append(name)
    return {"loss": loss, "loss_error": abs(loss - reference) / abs(reference), "all": over(wanted),
            "kinds": {k: over(names) for k, names in kinds.items()}, "parameters": {n: over([n]) for n in wanted}}


def main():
    with open(sys.argv[1]) as f:
        job = json.load(f)
    result = {"versions": versions() if job.get("fla", True) else {"torch": torch.__version__}}

    def flush(part):
        result.update(part)
        files.write_json(sys.argv[2], result)
    if job["kind"] == "kernels":
        from .fla_kernels import kernels
        run = kernels
    else:
        run = {"throughput": throughput, "gradients": gradients, "curve": curve}[job["kind"]]
    start = time.time()
    run(job, flush)
    flush({"seconds": time.time() - start})


if __name__ == "__main__":
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    main()
