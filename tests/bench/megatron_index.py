"""Times Megatron-Core's index build over synthetic documents: the other side of `loader index build`.

Writes a synthetic `.idx` (and a sparse `.bin` of the right size) under --dir if it is not there yet, builds a
GPTDataset over it with an empty cache, and prints one JSON line. Needs megatron-core and torch; says which.
"""
import argparse
import importlib.metadata
import json
import logging
import os
import resource
import shutil
import struct
import sys
import tempfile
import time
import warnings

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)
import numpy as np

ap = argparse.ArgumentParser()
ap.add_argument("--dir", required=True)
ap.add_argument("--documents", type=int, default=10_000_000)
ap.add_argument("--longest", type=int, default=1000, help="lengths are uniform from 1 to this")
ap.add_argument("--epochs", type=float, default=3.0)
ap.add_argument("--seq-length", type=int, default=2048)
ap.add_argument("--seed", type=int, default=1234)
ap.add_argument("--data-only", action="store_true", help="write the synthetic data and stop")
ap.add_argument("--cache", default=None, help="keep the cache files here, for a comparison by bytes")
a = ap.parse_args()

prefix = os.path.join(a.dir, f"synthetic-{a.documents}-{a.longest}")
lengths = np.random.RandomState(7).randint(1, a.longest + 1, a.documents).astype(np.int32)
if not os.path.exists(prefix + ".idx"):
    os.makedirs(a.dir, exist_ok=True)
    pointers = np.zeros(a.documents, np.int64)
    np.cumsum(lengths[:-1], dtype=np.int64, out=pointers[1:])
    with open(prefix + ".idx.part", "wb") as f:
        f.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, a.documents, a.documents + 1))
        f.write(lengths.tobytes())
        f.write((pointers * 2).tobytes())
        f.write(np.arange(a.documents + 1, dtype=np.int64).tobytes())
    with open(prefix + ".bin", "wb") as f:
        f.truncate(int(lengths.sum(dtype=np.int64)) * 2)
    os.rename(prefix + ".idx.part", prefix + ".idx")
tokens = int(lengths.sum(dtype=np.int64))
del lengths
samples = int(a.epochs * tokens) // a.seq_length - 1
if a.data_only:
    print(json.dumps({"prefix": prefix, "tokens": tokens, "num_samples": samples}))
    sys.exit()

import torch.distributed
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDataset
from megatron.core.datasets.utils import Split


class Tokenizer:
    vocab_size = 4096
    eod = 0
    pad = 4095
    unique_identifiers = {"class": "BenchTokenizer"}


# 0.16.1 asks for the rank when it writes its cache, with or without a process group.
torch.distributed.get_rank = lambda *_, **__: 0
cache = a.cache or tempfile.mkdtemp(dir=a.dir)
config = GPTDatasetConfig(
    random_seed=a.seed, sequence_length=a.seq_length, blend=([prefix], None), split="1", tokenizer=Tokenizer(),
    reset_position_ids=False, reset_attention_mask=False, eod_mask_loss=False, create_attention_mask=False,
    path_to_cache=cache,
)
low = IndexedDataset(prefix)
ids = np.arange(a.documents, dtype=np.int32)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.perf_counter()
dataset = GPTDataset(low, prefix, ids, samples, Split.train, config)
seconds = time.perf_counter() - start
print(json.dumps({
    "tool": "megatron-core " + importlib.metadata.version("megatron-core"),
    "python": sys.version.split()[0],
    "documents": a.documents,
    "tokens": tokens,
    "num_samples": samples,
    "samples": len(dataset),
    "epochs": len(dataset.document_index) // a.documents,
    "seconds": round(seconds, 3),
    "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    "mib_before": before // 1024,
    "first": [int(x) for x in dataset.shuffle_index[:4]],
}))
if not a.cache:
    shutil.rmtree(cache)
