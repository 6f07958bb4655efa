"""The tables, from the results alone: what parity_fla.py prints and what `--from` prints again."""

import math
import statistics

SIDES = {"ours": "ours", "fla": "FLA"}

# What ours has to hold with gdn-300m on an H200, beside FLA in the same run.
SPEED = 1.35  # times FLA's tokens per second at micro-batch 32
STEP_MS_AT_8 = 62.0
MEMORY_GIB_AT_32 = 33.0
ACCURACY = 1.05  # times FLA's gradient error
FIRST_STEP, FIRST_20, MOVING_MEAN, LAST_50 = 3e-5, 1e-4, 1e-2, 3e-3
HEAD_MS, RULE_MS = 92.0, 0.9

# Our operators' groups under the names of FLA's; the first that an operator's name contains wins.
OPERATORS = (
    ("LinearCrossEntropy", "cross entropy"), ("SwiGlu", "SwiGLU"), ("ShortConv", "short convolution"), ("GatedRmsNorm", "gated norm"),
    ("AddRmsNorm", "norms"), ("DeltaRule", "delta rule"), ("Gates", "delta rule"), ("AdamW", "clip and AdamW"),
    ("GlobalNorm", "clip and AdamW"), ("Embedding", "embedding"), ("AddInto", "adds"), ("Zero", "other"), ("Linear", "products"),
)


class Verdicts:
    """Bounds with what came out."""

    def __init__(self):
        self.rows = []

    def most(self, what, value, bound, digits="{:.3g}"):
        return self._add(what, value, bound, value <= bound, "at most", digits)

    def least(self, what, value, bound, digits="{:.3g}"):
        return self._add(what, value, bound, value >= bound, "at least", digits)

    def _add(self, what, value, bound, holds, word, digits):
        # A NaN holds nothing.
        self.rows.append({"what": what, "value": value, "bound": bound, "holds": bool(holds)})
        return f"{what}: {digits.format(value)}, wanted {word} {digits.format(bound)}: {'holds' if holds else 'MISSED'}"


