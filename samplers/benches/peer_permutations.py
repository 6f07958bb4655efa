"""Times torch.randperm and numpy's Generator.permutation, one thread, and says what they gave.

    python samplers/benches/peer_permutations.py N REPEATS

Prints one JSON object a line: {"peer", "version", "seconds": [...], "sha256_u32"}. The benchmark
`cargo bench -p ceteris-samplers` runs it and checks that both sides made the same permutation.
Packages: pip install -r samplers/benches/peer_requirements.txt
"""
import hashlib
import json
import sys
import time


def digest(values):
    """SHA-256 over the entries as little-endian u32."""
    import numpy as np

    return hashlib.sha256(np.ascontiguousarray(values, dtype="<u4").data).hexdigest()


def measure(peer, version, make, repeats, to_numpy):
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        values = make()
        seconds.append(time.perf_counter() - start)
        last = digest(to_numpy(values))
        del values
    print(json.dumps({"peer": peer, "version": version, "seconds": seconds, "sha256_u32": last}), flush=True)


def main():
    n, repeats = int(sys.argv[1]), int(sys.argv[2])
    import numpy as np

    measure("numpy.random.default_rng(42).permutation(n)", np.__version__,
            lambda: np.random.default_rng(42).permutation(n), repeats, lambda x: x)
    import torch

    torch.set_num_threads(1)
    measure("torch.randperm(n, generator=manual_seed(42))", torch.__version__,
            lambda: torch.randperm(n, generator=torch.Generator().manual_seed(42)), repeats, lambda x: x.numpy())


main()
