"""The loader runtime beside Hugging Face datasets + torch DataLoader on the same cache, in one run.

    pip install -r tests/bench/requirements.txt
    python tests/bench/make_cache.py /tmp/ceteris-cache --gigabytes 2
    cargo build --release --bin loader
    python tests/bench/loader_speed.py /tmp/ceteris-cache

Ours is `loader bench`: batches of 32 rows in the order `fla`, warm, the best of three passes; what it is measured beside (a plain
copy of the same blocks, the rows in sequence, a consumer that needs 5 ms a step) comes out of the same command. The peers are those
of cache_epoch.py, which goes first through the whole cache so that all find it in memory.
"""

import argparse
import json
import os
import subprocess
import sys


def run(command):
    print(" ".join(command), file=sys.stderr)
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("cache_dir", help="folder that make_cache.py wrote")
    ap.add_argument("--loader", default="target/release/loader", help="the loader binary (default target/release/loader)")
    ap.add_argument("--workers", type=int, default=8)
    ap.add_argument("--consumer-ms", type=float, default=5.0)
    ap.add_argument("--consumer-steps", type=int, default=2000, help="steps of the consumer that needs time (default 2000)")
    ap.add_argument("--json", action="store_true", help="print JSON instead of a table")
    a = ap.parse_args()
    here = os.path.dirname(os.path.abspath(__file__))
    peers = run([sys.executable, os.path.join(here, "cache_epoch.py"), a.cache_dir, "--only", "fla,numpy", "--micro-batch-size", "32",
                 "--num-workers", str(a.workers), "--json"])
    peers = {r["name"]: r["tokens_per_s"] for r in peers["results"]}
    common = [a.loader, "bench", "--cache-dir", a.cache_dir, "--order", "fla", "--seed", "42", "--micro-batch-size", "32",
              "--workers", str(a.workers), "--format", "json", "--quiet"]
    speed = run(common)
    consumer = run([*common, "--repeat", "1", "--consumer-ms", str(a.consumer_ms), "--micro-steps", str(a.consumer_steps)])
    ours = speed["shuffled"]["tokens_per_s"]
    result = {
        "tokens_per_s": ours,
        "gb_per_s": speed["shuffled"]["gb_per_s"],
        "over_fla_collator": ours / peers["fla"],
        "over_numpy": ours / peers["numpy"],
        "fraction_of_memcpy": speed["fraction_of_memcpy"],
        "shuffled_over_sequential": speed["shuffled_over_sequential"],
        "order_bytes_per_sample": speed.get("order_bytes_per_sample"),
        "consumer_ms": a.consumer_ms,
        "consumer_steps": consumer["consumer"]["micro_steps"],
        "stall": consumer["stall"],
        "peers_tokens_per_s": peers,
        "bench": speed,
    }
    if a.json:
        return print(json.dumps(result))
    print("| | M tokens/s | loader is faster by |")
    print("|---|---|---|")
    print(f"| loader bench, {a.workers} workers | {ours / 1e6:.0f} | |")
    print(f"| datasets + DataLoader(num_workers={a.workers}), FLA's collator | {peers['fla'] / 1e6:.1f} | {result['over_fla_collator']:.1f}x |")
    print(f"| the same with the numpy format | {peers['numpy'] / 1e6:.1f} | {result['over_numpy']:.1f}x |")
    print()
    print(f"{speed['shuffled']['gb_per_s']:.2f} GB/s: {result['fraction_of_memcpy']:.2f} of a plain copy of the same blocks, "
          f"{result['shuffled_over_sequential']:.2f} of the rows in sequence; order {result['order_bytes_per_sample']:.2f} bytes a sample")
    print(f"consumer of {a.consumer_ms} ms, {result['consumer_steps']} steps: waited {100 * result['stall']:.3f} % of the time")


main()
