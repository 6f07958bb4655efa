"""Logs of real runs, written by python/ceteris_log.py: what `loader verify` has to recognise.

    python run_logs.py --out ../../data/run_logs                       # torch and Trainer (requirements.txt, xxhash)
    python run_logs.py --out ../../data/run_logs --only megatron       # requirements-megatron.txt, xxhash

torch_distributed   DataLoader over DistributedSampler, 4 ranks, two epochs, one fingerprint a micro-batch
torch_no_set_epoch  the same, by a script that never calls set_epoch
trainer             transformers' Trainer on two gloo processes, 24 optimizer steps of 2 micro-steps, samples logged
trainer_resumed     the same run continued from a checkpoint in mid-epoch
megatron            Megatron-Core's GPTDataset under its pretraining sampler's law, 2 ranks, samples logged

Every run reads tests/data/shakespeare (2630 rows of 128 tokens) or tests/golden/megatron/u16.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.normpath(os.path.join(HERE, "..", "..", ".."))
sys.path.insert(0, os.path.join(ROOT, "python"))
SHAKESPEARE = os.path.join(ROOT, "tests", "data", "shakespeare")

TORCH = {"world_size": 4, "micro_batch_size": 32, "seed": 1234, "epochs": 2}
TRAINER = {"world_size": 2, "micro_batch_size": 4, "gradient_accumulation_steps": 2, "seed": 7, "max_steps": 24}
MEGATRON = {"prefix": "megatron/u16/data", "sequence_length": 64, "seed": 1234, "samples": 400, "world_size": 2, "micro_batch_size": 4,
            "micro_steps": 40}


def torch_run(out, set_epoch):
    import datasets
    from torch.utils.data import DataLoader, DistributedSampler

    from ceteris_log import ConsumptionLog

    data = datasets.load_from_disk(SHAKESPEARE).select_columns(["input_ids"]).with_format("torch")
    for rank in range(TORCH["world_size"]):
        sampler = DistributedSampler(data, num_replicas=TORCH["world_size"], rank=rank, seed=TORCH["seed"])
        loader = DataLoader(data, batch_size=TORCH["micro_batch_size"], sampler=sampler)
        with ConsumptionLog(out, rank=rank, world_size=TORCH["world_size"], samples=False) as log:
            for epoch in range(TORCH["epochs"]):
                if set_epoch:
                    sampler.set_epoch(epoch)
                for _ in log.watch(loader, epoch=epoch):
                    pass


def trainer_worker(out, resume):
    import datasets
    import torch
    from transformers import Trainer, TrainingArguments

    from ceteris_log import ConsumptionLog

    torch.set_num_threads(1)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.zeros(1))

        def forward(self, input_ids, labels=None):
            return {"loss": (self.w * input_ids.float().mean()).sum()}

    data = datasets.load_from_disk(SHAKESPEARE).select_columns(["input_ids"]).shuffle(seed=TRAINER["seed"], keep_in_memory=True)
    args = TrainingArguments(
        output_dir=os.path.join(out, "ck"), per_device_train_batch_size=TRAINER["micro_batch_size"], seed=TRAINER["seed"], use_cpu=True,
        gradient_accumulation_steps=TRAINER["gradient_accumulation_steps"], max_steps=TRAINER["max_steps"], learning_rate=1e-9,
        report_to=[], disable_tqdm=True, logging_strategy="no", save_strategy="steps", save_steps=10)
    trainer = Trainer(model=Model(), args=args, train_dataset=data)
    log = ConsumptionLog(os.path.join(out, "log"))
    log.watch_trainer(trainer)
    trainer.train(resume_from_checkpoint=os.path.join(out, "ck", "checkpoint-10") if resume else None)
    log.close()
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def trainer_runs(out):
    env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory() as work:
        for name, resume, port in (("trainer", "", "29711"), ("trainer_resumed", "resume", "29712")):
            command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(TRAINER["world_size"]), "--master_port", port,
                       os.path.abspath(__file__), "--worker", work, resume]
            subprocess.run(command, check=True, env=env)
            shutil.move(os.path.join(work, "log"), os.path.join(out, name))


def megatron_run(out):
    import logging

    logging.disable(logging.CRITICAL)
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from torch.utils.data import DataLoader

    from ceteris_log import ConsumptionLog

    class Tokenizer:
        # Megatron puts 0 wherever the padding id stands in the data, so that id is one the data does not have.
        vocab_size, eod, pad = 4097, 0, 4096
        unique_identifiers = {"class": "Tokenizer", "vocab_size": 4096}

    os.chdir(os.path.join(HERE, ".."))
    m = MEGATRON
    with tempfile.TemporaryDirectory() as cache:
        config = GPTDatasetConfig(
            random_seed=m["seed"], sequence_length=m["sequence_length"], blend=([m["prefix"]], None), split="100,0,0", tokenizer=Tokenizer(),
            reset_position_ids=False, reset_attention_mask=False, eod_mask_loss=False, create_attention_mask=False, path_to_cache=cache)
        train, _, _ = BlendedMegatronDatasetBuilder(GPTDataset, [m["samples"], 0, 0], lambda: True, config).build()
        world, rows = m["world_size"], m["micro_batch_size"]
        for rank in range(world):
            # The law of MegatronPretrainingSampler (dataloader_type single): global micro-batches in turn, a block for each rank.
            batches = [range(k * world * rows + rank * rows, k * world * rows + (rank + 1) * rows) for k in range(m["micro_steps"])]
            loader = DataLoader(train, batch_sampler=batches)
            with ConsumptionLog(out, rank=rank, world_size=world) as log:
                for _ in log.watch(loader, field="tokens"):
                    pass


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--only", default="torch,trainer")
    args = parser.parse_args()
    out, only = os.path.abspath(args.out), args.only.split(",")
    os.makedirs(out, exist_ok=True)
    names = {"torch": ["torch_distributed", "torch_no_set_epoch"], "trainer": ["trainer", "trainer_resumed"], "megatron": ["megatron"]}
    for name in [n for family in only for n in names[family]]:
        shutil.rmtree(os.path.join(out, name), ignore_errors=True)
    if "torch" in only:
        torch_run(os.path.join(out, "torch_distributed"), True)
        torch_run(os.path.join(out, "torch_no_set_epoch"), False)
    if "trainer" in only:
        trainer_runs(out)
    if "megatron" in only:
        megatron_run(os.path.join(out, "megatron"))
    import importlib.metadata as md

    packages = {"torch": ["torch", "datasets"], "trainer": ["transformers", "accelerate", "torch", "datasets"], "megatron": ["megatron-core", "torch"]}
    path = os.path.join(out, "runs.json")
    runs = json.load(open(path)) if os.path.exists(path) else {}
    for family, parameters in (("torch", TORCH), ("trainer", TRAINER), ("megatron", MEGATRON)):
        if family in only:
            runs[family] = {"versions": {p: md.version(p) for p in packages[family] + ["xxhash", "numpy"]}, "parameters": parameters}
    with open(path, "w") as f:
        json.dump(dict(sorted(runs.items())), f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        trainer_worker(sys.argv[2], sys.argv[3:] == ["resume"])
    else:
        main()
