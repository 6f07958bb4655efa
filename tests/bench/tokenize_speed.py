"""Tokenizing: `loader prepare tokenize` beside Hugging Face datasets.map(batched=True, num_proc=2), in one run on one machine.

    pip install -r tests/bench/requirements.txt tokenizers transformers
    cargo build --release --bin loader
    python tests/bench/tokenize_speed.py /tmp/ceteris-text

The text is the bundled one, some thirty times over with its lines put in other sequences, so that it is not the same document again and
again. Both shuffle with the same seed, tokenize with the same tokenizer.json, and cut each batch of documents into rows of 128 tokens. The
peer's clock runs during map alone (its tokenizer is loaded, its data is shuffled, its rows are not saved yet); ours is the whole command,
from the parquet file to the saved folder. The rows must be equal.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TEXT = os.path.join(HERE, "..", "golden", "text")


def make_text(path, copies):
    import pyarrow as pa
    import pyarrow.parquet as pq

    speeches = pq.read_table(os.path.join(TEXT, "speeches.parquet")).column("text").to_pylist()
    chance, texts = random.Random(1), []
    for _ in range(copies):
        for text in speeches:
            lines = text.split("\n") + chance.choice(speeches).split("\n")
            chance.shuffle(lines)
            texts.append("\n".join(lines))
    pq.write_table(pa.table({"text": texts}), path)


class Cut:
    def __init__(self, tokenizer, seq_length):
        self.tokenizer, self.seq_length = tokenizer, seq_length

    def __call__(self, batch):
        flat = [t for ids in self.tokenizer(batch["text"])["input_ids"] for t in ids]
        n = self.seq_length
        return {"input_ids": [flat[i * n:(i + 1) * n] for i in range(len(flat) // n)]}


def rows_hash(dataset):
    import numpy as np

    h = hashlib.sha256()
    for batch in dataset.with_format("numpy").iter(4096):
        h.update(np.ascontiguousarray(np.stack(batch["input_ids"]), dtype="<i4").tobytes())
    return h.hexdigest()


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("dir", help="folder for text and results, made if it is not there")
    ap.add_argument("--loader", default="target/release/loader", help="the loader binary (default target/release/loader)")
    ap.add_argument("--copies", type=int, default=30, help="times the bundled text is used (default 30)")
    ap.add_argument("--num-proc", type=int, default=2)
    a = ap.parse_args()
    import datasets
    from transformers import AutoTokenizer

    datasets.disable_progress_bars()
    os.makedirs(a.dir, exist_ok=True)
    parquet = os.path.join(a.dir, f"text-{a.copies}.parquet")
    if not os.path.exists(parquet):
        make_text(parquet, a.copies)
    cache, ours_at = os.path.join(a.dir, "hf-cache"), os.path.join(a.dir, "ours")
    for path in (cache, ours_at, ours_at + ".partial"):
        shutil.rmtree(path, ignore_errors=True)
    command = [a.loader, "prepare", "tokenize", "--input", parquet, "--tokenizer", TEXT, "--seq-length", "128", "--seed", "42", "--batch-size", "2048",
               "--num-proc", str(a.num_proc), "--out", ours_at, "--json"]
    start = time.perf_counter()
    subprocess.run(command, stdout=subprocess.PIPE, check=True)
    ours = time.perf_counter() - start

    tokenizer = AutoTokenizer.from_pretrained(TEXT)
    text = datasets.load_dataset("parquet", data_files=parquet, split="train", cache_dir=cache).shuffle(seed=42)
    start = time.perf_counter()
    rows = text.map(Cut(tokenizer, 128), batched=True, batch_size=2048, num_proc=a.num_proc, remove_columns=text.column_names,
                    load_from_cache_file=False)
    peer = time.perf_counter() - start
    mine = datasets.load_from_disk(ours_at)
    same = len(mine) == len(rows) and rows_hash(mine) == rows_hash(rows)
    tokens = 128 * len(rows)
    print(json.dumps({
        "documents": len(text), "bytes": sum(len(t.encode()) for t in text["text"]), "tokens": tokens, "num_proc": a.num_proc,
        "peer": f"datasets {datasets.__version__} map", "peer_seconds": round(peer, 2), "peer_tokens_per_s": round(tokens / peer),
        "ours_seconds": round(ours, 2), "ours_tokens_per_s": round(tokens / ours), "faster_by": round(peer / ours, 2), "rows_equal": same,
    }, indent=1))
    if not same:
        sys.exit("the rows differ")


if __name__ == "__main__":
    main()