def table(head, rows):
    """Columns as wide as their widest cell; the first one to the left."""
    rows = [[str(c) for c in row] for row in [head, *rows]]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    return ["  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))).rstrip() for row in rows]


def number(value, digits="{:.1f}"):
    return "-" if value is None else digits.format(value)


def throughput(section, verdicts):
    out = []
    for part in section["micro_batches"]:
        size, tokens = part["micro_batch"], part["micro_batch"] * part["seq_length"]
        rows, pooled = [], {side: [] for side in SIDES}
        for run in part["runs"]:
            side, ms, card = SIDES[run["side"]], run.get("step_ms"), run.get("card") or {}
            if not ms:
                rows.append([side, run.get("out_of_memory") or run.get("error", "nothing measured").splitlines()[0][:60], *["-"] * 8])
                continue
            pooled[run["side"]] += ms
            median = statistics.median(ms)
            heat = card.get("celsius")
            rows.append([side, f"{median:.1f}", f"{min(ms):.1f}..{max(ms):.1f}", f"{tokens / median:.1f} k",
                         number(run.get("allocated_gib")), number(run.get("reserved_gib")), number(card.get("peak_gib")),
                         f"{heat[0]:.0f}..{heat[1]:.0f}" if heat else "-", number(card.get("watts"), "{:.0f}"),
                         number(run.get("stall_share"), "{:.3%}")])
        out += [f"micro-batch {size} x {part['seq_length']}, whole steps, in the order they ran"]
        out += table(["side", "step ms", "least..most", "tokens/s", "allocated GiB", "reserved GiB", "card GiB", "°C", "W", "loader stall"], rows)
        if pooled["ours"] and pooled["fla"]:
            ratio = statistics.median(pooled["fla"]) / statistics.median(pooled["ours"])
            out.append(verdicts.least(f"speed at {size}, ours over FLA", ratio, SPEED) if size == 32
                       else f"speed at {size}, ours over FLA: {ratio:.3f}")
        if pooled["ours"]:
            if size == 8:
                out.append(verdicts.most("step at 8, ms", statistics.median(pooled["ours"]), STEP_MS_AT_8))
            peaks = [r["card"]["peak_gib"] for r in part["runs"] if r["side"] == "ours" and (r.get("card") or {}).get("peak_gib")]
            if size == 32 and peaks:
                out.append(verdicts.most("memory at 32 on the card, GiB", max(peaks), MEMORY_GIB_AT_32))
        same = [r["losses"] for r in part["runs"] if r["side"] == "ours" and r.get("losses")][:1] + [
            r["losses"] for r in part["runs"] if r["side"] == "fla" and r.get("losses")][:1]
        if len(same) == 2:
            gap = max(abs(a - b) / b for a, b in zip(*same))
            out.append(f"losses of the same {min(map(len, same))} steps: largest relative difference {gap:.1e}")
        out.append("")
    return out


def together(cases, side):
    """Root mean squares of a side's errors over cases of the same weights; None where one of them lacks the side."""
    parts = [c["sides"].get(side) for c in cases]
    if not parts or any(p is None for p in parts):
        return None

    def rms(get):
        return math.sqrt(sum(get(p) ** 2 for p in parts) / len(parts))
    return {"all": rms(lambda p: p["all"]), "loss_error": rms(lambda p: p["loss_error"]),
            "kinds": {k: rms(lambda p, k=k: p["kinds"][k]) for k in parts[0]["kinds"]},
            "parameters": {n: rms(lambda p, n=n: p["parameters"][n]) for n in parts[0]["parameters"]}}


def accuracy(section, verdicts):
    out = []
    names = list(dict.fromkeys(c["name"] for c in section["cases"]))
    for name in names:
        cases = [c for c in section["cases"] if c["name"] == name]
        for c in cases if len(cases) > 1 else []:
            mine, theirs = c["sides"].get("ours"), c["sides"].get("fla")
            if mine and theirs:
                kinds = {k: mine["kinds"][k] / theirs["kinds"][k] for k in mine["kinds"]}
                worst = max(kinds, key=kinds.get)
                out.append(f"{name}, batch {c['batch']}: all parameters {mine['all']:.3e}, FLA {theirs['all']:.3e}, "
                           f"{mine['all'] / theirs['all']:.3f}; worst kind {worst} {kinds[worst]:.3f}")
        ours, fla = together(cases, "ours"), together(cases, "fla")
        b, t = cases[0]["shape"]
        losses = ", ".join(f"{c['reference_loss']:.7f}" for c in cases)
        pooled = f", root mean square over {len(cases)} batches" if len(cases) > 1 else ""
        out.append(f"{name}, {b} x {t}: float64 loss {losses}; gradients ||x - ref|| / ||ref||{pooled}")

        def row(name, get):
            mine, theirs = get(ours) if ours else None, get(fla) if fla else None
            ratio = mine / theirs if mine is not None and theirs else None
            return [name, number(mine, "{:.3e}"), number(theirs, "{:.3e}"), number(ratio, "{:.3f}"),
                    "over" if ratio is not None and ratio > ACCURACY else ""], ratio
        whole, ratio = row("all parameters", lambda s: s["all"])
        kinds = [row(k, lambda s, k=k: s["kinds"][k]) for k in (ours or fla or {"kinds": {}})["kinds"]]
        head = ["gradients", "ours", "FLA", "ratio", ""]
        out += table(head, [row("loss", lambda s: s["loss_error"])[0][:4] + [""], whole, *[r for r, _ in kinds]])
        if ratio is not None:
            out.append(verdicts.most(f"{name}: all parameters, ours over FLA", ratio, ACCURACY))
            out.append(verdicts.most(f"{name}: worst kind, ours over FLA", max(r for _, r in kinds), ACCURACY))
            single = [row(n, lambda s, n=n: s["parameters"][n]) for n in ours["parameters"]]
            over = sorted((r for r in single if r[1] > ACCURACY), key=lambda r: -r[1])
            middle = statistics.median(r for _, r in single)
            out.append(f"single parameters: median ratio {middle:.3f}; above {ACCURACY}: {len(over)} of {len(single)}"
                       + (", the ten worst:" if over else ""))
            if over:
                out += table(head, [r for r, _ in over[:10]])
        out.append("")
    if section.get("error"):
        out += [section["error"], ""]
    return out


def means(values, width=20):
    return [sum(values[i:i + width]) / width for i in range(len(values) - width + 1)]


def distances(a, b):
    """How two loss curves differ: steps 0-19, moving mean of 20, last 50 (None where the curves are too short)."""
    n = min(len(a), len(b))
    a, b = a[:n], b[:n]
    relative = [abs(x - y) / abs(y) for x, y in zip(a, b)]
    return {"steps": n, "first_step": relative[0], "first_20": max(relative[:20]),
            "moving_mean": max(abs(x - y) / abs(y) for x, y in zip(means(a), means(b))) if n >= 20 else None,
            "last_50": sum(relative[-50:]) / 50 if n >= 100 else None}


def curve(section, verdicts):
    out = []
    for part in section["orders"]:
        curves = {SIDES[side]: part[side]["losses"] for side in SIDES if part.get(side, {}).get("losses")}
        if part.get("recorded"):
            curves["recorded FLA"] = part["recorded"]
        out.append(f"order {part['name']}, {part['micro_batch']} x {part['seq_length']}")
        last = max((len(c) for c in curves.values()), default=0) - 1
        at = sorted({i for i in (0, 1, 2, 5, 10, 20, 50, 60, 100, 150) if i < last} | ({last} if last >= 0 else set()))
        out += table(["step", *curves], [[i, *[number(c[i] if i < len(c) else None, "{:.5f}") for c in curves.values()]] for i in at])
        rows = []
        for a, b in (("ours", "FLA"), ("ours", "recorded FLA"), ("FLA", "recorded FLA")):
            if a in curves and b in curves:
                d = distances(curves[a], curves[b])
                rows.append([f"{a} against {b}", *[number(d[k], "{:.2e}") for k in ("first_step", "first_20", "moving_mean", "last_50")]])
        rows.append(["wanted of ours", f"{FIRST_STEP:.0e} of float32", f"{FIRST_20:.0e}", f"{MOVING_MEAN:.0e}", f"{LAST_50:.0e}"])
        out += table(["relative difference", "step 0", "steps 0-19, most", "20-step mean, most", "last 50, mean"], rows)
        if "ours" in curves and part.get("reference_first_loss"):
            want = part["reference_first_loss"]
            out.append(verdicts.most(f"{part['name']}: step 0 against float32 {want:.6f}", abs(curves["ours"][0] - want) / want, FIRST_STEP))
        against = "FLA" if "FLA" in curves else "recorded FLA"
        if "ours" in curves and against in curves:
            d = distances(curves["ours"], curves[against])
            for key, bound, what in (("first_20", FIRST_20, "steps 0-19"), ("moving_mean", MOVING_MEAN, "20-step mean"),
                                     ("last_50", LAST_50, "last 50")):
                if d[key] is not None:
                    out.append(verdicts.most(f"{part['name']}: {what} against {against}", d[key], bound))
        for side in SIDES:
            if part.get(side, {}).get("error"):
                out.append(f"{SIDES[side]}: {part[side]['error']}")
        out.append("")
    return out


def our_groups(profile):
    """Milliseconds of a step by group, from the operators of `trainer profile`."""
    groups = {}
    for line in profile["operators"]:
        name = next((g for word, g in OPERATORS if word in line["operator"]), "other")
        groups[name] = groups.get(name, 0.0) + line["ms"]
    return groups


def operator_ms(profile, word):
    """Time and number of operators whose name holds `word`."""
    lines = [line for line in profile["operators"] if word in line["operator"]]
    return sum(line["ms"] for line in lines), sum(line["calls"] for line in lines)


def kernels(section, verdicts):
    ours, fla, out = section.get("ours") or {}, section.get("fla") or {}, []
    profile = ours.get("profile")
    head = rule = gates = None
    if profile:
        head = operator_ms(profile, "LinearCrossEntropy")[0]
        rule = operator_ms(profile, "DeltaRule")[0] / section["layers"]
        gates = rule + operator_ms(profile, "Gates")[0] / section["layers"]
        memory = [b / 2**30 for b in profile["memory"]]
        out.append(f"ours: {profile['device']}; weights and optimizer {memory[0]:.2f} GiB, step {memory[1]:.2f} GiB; "
                   f"step {profile['step_ms'][0]:.1f} ms; ceilings {profile['memory_ceiling']:.2f} TB/s, {profile['product_ceiling']:.0f} TFLOP/s")
    theirs_head, theirs_rule = fla.get("linear_cross_entropy_ms"), fla.get("delta_rule_layer_ms")

    def line(name, mine, theirs):
        ratio = theirs / mine if mine and theirs else None
        return [name, number(mine, "{:.3f}"), number(theirs, "{:.3f}"), number(ratio, "{:.2f}")]
    out += table(["ms", "ours", "FLA", "FLA / ours"], [
        line("linear + cross entropy, forward + backward", head, theirs_head),
        line("delta rule, forward + backward, a layer, device time", rule, None),
        line("  with gates (ours), with gates and l2 norms (FLA)", gates, theirs_rule),
        line("  FLA's with its launches", None, fla.get("delta_rule_layer_with_launches_ms"))])
    if head:
        out.append(verdicts.most("linear + cross entropy, ms", head, min(HEAD_MS, theirs_head or HEAD_MS)))
        out.append(verdicts.most("delta rule a layer, ms", rule, RULE_MS))
    mine, theirs = our_groups(profile) if profile else {}, fla.get("groups_ms") or {}
    names = sorted({*mine, *theirs}, key=lambda n: -max(mine.get(n, 0), theirs.get(n, 0)))
    both = ("products", "cross entropy")
    rows = [line(n, mine.get(n), theirs.get(n)) for n in names]
    if mine or theirs:
        rows.append(line("products + cross entropy", *[sum(g.get(n, 0) for n in both) if g else None for g in (mine, theirs)]))
        rows.append(line("sum", *[sum(g.values()) if g else None for g in (mine, theirs)]))
        out += ["", "a step by group (our cross entropy holds the head's products; FLA's l2 norms have a row of their own, ours are in the convolution)"]
        out += table(["ms", "ours", "FLA", "FLA / ours"], rows)
    for name, part in (("ours", ours), ("FLA", fla)):
        if part.get("error"):
            out.append(f"{name}: {part['error']}")
    return [*out, ""]


def warm(section, _):
    good, jobs = section["good"], section["jobs"]
    return [f"{good} of {jobs} processes compiled their share of FLA's kernels, {section['seconds']:.0f} s", *section["notes"], ""]


SECTIONS = {"warm": warm, "throughput": throughput, "accuracy": accuracy, "curve": curve, "kernels": kernels}


def section_text(name, results):
    """One section's text."""
    verdicts = Verdicts()
    return "\n".join([f"== {name}", *SECTIONS[name](results["sections"][name], verdicts)])


def verdicts_of(results):
    """Every bound of the sections that ran."""
    verdicts = Verdicts()
    for name in SECTIONS:
        if name in results["sections"]:
            SECTIONS[name](results["sections"][name], verdicts)
    return verdicts.rows


def text(results):
    """Everything, the short list of bounds last."""
    out = ["FLA and Ceteris side by side: " + ", ".join(f"{k} {v}" for k, v in results.get("versions", {}).items()), ""]
    out += [section_text(name, results) for name in SECTIONS if name in results["sections"]]
    out += [f"section {name} did not finish: {why}" for name, why in results.get("errors", {}).items()]
    rows = verdicts_of(results)
    if rows:
        out += ["== bounds", *table(["", "value", "bound", ""], [
            [r["what"], f"{r['value']:.4g}", f"{r['bound']:.4g}", "holds" if r["holds"] else "MISSED"] for r in rows])]
    return "\n".join(out) + "\n"
