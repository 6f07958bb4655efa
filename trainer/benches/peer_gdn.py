"""The peer of the CPU benchmark: the same gated delta network in PyTorch, with a chunked delta rule.

Everything a careful PyTorch user would do on a CPU is done: one product for all projections of a layer, all chunks'
local parts as batched products, the triangular system by `torch.linalg.solve_triangular`, and a Python loop over
chunks only for the recurrent state; fused AdamW. `--check` compares the chunked rule with the token recurrence.

    python peer_gdn.py --config model.json --batch 4 --length 512 --threads 2 --seconds 20
    python peer_gdn.py --check

Prints one line of JSON: tokens per second of the training step (median of the steps), the loss of the last step, and
the rate of a square single-precision product on the same threads.
"""
import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

CHUNK = 64


def chunked_gated_delta_rule(q, k, v, g, beta):
    """q, k [B, T, H, K] (normalised), v [B, T, HV, V], g and beta [B, T, HV]; returns [B, T, HV, V]."""
    B, T, H, K = q.shape
    HV, V = v.shape[2:]
    pad = -T % CHUNK
    n = (T + pad) // CHUNK

    def chunks(x):
        if pad:
            x = F.pad(x, (0, 0) * (x.dim() - 2) + (0, pad))
        return x.reshape(B, n, CHUNK, *x.shape[2:]).transpose(2, 3)     # [B, n, heads, CHUNK, ...]

    q, k = (chunks(x.repeat_interleave(HV // H, 2) if HV != H else x) for x in (q * K ** -0.5, k))
    v, g, beta = chunks(v), chunks(g[..., None])[..., 0], chunks(beta[..., None])
    G = g.cumsum(-1)
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool).tril()
    decay = (G[..., :, None] - G[..., None, :]).masked_fill(~lower, float("-inf")).exp()
    kk, qk = k @ k.transpose(-1, -2), q @ k.transpose(-1, -2)
    A = (beta * decay * kk).tril(-1)
    eG = G.exp()[..., None]
    # (I + A)^-1 applied to both right-hand sides at once: beta v and beta exp(G) k.
    solved = torch.linalg.solve_triangular(A, torch.cat((beta * v, beta * eG * k), -1), upper=False, unitriangular=True)
    U, W = solved.split((V, K), -1)
    P = decay * qk
    q_decayed, k_to_end = q * eG, k * (G[..., -1:] - G).exp()[..., None]
    whole = eG[..., -1:, :]
    S = q.new_zeros(B, HV, K, V)
    out = []
    for i in range(n):
        u = U[:, i] - W[:, i] @ S
        out.append(q_decayed[:, i] @ S + P[:, i] @ u)
        S = whole[:, i] * S + k_to_end[:, i].transpose(-1, -2) @ u
    o = torch.stack(out, 1).transpose(2, 3)                              # [B, n, CHUNK, HV, V]
    return o.reshape(B, T + pad, HV, V)[:, :T]


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, self.H, self.K = c["hidden_size"], c["num_heads"], c["head_dim"]
        self.HV, self.V, self.eps = c.get("num_v_heads") or self.H, int(self.K * c["expand_v"]), c["norm_eps"]
        self.kd, self.vd = self.H * self.K, self.HV * self.V
        self.attn_norm, self.mlp_norm = nn.RMSNorm(d, self.eps), nn.RMSNorm(d, self.eps)
        self.in_proj = nn.Linear(d, 2 * self.kd + 2 * self.vd + 2 * self.HV, bias=False)
        width = 2 * self.kd + self.vd
        self.conv = nn.Parameter(torch.empty(c["conv_size"], width))
        self.A_log = nn.Parameter(torch.empty(self.HV).uniform_(1, 16).log())
        self.dt_bias = nn.Parameter(torch.full((self.HV,), -4.0))
        self.o_norm = nn.RMSNorm(self.V, self.eps)
        self.o_proj = nn.Linear(self.vd, d, bias=False)
        self.gate_up = nn.Linear(d, 2 * c["intermediate_size"], bias=False)
        self.down = nn.Linear(c["intermediate_size"], d, bias=False)

    def mixer(self, x):
        B, T, _ = x.shape
        qkv, gate, b, a = self.in_proj(x).split((2 * self.kd + self.vd, self.vd, self.HV, self.HV), -1)
        # Shifted products: the backward pass of a depthwise Conv1d is several times slower on a CPU.
        taps = self.conv.shape[0]
        padded = F.pad(qkv, (0, 0, taps - 1, 0))
        qkv = F.silu(sum(padded[:, j:j + T] * self.conv[j] for j in range(taps)))
        q, k, v = qkv.split((self.kd, self.kd, self.vd), -1)
        q, k = (x.reshape(B, T, self.H, self.K) for x in (q, k))
        q, k = (x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt() for x in (q, k))
        g = -self.A_log.exp() * F.softplus(a + self.dt_bias)
        o = chunked_gated_delta_rule(q, k, v.reshape(B, T, self.HV, self.V), g, b.sigmoid())
        o = self.o_norm(o) * F.silu(gate.reshape(B, T, self.HV, self.V))
        return self.o_proj(o.reshape(B, T, -1))

    def forward(self, x):
        x = x + self.mixer(self.attn_norm(x))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embeddings = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Block(c) for _ in range(c["num_hidden_layers"]))
        self.norm = nn.RMSNorm(c["hidden_size"], c["norm_eps"])
        self.head = nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)
        if c["tie_word_embeddings"]:
            self.head.weight = self.embeddings.weight
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, 0.0, 0.02)

    def forward(self, tokens, labels):
        x = self.embeddings(tokens)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten(), ignore_index=-100)


