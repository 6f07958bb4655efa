"""Records what torch DataLoaders over Hugging Face iterable datasets hand to each rank, for tests/hf_iterable.rs.

    python samplers/tests/record_hf_iterable.py > samplers/tests/hf_iterable_loader.json

Needs torch 2.15.0, datasets 5.2.0, accelerate 1.15.0.
"""
import itertools
import json

import datasets
import torch
from accelerate.data_loader import IterableDatasetShard
from datasets import Dataset, IterableDataset, interleave_datasets
from datasets.distributed import split_dataset_by_node
from torch.utils.data import DataLoader

datasets.disable_progress_bars()


def numbers(ranges):
    for start, stop in ranges:
        for i in range(start, stop):
            yield {"id": i}


def stream(n, shards, reader, start=0):
    if reader == "tables":
        return Dataset.from_dict({"id": list(range(start, start + n))}).to_iterable_dataset(num_shards=shards)
    lens = [n // shards + (i < n % shards) for i in range(shards)]
    cuts = list(itertools.accumulate(lens, initial=start))
    return IterableDataset.from_generator(numbers, gen_kwargs={"ranges": list(zip(cuts[:-1], cuts[1:]))})


def node(dataset, rank, world, epoch):
    """The epoch is set after the split, which makes a new dataset without one."""
    dataset = split_dataset_by_node(dataset, rank, world) if world > 1 else dataset
    dataset.set_epoch(epoch)
    return dataset


def batches(dataset, batch_size, workers, drop_last):
    loader = DataLoader(dataset, batch_size=batch_size, num_workers=workers, drop_last=drop_last,
                        collate_fn=lambda rows: [int(row["id"]) for row in rows])
    return list(loader)


def main():
    cases = []
    for reader in ("tables", "rows"):
        for n, shards, buffer, world, workers, batch, drop in (
            (23, 5, 4, 1, 0, 3, False), (23, 5, 4, 1, 2, 3, False), (23, 5, 4, 1, 3, 3, True), (23, 5, 4, 2, 2, 2, False),
            (24, 6, 5, 2, 2, 2, False), (24, 6, 5, 3, 2, 3, True), (24, 6, 5, 3, 0, 3, False), (25, 2, 7, 2, 3, 4, False),
            (40, 1, 8, 3, 0, 4, False), (40, 4, 1000, 4, 2, 4, False), (40, 8, 1, 2, 4, 3, False),
        ):
            for epoch in (0, 1, 3):
                dataset = stream(n, shards, reader).shuffle(seed=7, buffer_size=buffer)
                ranks = [batches(node(dataset, rank, world, epoch), batch, workers, drop) for rank in range(world)]
                cases.append({"n": n, "world": world, "batch_size": batch, "ranks": ranks, "spec": {
                    "name": "hf-iterable", "seed": 7, "buffer_size": buffer, "shards": shards, "reader": reader,
                    "num_workers": workers, "drop_last": drop, "first_epoch": epoch}})
    for reader in ("tables", "rows"):
        for strategy in ("first_exhausted", "all_exhausted", "all_exhausted_without_replacement"):
            for p in (None, [0.3, 0.5, 0.2]):
                for shuffle in (False, True):
                    for epoch in (0, 2):
                        mix = [stream(9, 2, reader), stream(14, 4, reader, 9), stream(6, 2, reader, 23)]
                        mix = interleave_datasets(mix, probabilities=p, seed=None if p is None else 5, stopping_strategy=strategy)
                        spec = {"name": "hf-iterable", "reader": reader, "stopping_strategy": strategy, "first_epoch": epoch,
                                "sources": [{"rows": 9, "shards": 2}, {"rows": 14, "shards": 4}, {"rows": 6, "shards": 2}]}
                        if p is not None:
                            spec.update(probabilities=p, mix_seed=5)
                        if shuffle:
                            mix = mix.shuffle(seed=3, buffer_size=6)
                            spec.update(seed=3, buffer_size=6)
                        else:
                            spec.update(shuffle=False)
                        ranks = [batches(node(mix, rank, 2, epoch), 3, 0, False) for rank in range(2)]
                        cases.append({"n": 29, "world": 2, "batch_size": 3, "ranks": ranks, "spec": spec})
    for drop in (False, True):
        for epoch in (0, 1):
            dataset = stream(23, 5, "tables").shuffle(seed=7, buffer_size=4)
            dataset.set_epoch(epoch)
            ranks = []
            for rank in range(3):
                shard = IterableDatasetShard(dataset, batch_size=2, drop_last=drop, num_processes=3, process_index=rank)
                rows = [int(row["id"]) for row in shard]
                ranks.append([rows[i:i + 2] for i in range(0, len(rows), 2)])
            cases.append({"n": 23, "world": 3, "batch_size": 2, "ranks": ranks, "spec": {
                "name": "hf-iterable", "seed": 7, "buffer_size": 4, "shards": 5, "drop_last": drop, "split": "batches",
                "first_epoch": epoch}})
    versions = {"datasets": datasets.__version__, "torch": torch.__version__}
    print('{"versions": %s, "cases": [\n%s\n]}' % (json.dumps(versions), ",\n".join(json.dumps(c) for c in cases)))


main()
