"""Writes a synthetic tokenized dataset in the form of Dataset.save_to_disk, as large as asked for.

    pip install -r tests/bench/requirements.txt
    python tests/bench/make_cache.py /tmp/ceteris-cache --gigabytes 2

Rows of `seq_length` int32 tokens in record batches of 1000 rows, as datasets writes them; `datasets.load_from_disk` opens the
folder. Tokens are uniform below `vocab_size` from numpy's PCG64 with `seed`, shard by shard, so equal arguments give equal bytes.
Needs memory for one record batch only.
"""

import argparse
import json
import os
import sys

import numpy as np
import pyarrow as pa

BATCH_ROWS = 1000


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("out", help="folder to write; must not exist yet")
    size = ap.add_mutually_exclusive_group()
    size.add_argument("--gigabytes", type=float, default=2.0, help="size of the tokens in units of 2^30 bytes (default 2)")
    size.add_argument("--rows", type=int, help="rows instead of a size")
    ap.add_argument("--seq-length", type=int, default=2048)
    ap.add_argument("--shards", type=int, default=4)
    ap.add_argument("--vocab-size", type=int, default=32000)
    ap.add_argument("--seed", type=int, default=0)
    a = ap.parse_args()
    if os.path.exists(a.out):
        sys.exit(f"{a.out} exists: remove it or name another folder")
    rows = a.rows if a.rows is not None else int(a.gigabytes * 2**30) // (4 * a.seq_length)
    if rows < a.shards or a.shards < 1 or a.seq_length < 1:
        sys.exit(f"{rows} rows cannot fill {a.shards} shards")
    features = {"input_ids": {"feature": {"dtype": "int32", "_type": "Value"}, "_type": "List"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    schema = pa.schema([("input_ids", pa.list_(pa.int32()))], metadata=metadata)
    os.makedirs(a.out)
    names = []
    for shard in range(a.shards):
        # As save_to_disk deals rows: the first rows % shards shards have one more.
        n = rows // a.shards + (shard < rows % a.shards)
        name = f"data-{shard:05}-of-{a.shards:05}.arrow"
        names.append(name)
        rng = np.random.default_rng([a.seed, shard])
        with pa.OSFile(os.path.join(a.out, name), "wb") as f, pa.ipc.new_stream(f, schema) as writer:
            for start in range(0, n, BATCH_ROWS):
                m = min(BATCH_ROWS, n - start)
                tokens = rng.integers(0, a.vocab_size, size=m * a.seq_length, dtype=np.int32)
                offsets = np.arange(0, (m + 1) * a.seq_length, a.seq_length, dtype=np.int32)
                column = pa.ListArray.from_arrays(pa.array(offsets), pa.array(tokens))
                writer.write_batch(pa.record_batch([column], schema=schema))
        if sys.stderr.isatty():
            print(f"\r{shard + 1} of {a.shards} shards", end="", file=sys.stderr)
    state = {"_data_files": [{"filename": n} for n in names], "_fingerprint": f"{a.seed & (2**64 - 1):016x}", "_format_columns": None,
             "_format_kwargs": {}, "_format_type": None, "_output_all_columns": False, "_split": None}
    info = {"citation": "", "description": "", "features": features, "homepage": "", "license": ""}
    for name, value in (("state.json", state), ("dataset_info.json", info)):
        with open(os.path.join(a.out, name), "w") as f:
            json.dump(value, f, indent=2)
    print(f"{a.out}: {rows} rows of {a.seq_length} tokens in {a.shards} shards, {rows * a.seq_length * 4 / 2**30:.2f} GiB", file=sys.stderr)


main()
