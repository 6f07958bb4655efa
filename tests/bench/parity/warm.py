"""Compiles FLA's autotuned Triton kernels on every core, before anything is timed.

    cd tests/bench && python -m parity.warm CONFIG.json FOLDER SECONDS [MICRO_BATCH ...]

Every process runs short steps of a one-layer model and lets the autotuner see its share of the candidates only, so that together
they put all of them into Triton's cache. Nothing is timed and no choice is kept: later processes autotune as usual, without waiting
for the compiler. CONFIG is a model's config.json, FOLDER takes the logs.
"""

import json
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SEQ_LENGTH = 2048


def compile_all(job, folder, until, meanwhile=lambda: None):
    """Starts the processes, calls `meanwhile`, waits until the time `until` at most. job: model, seq_length, micro_batches."""
    start, jobs = time.time(), max(1, min(15, (os.cpu_count() or 2) - 1))
    path = os.path.join(folder, "warm.json")
    with open(path, "w") as f:
        json.dump({**job, "until": until - 15}, f)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([os.path.dirname(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]),
           "FLA_CACHE_RESULTS": "0", "OMP_NUM_THREADS": "1"}
    logs = [open(os.path.join(folder, f"warm-{i}.log"), "w") for i in range(jobs)]
    processes = [subprocess.Popen([sys.executable, "-m", "parity.warm", "--share", path, str(i), str(jobs)],
                                  stdout=log, stderr=subprocess.STDOUT, env=env) for i, log in enumerate(logs)]
    meanwhile()
    for process in processes:
        try:
            process.wait(max(1.0, until - time.time()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    good, notes = 0, []
    for log in logs:
        log.close()
        with open(log.name) as f:
            lines = f.read().strip().splitlines()
        good += any(line.startswith("ok") for line in lines)
        notes += [line for line in lines if not line.startswith("ok")][-1:]
    return {"good": good, "jobs": jobs, "seconds": time.time() - start, "notes": sorted(set(notes))[:4]}


def only(index, jobs):
    """Makes every autotuner of this process compile candidates index, index + jobs, … alone."""
    from triton.runtime.autotuner import Autotuner
    original = Autotuner.__init__

    def init(self, *arguments, **named):
        original(self, *arguments, **named)
        everything = self.configs
        self.configs = everything[index::jobs] or [everything[index % len(everything)]]

        def once(call, quantiles=None):
            call()
            return [1.0, 1.0, 1.0]
        self.do_bench = once
    Autotuner.__init__ = init


def share(path, index, jobs):
    """One process's part."""
    with open(path) as f:
        job = json.load(f)
    start = time.time()
    only(index, jobs)
    import torch

    from . import fla_side
    # A whole head needs memory, so only one small batch has it; the layer's kernels see every batch size.
    shapes = [(2, 256, None)] + [(b, job["seq_length"], 512) for b in job["micro_batches"]] + [(1, job["seq_length"], None)]
    for batch, length, vocab in shapes:
        if time.time() > job["until"]:
            print("out of time before", batch, length, flush=True)
            break
        try:
            changes = {"num_hidden_layers": 1, **({"vocab_size": vocab} if vocab else {})}
            model = fla_side.build(job["model"], **changes)
            x = torch.randint(0, model.config.vocab_size, (batch, length), device="cuda")
            fla_side.forward(model, x).backward()
            torch.cuda.synchronize()
            print("ok", batch, length, f"{time.time() - start:.0f} s", flush=True)
            del model, x
        except Exception as e:  # one candidate that does not compile must not stop the others
            print("failed", batch, length, repr(e)[:300], flush=True)
        torch.cuda.empty_cache()


def main():
    if sys.argv[1:2] == ["--share"]:
        return share(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    if len(sys.argv) < 4:
        sys.exit(__doc__.split("\n\n")[1].strip())
    config, folder, seconds = sys.argv[1:4]
    with open(config) as f:
        model = json.load(f)
    os.makedirs(folder, exist_ok=True)
    job = {"model": model, "seq_length": SEQ_LENGTH, "micro_batches": [int(b) for b in sys.argv[4:]] or [8, 32]}
    out = compile_all(job, folder, time.time() + float(seconds))
    print(json.dumps(out, indent=1))
    return 0 if out["good"] else 1


if __name__ == "__main__":
    sys.exit(main())
