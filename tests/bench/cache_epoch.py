"""One epoch of a cache: Ceteris beside Hugging Face datasets + torch DataLoader, in one run on one machine.

    pip install -r tests/bench/requirements.txt
    python tests/bench/make_cache.py /tmp/ceteris-cache --gigabytes 2
    cargo build --release --bin loader
    python tests/bench/cache_epoch.py /tmp/ceteris-cache

Every contestant opens the cache and goes through one shuffled epoch in batches, in a process of its own:

  loader     `loader --order fla ...`: the whole command, with process start, order, and the fingerprint of every token
  fla        load_from_disk; DataLoader(num_workers=8) with flash-linear-attention's collator: Python lists to int64 tensors
  numpy      load_from_disk().with_format("numpy"), the same DataLoader, rows stacked into one tensor

The peers' rows are drawn by the DataLoader's own shuffle, which spares them the indices table that Dataset.shuffle would put in
the way. Files are read once beforehand, so all find them in the page cache. `--repeat` runs each that many times; the best counts.
Peak memory is the largest sum over the process and its children, seen 20 times a second: `private` is memory of their own (anonymous
and shared memory), `resident` also counts mapped pages of the cache (pages mapped by several processes count once for each).
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time


def peer(kind, a):
    """Runs in a child process; prints its result as JSON."""
    import numpy as np
    import torch
    from datasets import load_from_disk
    from torch.utils.data import DataLoader

    def fla(examples):
        rows = [torch.tensor(e["input_ids"], dtype=torch.long) for e in examples]
        tokens = torch.stack(rows)
        return {"input_ids": tokens, "labels": tokens.clone()}

    def stacked(examples):
        tokens = torch.from_numpy(np.stack([e["input_ids"] for e in examples]))
        return {"input_ids": tokens, "labels": tokens}

    start = time.perf_counter()
    data = load_from_disk(a.cache_dir)
    if kind == "numpy":
        data = data.with_format("numpy")
    opened = time.perf_counter() - start
    loader = DataLoader(data, batch_size=a.micro_batch_size, shuffle=True, num_workers=a.num_workers, collate_fn=stacked if kind == "numpy" else fla)
    tokens = 0
    for batch in loader:
        tokens += batch["input_ids"].numel()
    print(json.dumps({"tokens": tokens, "open_s": opened, "wall_s": time.perf_counter() - start}))


def children(pid):
    """The process and all below it."""
    out = [pid]
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children") as f:
            for child in f.read().split():
                out += children(int(child))
    return out


class Memory(threading.Thread):
    """Polls the memory of a process tree."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid, self.private, self.resident, self.stop = pid, 0, 0, False

    def run(self):
        while not self.stop:
            private = resident = 0
            try:
                for pid in children(self.pid):
                    with open(f"/proc/{pid}/status") as f:
                        kb = {k: int(v.split()[0]) for k, v in (line.split(":", 1) for line in f) if k.startswith(("Rss", "VmRSS"))}
                    private += kb.get("RssAnon", 0) + kb.get("RssShmem", 0)
                    resident += kb.get("VmRSS", 0)
            except (FileNotFoundError, ProcessLookupError):
                pass  # a process ended while it was looked at
            self.private, self.resident = max(self.private, private), max(self.resident, resident)
            time.sleep(0.05)


def measure(command):
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    memory = Memory(process.pid)
    memory.start()
    out, _ = process.communicate()
    wall = time.perf_counter() - start
    memory.stop = True
    memory.join()
    if process.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with exit code {process.returncode}")
    return out, wall, memory


def tokens_of(folder):
    """Tokens in the cache, from the files' own metadata."""
    import pyarrow as pa

    tokens = 0
    with open(os.path.join(folder, "state.json")) as f:
        names = [x["filename"] for x in json.load(f)["_data_files"]]
    for name in names:
        with pa.memory_map(os.path.join(folder, name)) as f, pa.ipc.open_stream(f) as reader:
            for batch in reader:
                offsets = batch.column("input_ids").offsets
                tokens += offsets[-1].as_py() - offsets[0].as_py()
    return tokens


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("cache_dir", help="folder that make_cache.py wrote")
    ap.add_argument("--loader", default="target/release/loader", help="the loader binary (default target/release/loader)")
    ap.add_argument("--micro-batch-size", type=int, default=32)
    ap.add_argument("--num-workers", type=int, default=8)
    ap.add_argument("--repeat", type=int, default=1)
    ap.add_argument("--only", help="contestants, separated by commas (default: loader,fla,numpy)")
    ap.add_argument("--json", action="store_true", help="print JSON instead of a table")
    ap.add_argument("--peer", help=argparse.SUPPRESS)
    a = ap.parse_args()
    if a.peer:
        return peer(a.peer, a)
    expected = tokens_of(a.cache_dir)
    for name in sorted(os.listdir(a.cache_dir)):
        with open(os.path.join(a.cache_dir, name), "rb") as f:
            while f.read(1 << 24):
                pass
    ours = [a.loader, "--order", "fla", "--cache-dir", a.cache_dir, "--seed", "42", "--world-size", "1",
            "--micro-batch-size", str(a.micro_batch_size), "--workers", str(a.num_workers)]
    child = [sys.executable, os.path.abspath(__file__), a.cache_dir, "--micro-batch-size", str(a.micro_batch_size), "--num-workers", str(a.num_workers)]
    results = []
    for name in (a.only or "loader,fla,numpy").split(","):
        best = None
        for _ in range(a.repeat):
            out, wall, memory = measure(ours if name == "loader" else [*child, "--peer", name])
            if name != "loader":
                told = json.loads(out.strip().splitlines()[-1])
                # Without starting Python and importing torch: a training script pays for that anyway.
                wall = told["wall_s"]
                assert told["tokens"] == expected, (told, expected)
            one = {"name": name, "wall_s": wall, "tokens_per_s": expected / wall, "private_mb": memory.private / 1024, "resident_mb": memory.resident / 1024}
            if best is None or one["wall_s"] < best["wall_s"]:
                best = one
        results.append(best)
        print(f"{name}: {best['wall_s']:.2f} s", file=sys.stderr)
    if a.json:
        return print(json.dumps({"tokens": expected, "results": results}))
    ours = next((r for r in results if r["name"] == "loader"), None)
    print(f"one epoch of {expected} tokens, batches of {a.micro_batch_size}, {a.num_workers} workers, best of {a.repeat}")
    print("| | wall s | M tokens/s | loader is faster by | peak private MB | peak resident MB |")
    print("|---|---|---|---|---|---|")
    for r in results:
        ratio = f"{r['wall_s'] / ours['wall_s']:.1f}x" if ours and r is not ours else ""
        print(f"| {r['name']} | {r['wall_s']:.2f} | {r['tokens_per_s'] / 1e6:.1f} | {ratio} | {r['private_mb']:.0f} | {r['resident_mb']:.0f} |")


main()
