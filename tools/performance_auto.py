"""What `docs/performance.md` says of `benchmarks/auto.py`: its tables and its targets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tools.conformance_page import table
from tools.performance_sections import Figures, Verdict, spread

FLOOR = 0.98
"""No model's interval may lie wholly under it."""
MEAN = 1.05
GREAT = 1.1
FIRST = "softmax_chain"
"""The graph on which a mixture is known to win."""


def auto_tables(figures: Figures) -> Iterator[str]:
    yield circumstances(figures)
    yield summed_up(figures)
    columns = ("model", "gain", "verdict", "best single engine", "to `ort`", "auto, ms", "best, ms", "auto's plan", "search, s")
    yield "Over the best single engine; over 1, auto is the quicker:\n\n" + table(columns, map(model_row, figures["models"]))
    nearest = [nearest_row(row) for row in figures["models"] if row["nearest"] and not is_mixture(row)]
    if nearest:
        columns = ("model", "nearest mixture", "its time over the best engine's, in the search", "what it lost on")
        yield "Where no mixture was chosen, the one that came nearest:\n\n" + table(columns, nearest)
    left = [(f"`{row['model']}`", f"`{name}`", short(why)) for row in figures["models"] for name, why in row["left"].items()]
    if left:
        yield "Engines that took no turns:\n\n" + table(("model", "engine", "why"), left)


def circumstances(figures: Figures) -> str:
    versions = "; ".join(f"`{name}`: {version}" for name, version in figures["versions"].items())
    kept = f" Kept from an earlier run on this machine: {', '.join(figures['kept'])}." if figures.get("kept") else ""
    return f"{figures['threads']} threads, {figures['budget']:g} s for a search. {versions}{'.' * bool(kept)}{kept}\n"


VERDICTS = {"win": "won", "same": "chose the best single engine", "tie": "ties", "loss": "lost", "none": "without a figure"}


def summed_up(figures: Figures) -> str:
    """Return how many models were won, tied and lost, and the means over all."""
    counts = Counter(row["verdict"] for row in figures["models"])
    told = ", ".join(f"{counts[verdict]} {words}" for verdict, words in VERDICTS.items() if counts[verdict])
    means = [("the best single engine", figures["to_best"]), ("`ort` alone", figures["to_ort"])]
    gains = "; ".join(f"over {what} {spread(mean)} x" for what, mean in means if mean)
    return f"Of {len(figures['models'])} models: {told}. Geometric mean of the gains: {gains or 'none'}.\n"


def model_row(row: Figures) -> tuple[str, ...]:
    name = f"`{row['model']}`"
    if row["verdict"] == "none":
        return (name, "", f"no figure: {short(row['why'])}", *[""] * 6)
    ms = (f"{row['ms'][which]:.3g}" for which in ("auto", row["best"]))
    to_ort = spread(row["to_ort"], 2) if row["to_ort"] else ""
    spent = f"{row['search']['spent']:.1f}" if "spent" in row["search"] else ""
    return (name, spread(row["gain"]), row["verdict"], f"`{row['best']}`", to_ort, *ms, row["plan"], spent)


def is_mixture(row: Figures) -> bool:
    return len(row.get("engines", ())) > 1


def nearest_row(row: Figures) -> tuple[str, ...]:
    one = row["nearest"]
    if one["ratio"] is None:
        return (f"`{row['model']}`", one["plan"], "it did not race", one["lost_on"])
    unknown = "it had lost before its regions were timed" if one["ratio"]["low"] > 1 else "nothing beyond the noise"
    return (f"`{row['model']}`", one["plan"], spread(one["ratio"]), one["lost_on"] or unknown)


def short(words: str, most: int = 160) -> str:
    """Return words on one line that a table bears."""
    line = " ".join(words.replace("|", "/").split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


# ---------------------------------------------------------------------- targets


def auto_verdicts(figures: Figures) -> Iterator[Verdict]:
    judged = [row for row in figures["models"] if row["verdict"] != "none"]
    yield every_model(figures["models"], judged)
    if figures["to_ort"]:
        mean = figures["to_ort"]
        what = f"gain over `ort` alone, geometric mean of {mean['models']} models"
        yield Verdict(what, f"over {MEAN:g} x", f"{spread(mean)} x", mean["median"] > MEAN)
    for row in judged:
        if row["model"] == FIRST:
            what = "softmax, 50 elementwise operators, softmax: gain over the best single engine"
            yield Verdict(what, "above 1, interval excludes 1", f"{spread(row['gain'])} x", row["gain"]["low"] > 1)
    yield great_gains(judged)
    yield from searches(figures["models"])


def every_model(models: list[Figures], judged: list[Figures]) -> Verdict:
    """Judge the least gain of all; a model without a figure is a model that missed."""
    lost = [row["model"] for row in judged if row["gain"]["high"] < FLOOR]
    missing = [row["model"] for row in models if row not in judged]
    what, target = f"gain over the best single engine, {len(models)} models", f"no interval wholly under {FLOOR:g} x"
    least = min(judged, key=lambda row: row["gain"]["high"], default=None)
    figure = f"the lowest: {spread(least['gain'])} x ({least['model']})" if least else "none was judged"
    figure += f"; under it: {', '.join(lost)}" if lost else ""
    figure += f"; no figure: {', '.join(missing)}" if missing else ""
    return Verdict(what, target, figure, bool(judged) and not lost and not missing)


def great_gains(judged: list[Figures]) -> Verdict:
    mixtures = [row for row in judged if is_mixture(row) and not row["built"] and row["gain"]["low"] > 1]
    great = [row for row in mixtures if row["gain"]["median"] > GREAT]
    what = f"mixtures over {GREAT:g} x the best single engine, on models not built to show off a weakness"
    figure = ", ".join(f"{row['model']} {spread(row['gain'])}" for row in great) or "none"
    return Verdict(what, "3 models", figure, len(great) >= 3)


def searches(models: list[Figures]) -> Iterator[Verdict]:
    spent = [(row["search"]["spent"] / row["search"]["budget"], row["model"]) for row in models if row["search"].get("budget")]
    if spent:
        worst, model = max(spent)
        yield Verdict("time of a search over its budget, the most", "at most 1 x", f"{worst:.3f} x ({model})", worst <= 1.0)
    planned = [(row["planned"], row["model"]) for row in models if row.get("how") == "remembered"]
    if planned:
        slowest, model = max(planned)
        yield Verdict("a second process plans, the slowest", "under 1 s", f"{slowest:.2f} s ({model})", slowest < 1)
