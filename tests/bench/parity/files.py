"""Files of the kit: atomic JSON, token files, rows as an Arrow table, the rows of order `fla`."""

import glob
import json
import os

import numpy as np


def write_text(path, text):
    """Whole or not at all."""
    with open(f"{path}.part", "w") as f:
        f.write(text)
    os.replace(f"{path}.part", path)


def write_json(path, value):
    write_text(path, json.dumps(value, indent=1) + "\n")


def read_tokens(path, seq_length):
    """Rows [N, seq_length] of a file of little-endian int32."""
    tokens = np.fromfile(path, dtype="<i4")
    if len(tokens) < seq_length or len(tokens) % seq_length:
        raise SystemExit(f"{path}: {len(tokens)} tokens are not whole rows of {seq_length}")
    return tokens.reshape(-1, seq_length)


def write_rows(path, rows):
    """Rows [N, T] as the Arrow stream that datasets writes; both sides' inputs come from the same array."""
    import pyarrow as pa
    schema = pa.schema([("input_ids", pa.list_(pa.int32()))])
    with pa.OSFile(path, "wb") as f, pa.ipc.new_stream(f, schema) as out:
        for part in np.array_split(rows.astype(np.int32), -(-len(rows) // 1000)):
            offsets = pa.array(np.arange(0, part.size + 1, rows.shape[1], dtype=np.int32))
            column = pa.ListArray.from_arrays(offsets, pa.array(np.ascontiguousarray(part).reshape(-1)))
            out.write_batch(pa.record_batch([column], schema=schema))


def read_rows(folder, rows, seq_length):
    """The rows asked for of a folder that make_cache.py wrote, [len(rows), seq_length]."""
    import pyarrow as pa
    columns = []
    for name in sorted(glob.glob(os.path.join(folder, "data-*.arrow"))):
        table = pa.ipc.open_stream(pa.memory_map(name)).read_all()
        columns += table["input_ids"].chunks
    starts = np.cumsum([0] + [len(c) for c in columns])
    out = np.empty((len(rows), seq_length), np.int32)
    for i, row in enumerate(rows):
        at = int(np.searchsorted(starts, row, "right")) - 1
        out[i] = columns[at][int(row - starts[at])].values.to_numpy()
    return out


def count_rows(folder):
    import pyarrow as pa
    return sum(pa.ipc.open_stream(pa.memory_map(n)).read_all().num_rows for n in glob.glob(os.path.join(folder, "data-*.arrow")))


def fla_order(rows, count, seed):
    """The first `count` rows that order `fla` consumes in epoch 0: datasets' shuffle, then torch's DistributedSampler. Its strided deal
    over any number of ranks gives every global batch the next rows of this list."""
    import torch
    shuffled = np.random.default_rng(seed).permutation(rows)
    generator = torch.Generator().manual_seed(seed)
    return shuffled[torch.randperm(rows, generator=generator)[:count].numpy()].tolist()


def learning_rate(step, peak, warm_up, total, least):
    """Hugging Face's cosine_with_min_lr at optimizer step `step`, from 0: linear warm-up from 0, cosine down to `least`."""
    if step < warm_up:
        return peak * step / max(1, warm_up)
    share = (step - warm_up) / max(1, total - warm_up)
    return max(0.0, 0.5 * (1 + np.cos(np.pi * share)) * (peak - least) + least)
