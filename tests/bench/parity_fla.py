"""Trains the same Gated DeltaNet with flash-linear-attention and with Ceteris, and prints what differs.

    pip install -r tests/bench/requirements-gpu.txt
    python tests/bench/parity_fla.py --trainer target/release/trainer --out parity
    python tests/bench/parity_fla.py --trainer target/release/trainer --out parity --sections throughput --micro-batch 32 8
    python tests/bench/parity_fla.py --trainer target/release/trainer --out parity --sections curve --tokens tokens.i32 \\
        --order order_sequential.json --recorded fla_h200.json
    python tests/bench/parity_fla.py --from parity/results.json

Sections, each with a time budget of its own:

  warm        compiles FLA's kernels on every core, so that nothing below waits for the compiler
  throughput  whole steps (forward, loss, backward, clip, AdamW) on the same rows of a cache in order `fla`: ours, FLA, ours, one
              after the other on the same card. Ours is `trainer train` with its loader running, by the times in metrics.jsonl; FLA's
              rows lie on the device beforehand and its steps are timed by events. The ratio is that of the medians of this call.
  accuracy    loss and gradients of a few short rows on both sides against float64 (parity/reference.py), with the initial weights
              and with larger ones: over all parameters, by kind, by parameter
  curve       a training run on both sides: same initial weights, rows, order, schedule; against a recorded FLA run too
  kernels     linear + cross entropy and the delta rule alone, and a step by group

Both sides start from the weights that `trainer init` writes. Precision is float32 under bfloat16 autocast (FLA) and `amp` (ours).
Results go to OUT/results.json as they come and to OUT/results.txt at the end of each section. The bounds are those
of gdn-300m on an H200. Exit codes: 0 every bound held, 1 one was missed, 2 an error.
"""

import argparse
import json
import os
import shutil
import sys
import time

from parity import card, files, report
from parity.ours import Failed, Trainer, call
from parity.warm import compile_all

HERE = os.path.dirname(os.path.abspath(__file__))
DEFAULT_BUDGET = {"warm": 110, "throughput": 240, "accuracy": 200, "curve": 200, "kernels": 150}
# The recorded curve's schedule: 20 steps of warm-up, cosine to a tenth over 200.
CURVE = {"lr": 2e-4, "warm_up": 20, "total": 200, "least": 2e-5}


