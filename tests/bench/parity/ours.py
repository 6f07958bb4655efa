"""Our side: the `trainer` program, and what its files hold."""

import glob
import json
import os
import subprocess
import time

from . import files


class Failed(Exception):
    """A program failed or ran out of time; the text says which and how."""


def call(command, log, timeout, env=None):
    """Runs a program; its stdout. stderr goes to `log`."""
    with open(log, "w") as err:
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=err, timeout=max(1.0, timeout), env=env, text=True)
        except subprocess.TimeoutExpired:
            raise Failed(f"out of time after {timeout:.0f} s: {' '.join(command[:4])} …; see {log}") from None
    if done.returncode:
        with open(log, errors="replace") as f:
            tail = f.read()[-1500:].strip()
        raise Failed(f"exit code {done.returncode}: {' '.join(command)}\n{tail}")
    return done.stdout


class Trainer:
    """The program, a run file and a folder for its runs."""

    def __init__(self, program, config, device, work):
        self.program, self.config, self.device, self.work, self.runs = program, config, device, work, 0

    def command(self, verb, sets, *rest):
        out = [self.program, *verb, "--config", self.config, "--device", self.device, *rest]
        for key, value in sets.items():
            out += ["--set", f"{key}={value}"]
        return out

    def settings(self):
        """Every setting of the run file, nested."""
        text = call(self.command(["config", "show"], {"data.cache_dir": "."}, "--format", "json"), f"{self.work}/config.log", 60)
        return json.loads(text)["settings"]

    def init(self, folder, timeout):
        """Initial weights as safetensors; the file."""
        path = os.path.join(folder, "model.safetensors")
        if not os.path.exists(path):
            call(self.command(["init"], {"data.cache_dir": "."}, "--output", folder), f"{self.work}/init.log", timeout)
        return path

    def train(self, name, sets, timeout):
        """A run from scratch: its metrics line by line and its newest checkpoint's folder, if it wrote one."""
        self.runs += 1
        folder = f"{self.work}/run-{self.runs}-{name}"
        sets = {"checkpoint.every": "null", "checkpoint.at_end": "false", "log.tensorboard": "false", "eval.cache_dir": "null",
                **sets, "output_dir": folder}
        start = time.time()
        call(self.command(["train"], sets, "--quiet"), f"{folder}.log", timeout)
        with open(f"{folder}/metrics.jsonl") as f:
            lines = [json.loads(line) for line in f]
        checkpoints = sorted(glob.glob(f"{folder}/checkpoints/step-*"), key=lambda p: int(p.rsplit("-", 1)[1]))
        return {"steps": [line for line in lines if "loss" in line], "checkpoint": checkpoints[-1] if checkpoints else None,
                "seconds": time.time() - start}

    def profile(self, sets, timeout, steps=5):
        """The report of `trainer profile`."""
        sets = {**sets, "output_dir": f"{self.work}/profile"}
        text = call(self.command(["profile"], sets, "--json", "--steps", str(steps)), f"{self.work}/profile.log", timeout)
        return json.loads(text)

    def gradients(self, name, weights, rows, timeout):
        """Gradients of one batch of rows [B, T]: with beta1 = 0 and no clipping AdamW's first moment after one step is the gradient,
        bit for bit. The moments' file, the loss and the norm."""
        data, order = f"{self.work}/{name}.arrow", f"{self.work}/{name}.order.txt"
        files.write_rows(data, rows)
        files.write_text(order, "".join(f"{i}\n" for i in range(len(rows))))
        run = self.train(name, {
            "data.cache_dir": data, "data.seq_length": rows.shape[1], "order.name": "file", "order.path": order,
            "batch.world_size": 1, "batch.micro_batch_size": len(rows), "batch.global_batch_size": len(rows),
            "batch.device_micro_batch_size": len(rows), "init.from": "checkpoint", "init.path": weights,
            "train.steps": 1, "optimizer.beta1": 0, "optimizer.max_grad_norm": "null", "checkpoint.at_end": "true",
        }, timeout)
        step = run["steps"][0]
        return {"moments": os.path.join(run["checkpoint"], "optimizer.safetensors"), "loss": step["loss"], "grad_norm": step["grad_norm"]}
