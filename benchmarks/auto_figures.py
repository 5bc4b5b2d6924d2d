"""The figures of `auto.py`: gains with intervals, outcomes, and why the best mixture was slower. Gains over 1: auto is faster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any, TypeAlias

from xrt.measure.statistics import MIN_DIFFERENCE, RatioInterval, compute_round_ratio

Record: TypeAlias = Mapping[str, Any]

SYNTHETIC_GRAPHS = ("chain", "conv_chain", "conv_tail", "gather_softmax", "softmax_chain")
"""Graphs written to show gains and costs of mixtures; all others are real networks."""
MAX_SLOWDOWN = 10.0
"""An engine that is slower than the fastest in the search by this factor is not compared."""
ALWAYS_COMPARED = "ort"
"""The engine that is always compared, even if it is far slower."""


def judge(gain: RatioInterval) -> str:
    """Return the outcome of a gain: a win or a loss if the interval excludes 1 and the median differs by more than the noise."""
    if gain.low > 1 and gain.median >= 1 + MIN_DIFFERENCE:
        return "win"
    return "loss" if gain.high < 1 and gain.median <= 1 - MIN_DIFFERENCE else "tie"


def make_row(record: Record) -> dict[str, Any]:
    """The figures of one model."""
    tuned, compared = record["tuned"], record["compared"]
    row = {"model": record["model"], "built": record["model"].partition("{")[0] in SYNTHETIC_GRAPHS}
    search = {name: tuned[name] for name in ("spent", "wall", "budget", "measurements") if name in tuned}
    row |= {"search": search, "nearest": find_nearest_mixture(tuned.get("contenders", ()))}
    row |= {"left": {**record.get("slow", {}), **compared.get("left", {})}}
    rounds = compared.get("rounds", {})
    singles = [name for name in rounds if name != "auto"]
    if "auto" not in rounds or not singles:
        return {**row, "verdict": "none", "why": explain_missing(record)}
    best = min(singles, key=lambda name: median(rounds[name]))
    gain = compute_gain(rounds, best)
    plan = {name: compared[name] for name in ("plan", "engines", "regions", "planned", "how")}
    times = {name: 1e3 * median(seconds) for name, seconds in rounds.items()}
    to_ort = asdict(compute_gain(rounds, "ort")) if "ort" in rounds else None
    is_best = compared["engines"] == [best] and compared["regions"] == 1
    row |= {"verdict": "same" if is_best else judge(gain), "best": best, "gain": asdict(gain)}
    return {**row, "to_ort": to_ort, "ms": times, **plan, "off": compared.get("off", {}).get("auto")}


def compute_gain(rounds: Mapping[str, Sequence[float]], other: str) -> RatioInterval:
    return compute_round_ratio(rounds[other], rounds["auto"])


def explain_missing(record: Record) -> str:
    compared = record["compared"]
    reasons = (record["tuned"].get("failed"), compared.get("failed"), compared.get("left", {}).get("auto"))
    return next(filter(None, reasons), "no single engine ran beside auto")


# ---------------------------------------------------------------------- engines to compare


def select_engines(engines: Sequence[str], contenders: Sequence[Record]) -> tuple[list[str], dict[str, str], list[str]]:
    """Split single engines into those to compare, those that are slow or wrong, with the reason, and those not measured.

    An engine that the search did not measure is tried alone: it may be the best.
    """
    single = {c["engines"][0]: c for c in contenders if len(c["engines"]) == 1 and c["count"] == 1}
    seconds = {name: c["seconds"] for name, c in single.items() if c["seconds"] and c["verdict"] not in ("wrong", "failed")}
    best = min(seconds.values(), default=0.0)
    fast = [name for name in engines if name in seconds and (seconds[name] <= MAX_SLOWDOWN * best or name == ALWAYS_COMPARED)]
    slow = {name: f"slow: {seconds[name] / best:.0f} x the fastest, in the search" for name in seconds if name not in fast}
    refused = {name: c["note"] for name, c in single.items() if c["note"].startswith(("refused", "wrong"))}
    slow |= {name: note for name, note in refused.items() if name not in seconds}
    return fast, slow, [name for name in engines if name not in fast and name not in slow]


def add_probes(fast: Sequence[str], probes: Mapping[str, Record], others: Sequence[Record]) -> tuple[list[str], dict[str, str]]:
    """Add the engines that were measured alone to those to compare; return both, with the reason why any was left out."""
    seconds = [record["seconds"] for record in (*probes.values(), *others) if record.get("seconds")]
    ratios = {name: record["seconds"] / min(seconds) for name, record in probes.items() if "seconds" in record}
    slow = {
        name: f"slow: {ratio:.0f} x the fastest, alone"
        for name, ratio in ratios.items()
        if ratio > MAX_SLOWDOWN and name != ALWAYS_COMPARED
    }
    failed = {name: record["failed"] for name, record in probes.items() if "failed" in record}
    return [*fast, *(name for name in ratios if name not in slow)], {**failed, **slow}


# ---------------------------------------------------------------------- the nearest mixture


def find_nearest_mixture(contenders: Sequence[Record]) -> dict[str, Any] | None:
    """Describe the fastest mixture of the search and why it lost; None without mixtures.

    If no mixture raced, this is the mixture whose regions have the smallest sum of times.
    """
    mixtures = [c for c in contenders if len(c["engines"]) > 1 and c["seconds"]]
    raced = [c for c in mixtures if c["ratio"]]
    if raced:
        mixture = min(raced, key=lambda c: c["ratio"])
        ratio = {"median": mixture["ratio"], "low": mixture["ratio_low"], "high": mixture["ratio_high"]}
        return {"plan": mixture["title"], "verdict": mixture["verdict"], "ratio": ratio, "lost_on": explain_loss(mixture)}
    alone = min((c["seconds"] for c in contenders if c["count"] == 1 and c["seconds"]), default=None)
    if alone is None or not mixtures:
        return None
    mixture = min(mixtures, key=lambda c: c["seconds"])
    reason = f"its regions, measured one by one, take {1e3 * mixture['seconds']:.3g} ms, the best engine {1e3 * alone:.3g}"
    return {"plan": mixture["title"], "verdict": mixture["verdict"], "ratio": None, "lost_on": reason}


def explain_loss(mixture: Record) -> str:
    """Explain why a mixture lost to the best engine: its regions are slower, or the boundaries between them cost too much."""
    if mixture["ratio"] <= 1 or not mixture["regions"]:
        return ""
    alone = mixture["seconds"] / mixture["ratio"]
    boundaries, slower = mixture["seconds"] - mixture["regions"], mixture["regions"] - alone
    if boundaries > abs(slower):
        return f"boundaries between its regions take {1e3 * boundaries:.3g} ms of {1e3 * mixture['seconds']:.3g}"
    return f"its regions take {1e3 * mixture['regions']:.3g} ms, the best engine alone {1e3 * alone:.3g}"