class Kit:
    """The arguments, the results so far and the inputs that several sections share."""

    def __init__(self, a):
        self.a, self.out = a, os.path.abspath(a.out)
        self.work = os.path.abspath(a.work or os.path.join(a.out, "work"))
        os.makedirs(self.out, exist_ok=True)
        os.makedirs(self.work, exist_ok=True)
        self.results = {"version": 1, "command": sys.argv, "versions": {}, "sections": {}, "errors": {}}
        program = shutil.which(a.trainer)
        if not program:
            raise Failed(f"--trainer {a.trainer}: no such program; build it with cargo build --release --bin trainer")
        self.trainer = Trainer(os.path.abspath(program), a.config, a.device, self.work)
        self.settings = self.trainer.settings()
        self.model, self.optimizer = self.settings["model"], self.settings["optimizer"]
        self.seed, self.jobs, self.until = self.settings["seeds"]["data"], 0, 0.0

    def left(self):
        return self.until - time.time()

    def save(self, name, section):
        self.results["sections"][name] = section
        files.write_json(f"{self.out}/results.json", self.results)

    def weights(self):
        """The initial weights both sides start from."""
        return self.trainer.init(f"{self.work}/init", self.left())

    def ours(self, section, make):
        """A part of our side; a failure becomes the part's `error`, and the rest goes on."""
        return self._side("ours", section, make)

    def fla(self, section, job):
        """A job of FLA's side in a process of its own; what it had written when it failed is kept."""
        self.jobs += 1
        job = {"fla": True, "model": self.model, "optimizer": self.optimizer, "seq_length": self.a.seq_length, **job}
        path = f"{self.work}/job-{self.jobs}-{job['kind']}"
        files.write_json(f"{path}.json", job)

        def run():
            env = {**os.environ, "PYTHONPATH": os.pathsep.join([HERE, *filter(None, [os.environ.get("PYTHONPATH")])]),
                   "PYTHONUNBUFFERED": "1", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
            try:
                call([sys.executable, "-m", "parity.fla_side", f"{path}.json", f"{path}.out.json"], f"{path}.log", self.left(), env)
            except Failed as e:
                partial = read_json(f"{path}.out.json") if os.path.exists(f"{path}.out.json") else {}
                return {**partial, "error": str(e)}
            return read_json(f"{path}.out.json")
        out = self._side("fla", section, run)
        self.results["versions"].update(out.pop("versions", {}))
        return out

    def _side(self, side, section, make):
        say(f"{section}: {side}, {self.left():.0f} s left")
        try:
            if self.left() < 5:
                raise Failed("the section's budget was used up before it")
            out = make()
        except Failed as e:
            out = {"error": str(e)}
        if out.get("error"):
            say(f"{section}: {side}: {out['error']}")
        return out


def say(text):
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def read_json(path):
    with open(path) as f:
        return json.load(f)


def warm(kit):
    job = {"model": kit.model, "seq_length": kit.a.seq_length, "micro_batches": sorted({*kit.a.micro_batch, 8})}
    kit.save("warm", compile_all(job, kit.work, kit.until, lambda: kit.ours("warm", lambda: {"weights": kit.weights()})))


def throughput(kit):
    a, section = kit.a, {"micro_batches": []}
    cache = a.cache_dir or f"{kit.work}/cache"
    if not os.path.isdir(cache):
        call([sys.executable, f"{HERE}/make_cache.py", cache, "--gigabytes", "0.5", "--seq-length", str(a.seq_length),
              "--vocab-size", str(kit.model["vocab_size"])], f"{kit.work}/cache.log", kit.left())
    weights, steps, rows = kit.weights(), a.warm_up + a.steps, files.count_rows(cache)
    import numpy as np
    for size in a.micro_batch:
        part = {"micro_batch": size, "seq_length": a.seq_length, "warm_up": a.warm_up, "runs": []}
        section["micro_batches"].append(part)
        if steps * size > rows:
            raise Failed(f"{cache}: {rows} rows are fewer than {steps} steps of {size} take")
        sets = {"data.cache_dir": cache, "data.seq_length": a.seq_length, "order.name": "fla", "init.from": "checkpoint", "init.path": weights,
                "batch.world_size": 8, "batch.micro_batch_size": size // 8, "batch.global_batch_size": size,
                "batch.device_micro_batch_size": size, "train.steps": steps, "loader.workers": 8}
        batches = f"{kit.work}/batches-{size}.npy"
        order = files.fla_order(rows, steps * size, kit.seed)
        np.save(batches, files.read_rows(cache, order, a.seq_length).reshape(steps, size, a.seq_length))
        # The rates of a run that came before, else the warm-up of the run file; the losses tell whether both sides did the same.
        lrs = [kit.optimizer["lr"] * i / max(kit.settings["schedule"]["warmup_steps"] or 0, steps) for i in range(steps)]

        def ours(size=size, sets=sets):
            run = kit.trainer.train(f"throughput-{size}", sets, kit.left())
            timed = run["steps"][a.warm_up:]
            seconds = sum(s["step_s"] for s in timed)
            return {"step_ms": [s["step_s"] * 1e3 for s in timed], "losses": [s["loss"] for s in run["steps"]], "lrs": [s["lr"] for s in run["steps"]],
                    "grad_norms": [s["grad_norm"] for s in run["steps"]], "run_seconds": run["seconds"],
                    "stall_share": sum(s["stall_ms"] for s in timed) / seconds / 1e3}
        for side in [s for s in ("ours", "fla", "ours") if s in a.sides]:
            with card.Watch(a.gpu) as watch:
                if side == "ours":
                    run = kit.ours("throughput", ours)
                    lrs = run.get("lrs", lrs)
                else:
                    run = kit.fla("throughput", {"kind": "throughput", "weights": weights, "batches": batches, "warm_up": a.warm_up,
                                                 "lrs": lrs})
            part["runs"].append({"side": side, **run, "card": watch.readings()})
            kit.save("throughput", section)


def larger(source, target, seed=5):
    """Weights whose every path carries signal: matrices of the layers doubled, convolutions of deviation 0.4, norms of 0.2 around 1."""
    import torch
    from safetensors.torch import load_file, save_file
    if os.path.exists(target):
        return target
    generator, weights = torch.Generator().manual_seed(seed), load_file(source)
    for name in sorted(weights):
        w = weights[name]
        if "norm" in name:
            weights[name] = w + torch.randn(w.shape, generator=generator) * 0.2
        elif "conv1d" in name:
            weights[name] = torch.randn(w.shape, generator=generator) * 0.4
        elif w.dim() == 2 and "layers" in name:
            weights[name] = w * 2
    save_file(weights, target, metadata={"format": "pt"})
    return target


def accuracy(kit):
    import numpy as np
    a, (batch, length) = kit.a, kit.a.accuracy_shape
    weights, cases = kit.weights(), []
    if a.tokens:
        tokens = files.read_tokens(a.tokens, a.seq_length)[:batch * a.accuracy_batches, :length]
    else:
        shape = batch * a.accuracy_batches, length
        tokens = np.random.default_rng(6).integers(0, kit.model["vocab_size"], shape, dtype=np.int32)
    if tokens.shape != (batch * a.accuracy_batches, length):
        raise Failed(f"{a.tokens}: no {batch * a.accuracy_batches} rows of {length} tokens")
    for name, path in (("initial weights", weights), ("larger weights", larger(weights, f"{kit.work}/larger.safetensors"))):
        for i in range(a.accuracy_batches):
            rows = tokens[i * batch:(i + 1) * batch]
            case = {"name": name, "batch": i, "weights": path, "tokens": rows.tolist()}
            if "ours" in a.sides:
                run = f"{name.split()[0]}-{i}"
                ours = kit.ours("accuracy", lambda p=path, n=run, r=rows: kit.trainer.gradients(n, p, r, kit.left()))
                if "error" not in ours:
                    case["ours"] = ours
            cases.append(case)
    out = kit.fla("accuracy", {"kind": "gradients", "fla": "fla" in a.sides, "cases": cases})
    kit.save("accuracy", {"cases": out.pop("cases", []), **out})


def curve(kit):
    a, section, weights = kit.a, {"orders": []}, kit.weights()
    if not a.tokens:
        raise Failed("--tokens names the rows to train on: little-endian int32, whole rows of --seq-length")
    tokens, size = files.read_tokens(a.tokens, a.seq_length), 8
    data = f"{kit.work}/curve.arrow"
    files.write_rows(data, tokens)
    recorded = read_json(a.recorded) if a.recorded else {}
    for path in a.order or [None]:
        name = os.path.basename(path).rsplit(".", 1)[0].removeprefix("order_") if path else "sequential"
        order = read_json(path) if path else list(range(len(tokens)))
        steps = min(a.curve_steps, len(order) // size)
        lrs = [files.learning_rate(i, CURVE["lr"], CURVE["warm_up"], CURVE["total"], CURVE["least"]) for i in range(steps)]
        files.write_text(f"{kit.work}/{name}.txt", "".join(f"{i}\n" for i in order))
        part = {"name": name, "micro_batch": size, "seq_length": a.seq_length, "lrs": lrs,
                "recorded": [s["loss"] for s in recorded.get("runs", {}).get(name, [])][:steps] or None,
                "reference_first_loss": recorded.get("reference_fp32_cpu_with_initial_weights", {}).get("step_0") if name == "sequential" else None}
        section["orders"].append(part)
        sets = {"data.cache_dir": data, "data.seq_length": a.seq_length, "order.name": "file", "order.path": f"{kit.work}/{name}.txt",
                "order.rows": "any", "batch.world_size": 1, "batch.micro_batch_size": size, "batch.global_batch_size": size,
                "batch.device_micro_batch_size": size, "init.from": "checkpoint", "init.path": weights, "train.steps": steps,
                "optimizer.lr": CURVE["lr"], "schedule.name": "cosine_with_min_lr", "schedule.warmup_steps": CURVE["warm_up"],
                "schedule.min_lr": CURVE["least"], "schedule.total_steps": CURVE["total"]}
        if "ours" in a.sides:
            def ours(name=name, sets=sets):
                run = kit.trainer.train(f"curve-{name}", sets, kit.left())
                return {key: [s[of] for s in run["steps"]] for key, of in (("losses", "loss"), ("grad_norms", "grad_norm"), ("lrs", "lr"))}
            part["ours"] = kit.ours("curve", ours)
            kit.save("curve", section)
        if "fla" in a.sides:
            part["fla"] = kit.fla("curve", {"kind": "curve", "weights": weights, "tokens": os.path.abspath(a.tokens), "order": order,
                                            "micro_batch": size, "lrs": lrs})
            kit.save("curve", section)


def kernels(kit):
    a, weights = kit.a, kit.weights()
    size = a.micro_batch[0]
    section = {"layers": kit.model["num_hidden_layers"], "micro_batch": size}
    if "fla" in a.sides:
        section["fla"] = kit.fla("kernels", {"kind": "kernels", "weights": weights, "micro_batch": size})
        kit.save("kernels", section)
    if "ours" in a.sides:
        sets = {"data.cache_dir": ".", "data.seq_length": a.seq_length, "batch.device_micro_batch_size": size, "init.from": "checkpoint",
                "init.path": weights}
        section["ours"] = kit.ours("kernels", lambda: {"profile": kit.trainer.profile(sets, kit.left())})
        kit.save("kernels", section)


RUN = {"warm": warm, "throughput": throughput, "accuracy": accuracy, "curve": curve, "kernels": kernels}


def failed(value):
    """Whether a part of the results says `error`."""
    if isinstance(value, dict):
        return "error" in value or any(failed(v) for v in value.values())
    return isinstance(value, list) and any(failed(v) for v in value)


def names(allowed):
    def parse(text):
        out = [s for s in text.split(",") if s]
        unknown = [s for s in out if s not in allowed]
        if unknown or not out:
            raise argparse.ArgumentTypeError(f"'{','.join(unknown) or text}'; allowed: {','.join(allowed)}")
        return out
    return parse


def budget(text):
    """Seconds for every section, or section=seconds,… for some."""
    out = dict(DEFAULT_BUDGET)
    try:
        for part in text.split(","):
            name, _, seconds = part.rpartition("=")
            if name and name not in out:
                raise ValueError
            out.update({n: float(seconds) for n in ([name] if name else out)})
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}'; a number of seconds, or like throughput=200,curve=150") from None
    return out


def shape(text):
    try:
        batch, length = (int(x) for x in text.split("x"))
        assert batch > 0 and length > 1
    except (ValueError, AssertionError):
        raise argparse.ArgumentTypeError(f"'{text}'; rows x tokens, like 2x256") from None
    return batch, length


def arguments():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--from", dest="saved", metavar="JSON", help="print the tables of a results.json again and measure nothing")
    ap.add_argument("--trainer", default="trainer", help="our program (default: found on PATH)")
    ap.add_argument("--config", default=os.path.join(HERE, "../../configs/gdn-300m.yaml"),
                    help="run file of the model (default: configs/gdn-300m.yaml)")
    ap.add_argument("--out", default="parity", help="folder of the results (default: parity)")
    ap.add_argument("--work", help="folder of weights, caches and runs, about 15 GB (default: OUT/work)")
    ap.add_argument("--sections", type=names(list(RUN)), default=list(RUN), help="comma-separated (default: all)")
    ap.add_argument("--sides", type=names(["fla", "ours"]), default=["fla", "ours"], help="fla, ours or both (default: both)")
    ap.add_argument("--budget", type=budget, default=dict(DEFAULT_BUDGET), help="seconds for each section, or like throughput=200,curve=150")
    ap.add_argument("--device", default="cuda", help="our device (default: cuda)")
    ap.add_argument("--gpu", type=int, default=0, help="the card that nvidia-smi is asked about (default: 0)")
    ap.add_argument("--seq-length", type=int, default=2048)
    ap.add_argument("--micro-batch", type=int, nargs="+", default=[32], help="of throughput, the first one of kernels too (default: 32)")
    ap.add_argument("--warm-up", type=int, default=3, help="steps before the timed ones (default: 3)")
    ap.add_argument("--steps", type=int, default=10, help="timed steps of a run (default: 10)")
    ap.add_argument("--cache-dir", help="dataset for throughput (default: one of random tokens is written)")
    ap.add_argument("--accuracy-shape", type=shape, default=(2, 256), help="rows x tokens (default: 2x256)")
    ap.add_argument("--accuracy-batches", type=int, default=1,
                    help="batches of such rows, one after another: the errors of one batch are one draw (default: 1)")
    ap.add_argument("--tokens", help="rows for curve and accuracy: little-endian int32, whole rows of --seq-length")
    ap.add_argument("--order", nargs="+", help="orders for curve: JSON lists of rows (default: as they lie in the file)")
    ap.add_argument("--recorded", help="losses of an earlier FLA run: JSON with runs.ORDER[].loss")
    ap.add_argument("--curve-steps", type=int, default=200)
    a = ap.parse_args()
    if a.steps < 1 or a.warm_up < 0 or a.curve_steps < 1 or a.seq_length < 2 or min(a.micro_batch) < 1:
        ap.error("steps, sizes and lengths are 1 or more")
    if "throughput" in a.sections and any(size % 8 for size in a.micro_batch):
        ap.error(f"--micro-batch {a.micro_batch}: order fla is dealt to 8 ranks here; allowed: multiples of 8")
    return a


def main():
    a = arguments()
    if a.saved:
        try:
            results = read_json(a.saved)
            print(report.text(results), end="")
        except (OSError, ValueError, KeyError) as e:
            print(f"{a.saved}: not the results of this script: {e!r}", file=sys.stderr)
            return 2
        return int(any(not r["holds"] for r in report.verdicts_of(results)))
    try:
        kit = Kit(a)
    except (Failed, OSError) as e:
        print(f"parity_fla: {e}", file=sys.stderr)
        return 2
    for name in [n for n in RUN if n in a.sections]:
        start, kit.until = time.time(), time.time() + a.budget[name]
        try:
            RUN[name](kit)
        except Failed as e:
            kit.results["errors"][name] = str(e)
            say(f"{name}: {e}")
        if name in kit.results["sections"]:
            kit.results["sections"][name]["wall_seconds"] = time.time() - start
            print(report.section_text(name, kit.results), flush=True)
        files.write_json(f"{kit.out}/results.json", kit.results)
        files.write_text(f"{kit.out}/results.txt", report.text(kit.results))
    print(f"results: {kit.out}/results.json, {kit.out}/results.txt")
    return 2 if kit.results["errors"] or failed(kit.results["sections"]) else int(any(not r["holds"] for r in report.verdicts_of(kit.results)))


if __name__ == "__main__":
    sys.exit(main())
