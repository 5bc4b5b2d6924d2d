"""What `auto.py` makes of what its processes found: ratios with intervals, who won, and what the nearest mixture lost on.

A record comes in, figures go out; nothing is measured here. All ratios are gains: over 1, auto is the quicker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any, TypeAlias

from xrt.measure.statistics import FLOOR, RatioInterval, compute_round_ratio

Record: TypeAlias = Mapping[str, Any]

BUILT = ("chain", "conv_chain", "conv_tail", "gather_softmax", "softmax_chain")
"""Graphs that were written to show what a cut gains or costs; the others are not built to show off a weakness."""
FAR = 10.0
"""A single engine that the search measured to be this many times as slow as the quickest takes no turns..."""
ALWAYS = "ort"
"""... but for this one, beside which all is told."""


def verdict_of(gain: RatioInterval) -> str:
    """Return a win or a loss only where the interval excludes 1 and the median is beyond the floor of any comparison."""
    if gain.low > 1 and gain.median >= 1 + FLOOR:
        return "win"
    return "loss" if gain.high < 1 and gain.median <= 1 - FLOOR else "tie"


def figures_of(record: Record) -> dict[str, Any]:
    """Return what is told of one model."""
    tuned, judged = record["tuned"], record["judged"]
    own = {"model": record["model"], "built": record["model"].partition("{")[0] in BUILT}
    search = {name: tuned[name] for name in ("spent", "wall", "budget", "measurements") if name in tuned}
    own |= {"search": search, "nearest": nearest_mixture(tuned.get("contenders", ())), "left": left_out(record)}
    rounds = judged.get("rounds", {})
    singles = [name for name in rounds if name != "auto"]
    if "auto" not in rounds or not singles:
        return {**own, "verdict": "none", "why": why_not(record)}
    best = min(singles, key=lambda name: median(rounds[name]))
    gain = gain_of(rounds, best)
    plan = {name: judged[name] for name in ("plan", "engines", "regions", "planned", "how")}
    times = {name: 1e3 * median(taken) for name, taken in rounds.items()}
    to_ort = asdict(gain_of(rounds, "ort")) if "ort" in rounds else None
    is_best = judged["engines"] == [best] and judged["regions"] == 1
    own |= {"verdict": "same" if is_best else verdict_of(gain), "best": best, "gain": asdict(gain)}
    return {**own, "to_ort": to_ort, "ms": times, **plan, "off": judged.get("off", {}).get("auto")}


def gain_of(rounds: Mapping[str, Sequence[float]], other: str) -> RatioInterval:
    return compute_round_ratio(rounds[other], rounds["auto"])


def why_not(record: Record) -> str:
    """Return why a model has no figures."""
    left = record["judged"].get("left", {})
    found = (record["tuned"].get("failed"), record["judged"].get("failed"), left.get("auto"))
    return next(filter(None, found), "no single engine ran beside auto")


def left_out(record: Record) -> dict[str, str]:
    """Return the engines that took no turns, and why: by the search, by a trial of their own, or in the judged run."""
    return {**record.get("hopeless", {}), **record["judged"].get("left", {})}


# ---------------------------------------------------------------------- who is judged


def sorted_out(engines: Sequence[str], contenders: Sequence[Record]) -> tuple[list[str], dict[str, str], list[str]]:
    """Return which single engines take turns, which do not and why, and which the search could not tell about.

    An engine that the search found no time for is tried again on its own: it may be the best.
    """
    single = {one["engines"][0]: one for one in contenders if len(one["engines"]) == 1 and one["count"] == 1}
    known = {name: one["seconds"] for name, one in single.items() if one["seconds"] and one["verdict"] not in ("wrong", "failed")}
    best = min(known.values(), default=0.0)
    judged = [name for name in engines if name in known and (known[name] <= FAR * best or name == ALWAYS)]
    hopeless = {name: f"slow: {known[name] / best:.0f} x the quickest, in the search" for name in known if name not in judged}
    final = {name: one["note"] for name, one in single.items() if one["note"].startswith(("refused", "wrong"))}
    hopeless |= {name: note for name, note in final.items() if name not in known}
    return judged, hopeless, [name for name in engines if name not in judged and name not in hopeless]


def with_probes(judged: Sequence[str], probes: Mapping[str, Record], known: Sequence[Record]) -> tuple[list[str], dict[str, str]]:
    """Return which engines take turns after those that the search could not tell about were tried, and why others do not."""
    seconds = [one["seconds"] for one in (*probes.values(), *known) if one.get("seconds")]
    times = {name: one["seconds"] / min(seconds) for name, one in probes.items() if "seconds" in one}
    slow = {name: f"slow: {ratio:.0f} x the quickest, alone" for name, ratio in times.items() if ratio > FAR and name != ALWAYS}
    failed = {name: one["failed"] for name, one in probes.items() if "failed" in one}
    return [*judged, *(name for name in times if name not in slow)], {**failed, **slow}


# ---------------------------------------------------------------------- the nearest mixture


def nearest_mixture(contenders: Sequence[Record]) -> dict[str, Any] | None:
    """Return the mixture that came closest in the search, and what it lost on; None where nothing is known of any.

    Where none ran, it is the one whose regions take the least together.
    """
    mixtures = [one for one in contenders if len(one["engines"]) > 1 and one["seconds"]]
    ran = [one for one in mixtures if one["ratio"]]
    if ran:
        one = min(ran, key=lambda one: one["ratio"])
        bounds = {"median": one["ratio"], "low": one["ratio_low"], "high": one["ratio_high"]}
        return {"plan": one["title"], "verdict": one["verdict"], "ratio": bounds, "lost_on": lost_on(one)}
    alone = min((one["seconds"] for one in contenders if one["count"] == 1 and one["seconds"]), default=None)
    if alone is None or not mixtures:
        return None
    one = min(mixtures, key=lambda one: one["seconds"])
    reason = f"its regions, measured one by one, take {1e3 * one['seconds']:.3g} ms together, the best engine {1e3 * alone:.3g}"
    return {"plan": one["title"], "verdict": one["verdict"], "ratio": None, "lost_on": reason}


def lost_on(one: Record) -> str:
    """Return in words where the time of a mixture goes that the best engine alone does not need."""
    if one["ratio"] <= 1 or not one["regions"]:
        return ""
    alone = one["seconds"] / one["ratio"]
    between, slower = one["seconds"] - one["regions"], one["regions"] - alone
    parts = [f"its regions take {1e3 * one['regions']:.3g} ms, the best engine alone {1e3 * alone:.3g}"]
    if between > abs(slower):
        parts = [f"between its regions go {1e3 * between:.3g} ms of {1e3 * one['seconds']:.3g}"]
    return parts[0]
