"""Building the index of a large Megatron dataset: `loader index build` beside Megatron-Core, in one run on one machine.

    pip install megatron-core==0.16.1 torch numpy            # 0.16.1 for Python 3.11, 0.19.2 for 3.12
    cargo build --release --bin loader
    python tests/bench/index_build.py /tmp/ceteris-index

10 million documents of 1 to 1000 tokens (about 5 billion), three epochs of samples of 2048 tokens. Both write Megatron's four cache
files into an empty folder; ours is the whole command, the peer's clock starts when its imports are done and its data is open. The files
must then be equal byte for byte. After that our own cache: built once, then started from twice.

    python tests/bench/index_build.py /tmp/ceteris-blends --blends

builds blends instead: 2419 sources, and 10 large ones, with one thread and with all, which must give the same files; no peer.
"""

import argparse
import filecmp
import json
import os
import shutil
import struct
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))


def run(command, **more):
    """Runs a command; returns its stdout, wall seconds, and peak resident MiB."""
    print(" ".join(command[:12]) + (" ..." if len(command) > 12 else ""), file=sys.stderr)
    start = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, **more)
    out = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - start
    if status:
        sys.exit(f"failed: {' '.join(command)}")
    return out, seconds, usage.ru_maxrss // 1024


def empty(path):
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    return path


def beside_megatron(a):
    script = [sys.executable, os.path.join(HERE, "megatron_index.py"), "--dir", a.dir, "--documents", str(a.documents), "--epochs", str(a.epochs),
              "--seq-length", str(a.seq_length)]
    data = json.loads(run([*script, "--data-only"])[0])
    ours_at, theirs_at, own_at = (empty(os.path.join(a.dir, name)) for name in ("ours", "theirs", "own"))
    build = [a.loader, "index", "build", "--json", "--data-path", data["prefix"], "--split", "1", "--data-split", "train", "--seed", "1234", "--seq-length",
             str(a.seq_length), "--train-samples", str(data["num_samples"])]
    megatron = [*build, "--format", "megatron", "--tokenizer-identifiers", '{"class": "BenchTokenizer"}', "--data-cache-path"]
    peers, ours = [], []
    for _ in range(a.repeat):
        peers.append(json.loads(run([*script, "--cache", empty(theirs_at)])[0]))
        _, seconds, peak = run([*megatron, empty(ours_at)])
        ours.append((seconds, peak))
    names = sorted(os.listdir(theirs_at))
    same = names == sorted(os.listdir(ours_at)) and filecmp.cmpfiles(ours_at, theirs_at, names, shallow=False)[0] == names
    starts = []
    for _ in range(3):
        out, seconds, peak = run([*build, "--data-cache-path", own_at])
        starts.append({"outcome": json.loads(out)["splits"][0]["datasets"][0]["cache"]["outcome"], "seconds": round(seconds, 4), "peak_mib": peak})
    peer = min(peers, key=lambda p: p["seconds"])
    best = min(ours)
    print(json.dumps({
        "documents": a.documents, "tokens": data["tokens"], "samples": peer["samples"], "peer": peer["tool"], "python": peer["python"],
        "peer_seconds": peer["seconds"], "peer_peak_mib": peer["peak_mib"], "peer_mib_before": peer["mib_before"],
        "ours_seconds": round(best[0], 3), "ours_peak_mib": best[1], "faster_by": round(peer["seconds"] / best[0], 2),
        "all_peer_seconds": [p["seconds"] for p in peers], "all_ours_seconds": [round(s, 3) for s, _ in ours],
        "files_equal": same, "own_cache": starts,
    }, indent=1))
    if not same:
        sys.exit("the files differ")


def blends(a):
    import numpy as np

    def write(prefix, documents, longest):
        if not os.path.exists(prefix + ".idx"):
            lengths = np.random.RandomState(7).randint(1, longest + 1, documents).astype(np.int32)
            pointers = np.zeros(documents, np.int64)
            np.cumsum(lengths[:-1], dtype=np.int64, out=pointers[1:])
            with open(prefix + ".idx", "wb") as f:
                f.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, documents, documents + 1))
                f.write(lengths.tobytes() + (pointers * 2).tobytes() + np.arange(documents + 1, dtype=np.int64).tobytes())
            with open(prefix + ".bin", "wb") as f:
                f.truncate(int(lengths.sum(dtype=np.int64)) * 2)

    os.makedirs(a.dir, exist_ok=True)
    for sources, samples, documents, distinct in [(2419, a.small, a.small // 8, 1), (10, a.large, a.large // 8, 1)]:
        # One file under many names: the sources differ in their shares, and disk is spared.
        stored = os.path.join(a.dir, f"blend-{documents}")
        write(stored, documents, 2 * 8 * 256 - 1)
        names = []
        for i in range(sources):
            name = f"{stored}-{i}"
            for end in (".idx", ".bin"):
                if not os.path.exists(name + end):
                    os.link(stored + end, name + end)
            names += [str(1 + i % 17), name]
        asked = int(0.98 * samples * sources)
        results = []
        for threads in (1, os.cpu_count()):
            own = empty(os.path.join(a.dir, f"own-{threads}"))
            out, seconds, peak = run([a.loader, "index", "build", "--json", "--data-path", *names, "--split", "1", "--data-split", "train", "--seed", "1234",
                                      "--seq-length", "256", "--train-samples", str(asked), "--data-cache-path", own],
                                     env={**os.environ, "RAYON_NUM_THREADS": str(threads)})
            size = sum(e.stat().st_size for e in os.scandir(own) if e.name.endswith(".npy"))
            files = sorted(e.name for e in os.scandir(own) if e.name.endswith(".npy"))
            results.append((seconds, peak, size, files, own))
        (one, _, _, files, a1), (all_, peak, size, files2, a2) = results
        same = files == files2 and len(filecmp.cmpfiles(a1, a2, files, shallow=False)[0]) == len(files)
        print(json.dumps({"sources": sources, "samples_each": samples, "draws": asked, "seconds_1_thread": round(one, 2),
                          f"seconds_{os.cpu_count()}_threads": round(all_, 2), "peak_mib": peak, "index_mib": size >> 20, "files_equal": same}))
        for r in results:
            shutil.rmtree(r[4])
        if not same:
            sys.exit("one thread and several give other files")


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("dir", help="folder for data and caches, made if it is not there")
    ap.add_argument("--loader", default="target/release/loader", help="the loader binary (default target/release/loader)")
    ap.add_argument("--documents", type=int, default=10_000_000)
    ap.add_argument("--epochs", type=float, default=3.0)
    ap.add_argument("--seq-length", type=int, default=2048)
    ap.add_argument("--repeat", type=int, default=2, help="times each is run; the best counts")
    ap.add_argument("--blends", action="store_true", help="blends of many sources instead")
    ap.add_argument("--small", type=int, default=100_000, help="samples of each of the 2419 sources")
    ap.add_argument("--large", type=int, default=1_250_000, help="samples of each of the 10 sources")
    a = ap.parse_args()
    blends(a) if a.blends else beside_megatron(a)


main()
