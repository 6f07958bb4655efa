"""Writes tests/data/logs/port_report.{fla,megatron}.log: two logs that bear a published table of losses.

The table is that of a port of a 300M gated delta network from flash-linear-attention to Megatron-LM
(github.com/AMD-AGI/Primus, GDN_FLA_PARITY.md): losses at ten iterations, the mean of iterations 3700 to 4700, step times and
rates. The losses between them are made up: on a smooth line, with a wave of 0.2 %. FLA's log sums the losses of 8 ranks.
"""

import math
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "data/logs"
# Losses with digits such that the printed ones and the differences come out as published.
FLA = {1: 11.9654, 100: 7.4712, 500: 4.6249, 1000: 4.0012, 2000: 3.6067, 2100: 3.5999, 3000: 3.4480, 4000: 3.3963,
       4500: 3.3733, 4700: 3.3511}
MEGATRON = {1: 11.9652, 100: 9.6011, 500: 4.7277, 1000: 4.0497, 2000: 3.6144, 2100: 3.5920, 3000: 3.4601, 4000: 3.3898,
            4500: 3.3730, 4700: 3.3662}
STEPS = [1, *range(100, 4701, 100)]
TOKENS_PER_STEP = 1024 * 2048


def between(anchors, wave):
    keys = sorted(anchors)
    losses = {}
    for step in STEPS:
        if step in anchors:
            losses[step] = anchors[step]
            continue
        low = max(k for k in keys if k < step)
        high = min(k for k in keys if k > step)
        share = (math.log(step) - math.log(low)) / (math.log(high) - math.log(low))
        loss = math.exp((1 - share) * math.log(anchors[low]) + share * math.log(anchors[high]))
        losses[step] = loss * (1 + wave * math.sin(step))
    return losses


def with_mean(losses, anchors, mean):
    """Shifts the made-up losses of iterations 3700 to 4700 so that the mean is right."""
    late = [step for step in STEPS if 3700 <= step <= 4700]
    free = [step for step in late if step not in anchors]
    shift = (mean * len(late) - sum(losses[step] for step in late)) / len(free)
    for step in free:
        losses[step] += shift
    return losses


def learning_rate(step):
    """Warm-up to step 1000, then a cosine down to a tenth."""
    if step <= 1000:
        return 3e-4 * step / 1000
    return 3e-5 + 0.5 * (3e-4 - 3e-5) * (1 + math.cos(math.pi * (step - 1000) / 3768))


def bar(step, total=4768):
    seconds = int(step * 6840 / total)
    left = 6840 - seconds
    clock = lambda s: f"{s // 3600}:{s // 60 % 60:02}:{s % 60:02}" if s >= 3600 else f"{s // 60:02}:{s % 60:02}"
    share = step / total
    return f"\r{100 * share:3.0f}%|{'█' * int(share * 10):<10}| {step}/{total} [{clock(seconds)}<{clock(left)},  1.43s/it]"


def fla(losses):
    out = ["[2026-05-12 09:00:01] Loading the dataset\n", "Map: 100%|██████████| 1024/1024 [00:01<00:00, 900.00 examples/s]\n"]
    for step in STEPS:
        out.append(bar(step - 1))
        record = {
            "loss": round(8 * losses[step], 4),
            "grad_norm": round(8 / (1 + step / 200) + 0.3, 4),
            "learning_rate": round(learning_rate(step), 10),
            "epoch": round(step / 4768, 2),
            "num_tokens": step * TOKENS_PER_STEP,
            "throughput": round(182729.3 if step > 1 else 21044.8, 1),
        }
        out.append(f"\r{' ' * 60}\r{record}\n{bar(step)}")
    out.append(bar(4768))
    out.append(
        "\r{'train_runtime': 6840.0, 'train_samples_per_second': 713.8, 'train_steps_per_second': 0.697, "
        f"'train_loss': 29.8, 'epoch': 1.0}}\n"
    )
    return "".join(out)


def megatron(losses):
    dump = {"micro_batch_size": 128, "seq_length": 2048, "world_size": 8}
    out = ["------------------------ arguments ------------------------\n"]
    out += [f"  {name} {'.' * (47 - len(name))} {value}\n" for name, value in dump.items()]
    out.append("-------------------- end of arguments ---------------------\n")
    for step in STEPS:
        ms = 9876.5 if step == 1 else 1431.6
        rate = 26542.9 if step == 1 else 183213.0
        tflops = 93.1 if step == 1 else 642.0
        out.append(
            f"\x1b[32m[20260512 10:00:00][rank-7/8][INFO ]\x1b[0m :  iteration {step:8d}/    4768 | "
            f"consumed samples: {step * 1024:12d} | elapsed time per iteration (ms): {ms}/{ms} | "
            f"throughput per GPU (TFLOP/s/GPU): {tflops}/{tflops} | tokens per GPU (tokens/s/GPU): {rate}/{rate} | "
            f"learning rate: {learning_rate(step):.6E} | global batch size:  1024 | lm loss: {losses[step]:.6E} | "
            f"loss scale: 1.0 | grad norm: {8 / (1 + step / 220) + 0.29:.3f} | number of skipped iterations:   0 | "
            "number of nan iterations:   0 |\n"
        )
        if step % 1000 == 0:
            out.append(f" validation loss at iteration {step} | lm loss value: 3.9E+00 | lm loss PPL: 4.9E+01 |\n")
            out.append(f"saving checkpoint at iteration {step:8d} to checkpoints\n")
    return "".join(out)


FOLDER.mkdir(parents=True, exist_ok=True)
(FOLDER / "port_report.fla.log").write_text(fla(with_mean(between(FLA, 0.001), FLA, 3.3795)), newline="")
(FOLDER / "port_report.megatron.log").write_text(megatron(with_mean(between(MEGATRON, -0.001), MEGATRON, 3.3829)))
