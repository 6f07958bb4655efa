"""What nvidia-smi says of a card while something runs on it."""

import statistics
import subprocess

FIELDS = ("memory.used", "temperature.gpu", "power.draw", "clocks.sm")


class Watch:
    """Samples the card ten times a second inside a `with`; `readings()` sums up: GiB above what was used before, °C, W, MHz (medians
    over the busy half of the samples, least and most temperature). Nothing where there is no nvidia-smi."""

    def __init__(self, index=0):
        self.command = ["nvidia-smi", f"--id={index}", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]
        self.before = self.process = None
        self.samples = []

    def __enter__(self):
        try:
            text = subprocess.run(self.command, capture_output=True, text=True, timeout=20, check=True).stdout
            self.before = parse(text)[-1]
            self.process = subprocess.Popen([*self.command, "-lms", "100"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        except (OSError, subprocess.SubprocessError, IndexError):
            pass
        return self

    def __exit__(self, *_):
        if self.process:
            self.process.terminate()
            self.samples = parse(self.process.communicate()[0])

    def readings(self):
        if not self.samples:
            return {}
        memory, heat, power, clock = zip(*self.samples)
        busy = sorted(zip(power, clock))[len(power) // 2:]
        return {"peak_gib": (max(memory) - self.before[0]) / 1024, "celsius": [min(heat), max(heat)],
                "watts": statistics.median(p for p, _ in busy), "mhz": statistics.median(c for _, c in busy)}


def parse(text):
    """Rows of numbers; lines that are not (a field the card has not, a line cut off) are left out."""
    out = []
    for line in text.splitlines():
        try:
            row = [float(x) for x in line.split(",")]
        except ValueError:
            continue
        if len(row) == len(FIELDS):
            out.append(row)
    return out
