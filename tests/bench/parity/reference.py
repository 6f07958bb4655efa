"""A Gated DeltaNet language model in float64, written from the equations: the value both sides of a gradient table miss.

Names and shapes of the weights are those of flash-linear-attention's checkpoints. No chunks, no kernels: the delta rule goes token
by token, so that nothing it shares with either side can hide an error. Autograd keeps every state: T = 256 of gdn-300m takes 10 GB.

    x_0 = E[tokens];  h = x + mixer(norm(x));  x' = h + down(silu(gate y) up y), y = norm(h);  logits = head norm(x_L)
    S_t = exp(g_t) S_{t-1} + k_t u_t',  u_t = beta_t (v_t - exp(g_t) S_{t-1}' k_t),  o_t = S_t' q_t / sqrt(K)
"""

import torch
import torch.nn.functional as F

GATE_EPS = 1e-6  # of the l2 norm of queries and keys


def rms_norm(x, weight, eps):
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def short_conv(x, weight):
    """Causal convolution of every channel of x [B, T, D] with its row of weight [D, 1, W], then SiLU."""
    width = weight.shape[-1]
    padded = F.pad(x, (0, 0, width - 1, 0))
    return F.silu(sum(padded[:, j:j + x.shape[1]] * weight[:, 0, j] for j in range(width)))


def unit(x):
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + GATE_EPS)


def delta_rule(q, k, v, g, beta):
    """q, k [B, T, H, K]; v [B, T, HV, V]; log decay g and beta [B, T, HV] -> [B, T, HV, V]. Value head j reads head j // (HV / H)."""
    heads = v.shape[2] // q.shape[2]
    q = q.repeat_interleave(heads, 2) * q.shape[-1] ** -0.5
    k = k.repeat_interleave(heads, 2)
    state = v.new_zeros(v.shape[0], v.shape[2], k.shape[-1], v.shape[-1])
    decay, out = g.exp(), []
    for t in range(q.shape[1]):
        state = state * decay[:, t, :, None, None]
        read = torch.einsum("bhk,bhkv->bhv", k[:, t], state)
        state = state + k[:, t, :, :, None] * (beta[:, t, :, None] * (v[:, t] - read))[:, :, None]
        out.append(torch.einsum("bhk,bhkv->bhv", q[:, t], state))
    return torch.stack(out, 1)


def mixer(c, w, x):
    """One Gated DeltaNet layer; w(name) is a weight of it."""
    b, t, _ = x.shape
    heads, value_heads, dim, eps = c["num_heads"], c.get("num_v_heads") or c["num_heads"], c["head_dim"], c["norm_eps"]
    q, k, v = (short_conv(F.linear(x, w(f"{n}_proj.weight")), w(f"{n}_conv1d.weight")) for n in "qkv")
    v = v.view(b, t, value_heads, -1)
    g = -w("A_log").exp() * F.softplus(F.linear(x, w("a_proj.weight")) + w("dt_bias"))
    beta = F.linear(x, w("b_proj.weight")).sigmoid() * (2 if c.get("allow_neg_eigval") else 1)
    o = delta_rule(unit(q.view(b, t, heads, dim)), unit(k.view(b, t, heads, dim)), v, g, beta)
    o = rms_norm(o, w("o_norm.weight"), eps) * F.silu(F.linear(x, w("g_proj.weight")).view_as(o))
    return F.linear(o.reshape(b, t, -1), w("o_proj.weight"))


def loss(c, weights, tokens, labels):
    """Mean of -log p(labels[t + 1]) at t over the labels that are not -100. tokens, labels [B, T]."""
    for key, wanted in (("attn", None), ("use_gate", True), ("use_short_conv", True)):
        if (c.get(key, wanted) or None) != (wanted or None):
            raise SystemExit(f"model.{key}: {c[key]}; the reference knows {wanted} only")
    eps = c["norm_eps"]
    x = weights["model.embeddings.weight"][tokens]
    for i in range(c["num_hidden_layers"]):
        def w(name, i=i):
            return weights[f"model.layers.{i}.{name}"]
        x = x + mixer(c, lambda name: w("attn." + name), rms_norm(x, w("attn_norm.weight"), eps))  # noqa: B023
        y = rms_norm(x, w("mlp_norm.weight"), eps)
        y = F.silu(F.linear(y, w("mlp.gate_proj.weight"))) * F.linear(y, w("mlp.up_proj.weight"))
        x = x + F.linear(y, w("mlp.down_proj.weight"))
    x = rms_norm(x, weights["model.norm.weight"], eps)
    head = weights["model.embeddings.weight" if c.get("tie_word_embeddings") else "lm_head.weight"]
    logits = F.linear(x[:, :-1], head)
    return F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)


def loss_and_gradients(c, weights, tokens, labels, device):
    """The loss and every gradient in float64. weights: name -> tensor of any type and place."""
    leaves = {n: t.to(device, torch.float64).requires_grad_() for n, t in weights.items()}
    value = loss(c, leaves, tokens.to(device), labels.to(device))
    value.backward()
    return value.item(), {n: t.grad for n, t in leaves.items()}
