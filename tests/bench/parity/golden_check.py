"""Compares the float64 reference with values recorded from flash-linear-attention's module code; CPU, seconds.

    cd tests/bench && python -m parity.golden_check ../golden/model/gdn_t70 [FOLDER ...]

Exit code 0: loss within 1e-12 relative, every gradient's norm and first values within 1e-9. 1: not.
"""

import json
import os
import sys

import torch
from safetensors.torch import load_file

from .reference import loss_and_gradients


def check(folder):
    """The largest relative differences: loss, gradients."""
    def read(name):
        with open(os.path.join(folder, name)) as f:
            return json.load(f)
    expected, tokens = read("expected.json"), read("tokens.json")
    weights = load_file(os.path.join(folder, "init.safetensors"))
    value, gradients = loss_and_gradients(
        read("config.json"), weights, torch.tensor(tokens["tokens"]), torch.tensor(tokens["labels"]), "cpu")
    if set(gradients) != set(expected["grads"]):
        sys.exit(f"{folder}: gradients of other parameters: {sorted(set(gradients) ^ set(expected['grads']))}")
    worst = 0.0
    for name, want in expected["grads"].items():
        got, norm = gradients[name], want["norm"]
        first = torch.tensor(want["first"], dtype=torch.float64)
        worst = max(worst, abs(got.norm().item() - norm) / norm, ((got.flatten()[:len(first)] - first).norm() / norm).item())
    return abs(value - expected["loss"]) / expected["loss"], worst


def main():
    bad = False
    for folder in sys.argv[1:] or [os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../golden/model/gdn_t70")]:
        of_loss, of_gradients = check(folder)
        ok = of_loss <= 1e-12 and of_gradients <= 1e-9
        bad |= not ok
        print(f"{os.path.basename(folder)}: loss {of_loss:.1e}, gradients {of_gradients:.1e}, {'ok' if ok else 'DIFFERS'}")
    sys.exit(int(bad))


if __name__ == "__main__":
    main()
