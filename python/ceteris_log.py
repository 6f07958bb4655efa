"""Logs what a training run consumed, so that `loader verify` and `loader diff` can say which data order it had.

One file to drop into a training script; it needs numpy and xxhash only (Hugging Face datasets brings both).
For every micro-batch of every rank it writes one JSON line with fingerprints of the token ids, definition 1 of
docs/jsonl.md. Tokens themselves are never written. A sample of 2048 tokens costs a few microseconds and 35 bytes.

    log = ConsumptionLog("runs/a/consumed")                    # a folder, one file for each rank
    for epoch in range(epochs):
        for batch in log.watch(loader, epoch=epoch):           # your own loop: logs each batch as it is handed out
            ...

    log = ConsumptionLog("runs/a/consumed")
    log.watch_trainer(trainer)                                 # transformers' Trainer: before trainer.train()

    log = ConsumptionLog("runs/a/consumed", rank=mpu.get_data_parallel_rank(),
                         world_size=mpu.get_data_parallel_world_size())
    batches = log.watch(batches, field="tokens")               # Megatron: the iterator over batches

Rank and world size are those of data parallelism; without arguments they are read from RANK and WORLD_SIZE. Log on
one process of each data-parallel rank. Then, where the data lies:

    loader verify --log runs/a/consumed --order fla --seed 42 --cache-dir DATASET
"""
import json
import os
import struct

import numpy as np
import xxhash

LOG_VERSION = 1
DEFINITION = 1


def sample_fingerprint(tokens):
    """16 bytes: XXH3-128 over the number of tokens (uint64) and the tokens (uint32), little-endian."""
    tokens = _integers(tokens).reshape(-1)
    return _sample(tokens)


def combine(digests):
    """16 bytes over the digests of a micro-batch or step, in deal position order, or of a run's steps."""
    return xxhash.xxh3_128(b"".join(digests)).digest()


def set_fingerprint(digests):
    """32 hex digits that do not depend on the sequence of the digests."""
    return "%032x" % (sum(int.from_bytes(d, "big") for d in digests) % 2**128)


def _integers(tokens):
    """Token ids of a tensor, an array or lists, as an integer array without a copy where that is possible."""
    if hasattr(tokens, "detach"):
        tokens = tokens.detach().cpu().numpy()
    tokens = np.asarray(tokens)
    if tokens.size == 0:
        return tokens.astype(np.uint32)
    if tokens.dtype.kind not in "iu":
        raise TypeError("token ids must be integers, not %s" % tokens.dtype)
    if tokens.min() < 0 or tokens.max() >= 2**31:
        raise ValueError("token ids go from 0 to 2147483647; found %d to %d" % (tokens.min(), tokens.max()))
    return tokens


def _sample(tokens):
    data = struct.pack("<Q", tokens.size) + np.ascontiguousarray(tokens, dtype="<u4").tobytes()
    return xxhash.xxh3_128(data).digest()


class ConsumptionLog:
    """Writes one JSON line for each micro-batch that this rank consumes.

    path        a folder (made if needed), in which this rank writes rank-00000.jsonl; or a path that ends in .jsonl
    samples     also write the fingerprint of every sample; without them a log can be compared micro-batch by
                micro-batch only
    seq_length  log the first seq_length tokens of each row only: for loops whose rows hold one token more, as
                Megatron's `text` does
    append      continue the file of a run that was resumed; by default an existing file is an error
    """

    def __init__(self, path, rank=None, world_size=None, samples=True, seq_length=None, append=False):
        self.rank = int(os.environ.get("RANK", 0) if rank is None else rank)
        self.world_size = int(os.environ.get("WORLD_SIZE", 1) if world_size is None else world_size)
        if not 0 <= self.rank < self.world_size:
            raise ValueError("rank %d does not exist in a world of %d" % (self.rank, self.world_size))
        path = os.fspath(path)
        if not path.endswith(".jsonl"):
            os.makedirs(path, exist_ok=True)
            path = os.path.join(path, "rank-%05d.jsonl" % self.rank)
        elif self.world_size > 1:
            raise ValueError("with more than one rank give a folder: %s would be written by all of them" % path)
        self.path, self.samples, self.seq_length = path, samples, seq_length
        new = not (append and os.path.exists(path))
        self._file = open(path, "x" if new else "a", buffering=1, encoding="ascii")
        self._epoch, self._next = None, 0
        if new:
            self._write({"ceteris_log": LOG_VERSION, "definition": DEFINITION, "rank": self.rank,
                         "world_size": self.world_size})

    def batch(self, input_ids, epoch=None, micro_step=None, step=None, ids=None, lengths=None):
        """Logs one micro-batch of shape (rows, tokens) in the sequence in which it is consumed.

        epoch       from 0; micro-steps restart at each epoch. Left out, they are counted through the run
        micro_step  from 0; left out, calls are counted
        step        optimizer step; tells a comparison of two logs how many micro-steps make one
        ids         sample ids, where the loop knows them
        lengths     tokens of each row that are not padding; left out, whole rows count
        """
        rows = _integers(input_ids)
        if rows.ndim != 2:
            raise ValueError("input_ids must have the shape (rows, tokens), not %s" % (rows.shape,))
        if epoch != self._epoch:
            self._epoch, self._next = epoch, 0
        micro_step = self._next if micro_step is None else int(micro_step)
        self._next = micro_step + 1
        if self.seq_length is not None:
            rows = rows[:, :self.seq_length]
        if lengths is None:
            digests = [_sample(row) for row in rows]
        else:
            digests = [_sample(row[:int(n)]) for row, n in zip(rows, lengths, strict=True)]
        record = {} if epoch is None else {"epoch": int(epoch)}
        record["micro_step"] = micro_step
        if step is not None:
            record["step"] = int(step)
        record["rank"] = self.rank
        if ids is not None:
            record["ids"] = [int(i) for i in _integers(ids).reshape(-1)]
            if len(record["ids"]) != len(digests):
                raise ValueError("%d ids for %d rows" % (len(record["ids"]), len(digests)))
        record["num_samples"] = len(digests)
        record["fingerprint"] = combine(digests).hex()
        if self.samples:
            record["samples"] = [d.hex() for d in digests]
        self._write(record)

    def watch(self, batches, field="input_ids", epoch=None, ids_field=None):
        """Yields the batches of an iterator and logs each one when it is handed out.

        A batch is an array or tensor of token ids, or a mapping that holds one under `field`.
        """
        for batch in batches:
            tokens = batch if hasattr(batch, "shape") else batch[field]
            ids = batch[ids_field] if ids_field is not None else None
            self.batch(tokens, epoch=epoch, ids=ids)
            yield batch

    def watch_trainer(self, trainer, field="input_ids"):
        """Logs every micro-batch that reaches `training_step` of a transformers Trainer.

        A run resumed in the middle of an epoch counts its micro-steps from 0 there; `loader verify` finds the place.
        """
        training_step = trainer.training_step

        def logged(model, inputs, *args, **kwargs):
            # `state.epoch` is a fraction while an epoch runs and whole at its start.
            epoch = int((trainer.state.epoch or 0) + 1e-6)
            self.batch(inputs[field], epoch=epoch, step=trainer.state.global_step)
            return training_step(model, inputs, *args, **kwargs)

        trainer.training_step = logged

    def close(self):
        self._file.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _write(self, record):
        self._file.write(json.dumps(record, separators=(",", ":")) + "\n")
