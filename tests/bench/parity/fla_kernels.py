"""FLA's operators alone, and the kernels of its step by group; a job of fla_side.py."""

import statistics

import torch
import torch.nn.functional as F

from . import fla_side

# Groups of a step's kernels, the first that matches a kernel's name (in lower case) wins.
GROUPS = (
    ("products", ("nvjet", "gemm", "cutlass", "xmma", "splitk", "cublas")),
    ("cross entropy", ("cross_entropy",)),
    ("SwiGLU", ("swiglu",)),
    ("short convolution", ("causal_conv1d", "conv1d")),
    ("l2 norm of q and k", ("l2norm",)),
    ("delta rule", ("delta_rule", "chunk_", "wy_repr", "recompute_w_u", "solve_tril", "merge_", "gdn_", "cumsum", "kkt")),
    ("gated norm", ("gated", "norm_gate")),
    ("norms", ("layer_norm", "rms_norm", "rmsnorm")),
    ("clip and AdamW", ("multi_tensor", "adam", "lpnorm", "foreach")),
    ("embedding", ("embedding", "grad_weight", "gather", "sort")),
    ("casts and copies", ("copy", "catarray")),
    ("adds", ("add",)),
)


def group(name):
    name = name.lower()
    for title, words in GROUPS:
        if any(w in name for w in words):
            return title
    return "other"


def median_ms(call, inputs, rounds=15, warm_up=3):
    """Median time of a call by events, gradients of the inputs dropped before each."""
    times = []
    for i in range(warm_up + rounds):
        for x in inputs:
            x.grad = None
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        if i >= warm_up:
            times.append(start.elapsed_time(end))
    return statistics.median(times)


def device_ms(call, rounds):
    """Time of every kernel that `rounds` calls launch: name -> (ms per call, launches per call)."""
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as recorded:
        for _ in range(rounds):
            call()
        torch.cuda.synchronize()
    out = {}
    for event in recorded.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            ms, launches = out.get(event.name, (0.0, 0.0))
            out[event.name] = (ms + event.time_range.elapsed_us() / 1e3 / rounds, launches + 1 / rounds)
    return out


def kernels(job, flush):
    """Linear + cross entropy and the delta rule alone, at the sizes of a step; then a step's kernels by group."""
    c, batch, length = job["model"], job["micro_batch"], job["seq_length"]
    half = torch.bfloat16
    hidden, vocab, rows = c["hidden_size"], c["vocab_size"], batch * length
    torch.manual_seed(1)

    from fla.modules import FusedCrossEntropyLoss
    x = torch.randn(rows, hidden, device="cuda", dtype=half, requires_grad=True)
    head = (torch.randn(vocab, hidden, device="cuda") * 0.02).to(half).requires_grad_()
    target = torch.randint(0, vocab, (rows,), device="cuda")
    criterion = FusedCrossEntropyLoss(inplace_backward=True)
    fla_side.say("linear + cross entropy")
    flush({"linear_cross_entropy_ms": median_ms(lambda: criterion(F.linear(x, head), target).backward(), [x, head], 10, 2)})
    del x, head, target
    torch.cuda.empty_cache()

    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    heads, value_heads, dim = c["num_heads"], c.get("num_v_heads") or c["num_heads"], c["head_dim"]
    value_dim = int(dim * c.get("expand_v", 1.0))

    def normal(*shape, dtype=half):
        return torch.randn(*shape, device="cuda", dtype=dtype, requires_grad=True)
    q, k, v = normal(batch, length, heads, dim), normal(batch, length, heads, dim), normal(batch, length, value_heads, value_dim)
    g, beta = normal(batch, length, value_heads), normal(batch, length, value_heads)
    a_log, dt_bias = normal(value_heads, dtype=torch.float32), normal(value_heads, dtype=torch.float32)
    inputs, gradient = [q, k, v, g, beta, a_log, dt_bias], torch.randn_like(v)

    def rule():
        # Adding to gradients that are there already is not the rule's work.
        for leaf in inputs:
            leaf.grad = None
        out, _ = chunk_gated_delta_rule(
            q=q, k=k, v=v, g=g, beta=beta, A_log=a_log, dt_bias=dt_bias, use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True,
            use_beta_sigmoid_in_kernel=True, state_v_first=True)
        out.backward(gradient)
    fla_side.say("delta rule")
    wall = median_ms(rule, inputs)
    own = {n: t for n, t in device_ms(rule, 5).items() if "memcpy" not in n.lower() and "memset" not in n.lower()}
    flush({"delta_rule_layer_ms": sum(t[0] for t in own.values()), "delta_rule_layer_with_launches_ms": wall,
           "delta_rule_kernels": {n[:120]: t for n, t in sorted(own.items(), key=lambda i: -i[1][0])[:25]}})
    del q, k, v, g, beta, inputs, gradient
    torch.cuda.empty_cache()

    fla_side.say("kernels of a step")
    model = fla_side.build(c, job["weights"])
    optimizer, parameters = fla_side.adamw(model, job["optimizer"]), list(model.parameters())
    tokens = torch.randint(0, vocab, (batch, length), device="cuda")

    def whole():
        fla_side.step(model, optimizer, parameters, tokens, 1e-5, job["optimizer"]["max_grad_norm"])
    for _ in range(2):
        whole()
    torch.cuda.synchronize()
    of_step, groups = device_ms(whole, 2), {}
    for name, (ms, _) in of_step.items():
        groups[group(name)] = groups.get(group(name), 0.0) + ms
    flush({"groups_ms": groups, "step_kernels_ms": sum(groups.values()),
           "step_kernels": {n[:160]: t for n, t in sorted(of_step.items(), key=lambda i: -i[1][0])[:45]}})
