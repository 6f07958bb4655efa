"""Writes the small Arrow and Parquet files under tests/fixtures/arrow: layouts that pyarrow produces and users have.

    pip install pyarrow==26.0.1
    python tests/scripts/make_arrow_fixtures.py tests/fixtures/arrow

Every file holds the same 23 rows in a column input_ids (lengths 0 to 14, or 8 each where the name says `fixed`), so one expected
list serves them all; expected.json says which file holds which.
"""

import decimal
import json
import os
import sys

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq

ROWS = [[(r * 37 + i * 101) % 251 for i in range((r * 7) % 15)] for r in range(23)]
FIXED = [[(r * 31 + i * 17) % 127 for i in range(8)] for r in range(23)]


def beside(n):
    """Columns of every layout that could stand before the tokens."""
    return {
        "text": pa.array([f"row {i}" if i % 3 else None for i in range(n)]),
        "view": pa.array(["a rather long string that is not inlined " * (i % 3) for i in range(n)], pa.string_view()),
        "flag": pa.array([i % 2 == 0 for i in range(n)]),
        "none": pa.nulls(n),
        "nested": pa.array([{"a": i, "b": [{"c": str(i)}] * (i % 3)} for i in range(n)]),
        "dict": pa.array(["x", "y", "z", "x"] * (n // 4 + 1))[:n].dictionary_encode(),
        "map": pa.array([[("k", i)] * (i % 2) for i in range(n)], pa.map_(pa.string(), pa.int64())),
        "ree": pa.RunEndEncodedArray.from_arrays(pa.array([n // 2, n], pa.int32()), pa.array([1, 2])),
        "dense": pa.UnionArray.from_dense(pa.array([0] * n, pa.int8()), pa.array(range(n), pa.int32()), [pa.array(range(n)), pa.array(["u"])]),
        "sparse": pa.UnionArray.from_sparse(pa.array([0] * n, pa.int8()), [pa.array(range(n)), pa.array(["u"] * n)]),
        "fsb": pa.array([bytes([i]) * 3 for i in range(n)], pa.binary(3)),
        "dec": pa.array([decimal.Decimal(i) for i in range(n)], pa.decimal128(10, 2)),
        "time": pa.array([i for i in range(n)], pa.timestamp("us")),
    }


def table(kind, rows=ROWS, extra=False):
    array = pa.array(rows, kind)
    columns = {**beside(len(rows)), "input_ids": array, "after": pa.array(range(len(rows)))} if extra else {"input_ids": array}
    return pa.table(columns)


def stream(path, t, chunk=None, options=None):
    with pa.OSFile(path, "wb") as f, pa.ipc.new_stream(f, t.schema, options=options) as w:
        w.write_table(t, max_chunksize=chunk)


def file(path, t, chunk=None, options=None):
    with pa.OSFile(path, "wb") as f, pa.ipc.new_file(f, t.schema, options=options) as w:
        w.write_table(t, max_chunksize=chunk)


def main(out):
    os.makedirs(out, exist_ok=True)
    made = {}

    def add(name, kind, fixed=False):
        made[name] = {"type": str(kind), "rows": "fixed" if fixed else "ragged"}
        return os.path.join(out, name)

    for item in (pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()):
        small = item == pa.int8()  # values go up to 250
        rows, fixed = (FIXED, True) if small else (ROWS, False)
        for kind in (pa.list_(item), pa.large_list(item), pa.list_view(item), pa.large_list_view(item)):
            name = str(kind).split("<")[0]
            stream(add(f"{name}_{item}.arrow", kind, fixed), table(kind, rows), chunk=5)
        stream(add(f"fixed_size_list_{item}_fixed.arrow", pa.list_(item, 8), True), table(pa.list_(item, 8), FIXED), chunk=5)

    kind = pa.list_(pa.int32())
    stream(add("many_columns.arrow", kind), table(kind, extra=True), chunk=6)
    file(add("many_columns_file.arrow", kind), table(kind, extra=True), chunk=6)
    file(add("file_format.arrow", kind), table(kind), chunk=5)
    file(add("file_one_batch.arrow", kind), table(kind))
    # A slice whose offsets do not begin at zero, written as it is.
    padded = pa.concat_tables([table(kind, [[9] * 5] * 4), table(kind), table(kind, [[8] * 3] * 2)]).combine_chunks()
    stream(add("sliced.arrow", kind), padded.slice(4, len(ROWS)))
    view = pa.list_view(pa.int32())
    # List views may overlap and be out of sequence: rows point into one pool in reverse.
    pool, offsets = [], [0] * len(ROWS)
    for r in reversed(range(len(ROWS))):
        offsets[r] = len(pool)
        pool += ROWS[r]
    array = pa.ListViewArray.from_arrays(pa.array(offsets, pa.int32()), pa.array([len(r) for r in ROWS], pa.int32()), pa.array(pool, pa.int32()))
    stream(add("list_view_reversed.arrow", view), pa.table({"input_ids": array}))
    not_null = pa.schema([pa.field("input_ids", pa.list_(pa.field("item", pa.int32(), nullable=False)), nullable=False)])
    stream(add("not_nullable.arrow", pa.list_(pa.field("item", pa.int32(), nullable=False))), table(kind).cast(not_null))
    empty = table(kind).slice(0, 0)
    with pa.OSFile(add("empty_batches.arrow", kind), "wb") as f, pa.ipc.new_stream(f, empty.schema) as w:
        w.write_batch(pa.record_batch([pa.array([], kind)], names=["input_ids"]))
        for b in table(kind).to_batches(max_chunksize=4):
            w.write_batch(b)
            w.write_batch(pa.record_batch([pa.array([], kind)], names=["input_ids"]))
    stream(add("metadata_v4.arrow", kind), table(kind), chunk=7, options=pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4))
    stream(add("legacy_prefix.arrow", kind), table(kind), chunk=7,
           options=pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4, use_legacy_format=True))
    for codec in ("lz4", "zstd"):
        stream(add(f"compressed_{codec}.arrow", kind), table(kind, extra=True), chunk=9, options=pa.ipc.IpcWriteOptions(compression=codec))
    feather.write_feather(table(pa.large_list(pa.int64())), add("default.feather", pa.large_list(pa.int64())))
    feather.write_feather(table(view), add("list_view_zstd.feather", view), compression="zstd")
    for codec in ("snappy", "zstd", "gzip", "lz4", "none"):
        pq.write_table(table(kind), add(f"{codec}.parquet", kind), compression=codec, row_group_size=7)
    pq.write_table(table(pa.large_list(pa.uint16())), add("large_list_uint16.parquet", pa.large_list(pa.uint16())))
    pq.write_table(table(pa.list_(pa.int64(), 8), FIXED), add("fixed_size_list_int64_fixed.parquet", pa.list_(pa.int64(), 8), True))
    plain = {k: v for k, v in beside(len(ROWS)).items() if k in ("text", "flag", "nested", "fsb", "time")}
    pq.write_table(pa.table({**plain, "input_ids": pa.array(ROWS, kind)}), add("many_columns.parquet", kind), data_page_version="2.0")

    for name in made:  # parquet renames the items
        if name.endswith(".parquet"):
            made[name]["type"] = str(pq.read_schema(os.path.join(out, name)).field("input_ids").type)
    with open(os.path.join(out, "expected.json"), "w") as f:
        json.dump({"pyarrow": pa.__version__, "ragged": ROWS, "fixed": FIXED, "files": made}, f, separators=(",", ":"))
        f.write("\n")


main(sys.argv[1])