def check():
    torch.manual_seed(0)
    B, T, H, HV, K, V = 2, 150, 2, 4, 16, 24
    q, k = (F.normalize(torch.randn(B, T, H, K, dtype=torch.float64), dim=-1) for _ in range(2))
    v, g = torch.randn(B, T, HV, V, dtype=torch.float64), -torch.rand(B, T, HV, dtype=torch.float64)
    beta = torch.rand(B, T, HV, dtype=torch.float64)
    S, want = torch.zeros(B, HV, K, V, dtype=torch.float64), []
    for t in range(T):
        kt, qt = (x[:, t].repeat_interleave(HV // H, 1) for x in (k, q))
        S = S * g[:, t].exp()[..., None, None]
        u = beta[:, t, :, None] * (v[:, t] - (kt[..., None] * S).sum(-2))
        S = S + kt[..., None] * u[..., None, :]
        want.append((qt[..., None] * S).sum(-2) * K ** -0.5)
    error = (chunked_gated_delta_rule(q, k, v, g, beta) - torch.stack(want, 1)).abs().max().item()
    assert error < 1e-12, error
    print("the chunked rule equals the recurrence:", error)


def product_rate(n=2048, seconds=1.0):
    """FLOP/s of a square single-precision product, best of several."""
    a, b = torch.randn(n, n), torch.randn(n, n)
    best, end = 0.0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        a @ b
        best = max(best, 2 * n ** 3 / (time.perf_counter() - start))
    return best


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--config", help="model configuration, JSON")
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--length", type=int, default=512)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--seconds", type=float, default=20.0)
    p.add_argument("--check", action="store_true")
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    if a.check:
        return check()
    torch.manual_seed(0)
    c = json.load(open(a.config))
    model = Model(c)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.01, fused=True)
    tokens = torch.randint(0, c["vocab_size"], (a.batch, a.length))
    labels = F.pad(tokens[:, 1:], (0, 1), value=-100)
    times, end = [], time.perf_counter() + a.seconds
    while time.perf_counter() < end or len(times) < 3:
        start = time.perf_counter()
        loss = model(tokens, labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        last = loss.item()
        times.append(time.perf_counter() - start)
    times = sorted(times[1:])
    print(json.dumps({
        "tokens_per_s": a.batch * a.length / times[len(times) // 2], "steps": len(times), "loss": last,
        "parameters": sum(p.numel() for p in model.parameters()), "product_flops": product_rate(),
        "torch": torch.__version__,
    }))


if __name__ == "__main__":
    main()
