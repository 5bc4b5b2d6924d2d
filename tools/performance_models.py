"""Sections of `docs/performance.md` on whole models: placement by measurement, PyTorch and reduced precision."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.precision_figures import find_losing_steps, find_other_answers, find_over, find_slower, find_slowest
from benchmarks.pytorch import XRT_WAYS, find_worst, mean_over_eager
from tools.conformance_page import table
from tools.performance_sections import Figures, Section, Verdict, format_ratio, judge_at_least

# ---------------------------------------------------------------------- placement by measurement

OUTCOMES = {"win": "faster", "same": "chose the best single engine", "tie": "ties", "loss": "slower", "none": "without a figure"}
MIN_GAIN = 0.98
"""No model may have an interval of the gain that is wholly below this ratio."""
MIXTURE_MODEL = "softmax_chain"
"""A graph on which a mixture is known to be faster than any engine."""
MAX_REASON_CHARACTERS = 160
"""A longer reason makes a row of the table too wide to read."""


def _list_auto_tables(figures: Figures) -> Iterator[str]:
    models = figures["models"]
    versions = "; ".join(f"`{name}`: {version}" for name, version in figures["versions"].items())
    yield f"{figures['threads']} threads, at most {figures['budget']:g} s for a search. {versions}.\n"
    counts = Counter(row["verdict"] for row in models)
    outcomes = ", ".join(f"{counts[verdict]} {words}" for verdict, words in OUTCOMES.items() if counts[verdict])
    means = [("the best single engine", figures["to_best"]), ("`ort` alone", figures["to_ort"])]
    gains = "; ".join(f"over {what} {format_ratio(mean)} x ({mean['models']} models)" for what, mean in means if mean)
    yield f"Of {len(models)} models: {outcomes}. Geometric mean of the gains: {gains or 'none'}.\n"
    columns = (
        "model",
        "gain",
        "outcome",
        "best single engine",
        "over `ort`",
        "auto, ms",
        "best, ms",
        "plan of auto",
        "search, s",
    )
    yield "Gain over the best single engine (over 1: auto is faster):\n\n" + table(columns, map(_make_model_row, models))
    nearest = [_make_nearest_row(row) for row in models if row["nearest"] and not _is_mixture(row)]
    if nearest:
        columns = ("model", "fastest mixture", "its time, to the best engine's", "reason")
        yield "Where a single engine was chosen, the fastest mixture of the search:\n\n" + table(columns, nearest)
    left = [(f"`{row['model']}`", f"`{name}`", _shorten(reason)) for row in models for name, reason in row["left"].items()]
    if left:
        yield "Engines that were not compared:\n\n" + table(("model", "engine", "reason"), left)


def _make_model_row(row: Figures) -> tuple[str, ...]:
    name = f"`{row['model']}`"
    if row["verdict"] == "none":
        return (name, "", f"no figure: {_shorten(row['why'])}", *[""] * 6)
    ms = (f"{row['ms'][which]:.3g}" for which in ("auto", row["best"]))
    to_ort = format_ratio(row["to_ort"], 2) if row["to_ort"] else ""
    seconds = f"{row['search']['spent']:.1f}" if "spent" in row["search"] else ""
    return (name, format_ratio(row["gain"]), row["verdict"], f"`{row['best']}`", to_ort, *ms, row["plan"], seconds)


def _is_mixture(row: Figures) -> bool:
    return len(row.get("engines", ())) > 1


def _make_nearest_row(row: Figures) -> tuple[str, ...]:
    mixture = row["nearest"]
    if mixture["ratio"] is None:
        return (f"`{row['model']}`", mixture["plan"], "not raced", mixture["lost_on"])
    unknown = "lost before its regions were timed" if mixture["ratio"]["low"] > 1 else "no difference beyond the noise"
    return (f"`{row['model']}`", mixture["plan"], format_ratio(mixture["ratio"]), mixture["lost_on"] or unknown)


def _shorten(text: str) -> str:
    line = " ".join(text.replace("|", "/").split())
    return line if len(line) <= MAX_REASON_CHARACTERS else f"{line[: MAX_REASON_CHARACTERS - 1]}…"


def _list_auto_verdicts(figures: Figures) -> Iterator[Verdict]:
    compared = [row for row in figures["models"] if row["verdict"] != "none"]
    yield _judge_slowest(figures["models"], compared)
    for row in compared:
        if row["model"] == MIXTURE_MODEL:
            what = "softmax, 50 elementwise operators, softmax: gain over the best single engine"
            yield Verdict(what, "interval above 1", f"{format_ratio(row['gain'])} x", row["gain"]["low"] > 1)
    searches = [row for row in figures["models"] if row["search"].get("budget")]
    if searches:
        worst, model = max((row["search"]["spent"] / row["search"]["budget"], row["model"]) for row in searches)
        yield Verdict("time of a search over its budget, the most", "at most 1 x", f"{worst:.3f} x ({model})", worst <= 1.0)
    remembered = [(row["planned"], row["model"]) for row in figures["models"] if row.get("how") == "remembered"]
    if remembered:
        slowest, model = max(remembered)
        yield Verdict("time to plan in a second process, the most", "under 1 s", f"{slowest:.2f} s ({model})", slowest < 1)


def _judge_slowest(models: Sequence[Figures], compared: Sequence[Figures]) -> Verdict:
    """Judge the smallest gain; a model without a figure misses the target."""
    slower = [row["model"] for row in compared if row["gain"]["high"] < MIN_GAIN]
    missing = [row["model"] for row in models if row not in compared]
    least = min(compared, key=lambda row: row["gain"]["high"], default=None)
    figure = f"the lowest: {format_ratio(least['gain'])} x ({least['model']})" if least else "no model was compared"
    figure += f"; below: {', '.join(slower)}" if slower else ""
    figure += f"; no figure: {', '.join(missing)}" if missing else ""
    what = f"gain over the best single engine, {len(models)} models"
    return Verdict(what, f"no interval wholly under {MIN_GAIN:g} x", figure, bool(compared) and not slower and not missing)


AUTO = Section(
    "Placement by measurement",
    'Does `engine="auto"` choose the fastest engine, or a mixture that is faster than any engine?',
    "For every shipped model auto searches in a new process. In another process it then takes turns, with its stored "
    "decision, with every single engine that is ready; the first call of each turn is not counted. Gains are medians of the "
    "ratios within rounds, with 95 % intervals by bootstrap over rounds. An outcome is a win or a loss if the interval "
    "excludes 1 and the median differs by more than 1 %; *same* means that auto chose the best single engine. The best single "
    "engine is the one with the lowest median of this run, which favours the engines.",
    _list_auto_tables,
    _list_auto_verdicts,
    "Where auto chose the best single engine, both run the same executable, and the gain is the noise of the machine.",
)

# ---------------------------------------------------------------------- PyTorch


def _list_pytorch_tables(figures: Figures) -> Iterator[str]:
    for mkl, models in figures.get("calls", {}).items():
        backends = list(next(iter(models.values()))["seconds"])
        rows = [(name, *(f"{1e3 * row['seconds'][backend]:.2f}" for backend in backends)) for name, row in models.items()]
        yield f"Milliseconds per call, {mkl}:\n\n" + table(("model", *backends), rows)
    if "capture" in figures:
        rows = [
            (name, f"{row['torch.export']:.2f}", f"{row['from_torch']:.2f}", f"{row['from_torch'] - row['torch.export']:.2f}")
            for name, row in figures["capture"].items()
        ]
        yield "Seconds to capture a module:\n\n" + table(("model", "torch.export alone", "from_torch", "lowering"), rows)
    if "dispatch" in figures:
        rows = [(backend, f"{1e6 * seconds:.1f}") for backend, seconds in figures["dispatch"].items()]
        yield "Microseconds per call of `Linear(3, 3)`:\n\n" + table(("backend", "microseconds"), rows)


def _list_pytorch_verdicts(figures: Figures) -> Iterator[Verdict]:
    for mkl, models in figures.get("calls", {}).items():
        measured = next(iter(models.values()))["seconds"]  # `--ways` may leave some out
        for name in (way for way in XRT_WAYS if way in measured):
            (model, ratio), mean = find_worst(models, name), mean_over_eager(models, name)
            yield Verdict(f"{name} over the best of the others, {mkl}: {model}", "at least 0.9 x", f"{ratio:.2f} x", ratio >= 0.9)
            yield Verdict(f"{name} over eager, geometric mean, {mkl}", "over 1 x", f"{mean:.2f} x", mean > 1)


PYTORCH = Section(
    "PyTorch",
    "How fast is a PyTorch model with each backend?",
    "BERT-base with 128 tokens, GPT-2 with 64, ConvNeXt, ResNet-50 and ViT with one image, an LSTM with 8 sequences of 50 "
    "steps, with random weights, one process per model. All backends take turns with the same threads. ONNX Runtime runs the "
    "file of `torch.onnx.export`, OpenVINO its own conversion of the module. Inductor runs with its defaults and frozen, "
    'images in channels last. XRT is `XRTModule(module)` and `torch.compile(backend="xrt")` with `freeze`, both with '
    '`engine="auto"`.',
    _list_pytorch_tables,
    _list_pytorch_verdicts,
    "MKL takes a slow path on processors of other vendors, so everything is measured a second time with MKL's vendor check "
    "overridden. `torch.compile` runs recurrent layers eagerly unless `torch._dynamo.config.allow_rnn` is set; it is set "
    "here, for Inductor too.",
)

# ---------------------------------------------------------------------- reduced precision

GAINS = {"auto 1%": (0.01, 1.6), "auto 5%": (0.05, 2.2)}
"""Error budget and target of the geometric mean, on processors with bf16 or int8 dot products."""
MAX_QUANTIZED_RATIO = 1.05
"""Maximum time of a quantized model on an engine, relative to the engine's library alone."""
MAX_ACCURACY_LOSS = 0.01
"""The error budget of the trained classifiers: one point of accuracy."""


def _list_precision_tables(figures: Figures) -> Iterator[str]:
    if live := _get_measured(figures, "live"):
        yield "Gain over the best engine in float32, and relative error on unseen examples:\n\n" + _make_matrix(
            live, _format_error
        )
        columns = ("model", "budget", "gain", "error", "search", "plan")
        yield "Plans that auto chose within each budget:\n\n" + table(columns, _list_plans(live))
    if trained := _get_measured(figures, "trained"):
        title = "Trained models: gain, accuracy on unseen examples, and seconds of search:\n\n"
        yield title + _make_matrix(trained, _format_accuracy)
    if quantized := _get_measured(figures, "qdq"):
        columns = (
            "model",
            "made by",
            "engine",
            "ms",
            "alone, ms",
            "ratio",
            "difference",
            "to the reference",
            "alone, to the reference",
        )
        yield "Quantized models of other tools, to the engine's library alone:\n\n" + table(columns, _list_quantized(quantized))
    if left := list(_list_left_out(figures)):
        yield "Not measured:\n\n" + "\n".join(left) + "\n"


def _get_measured(figures: Figures, part: str) -> dict[str, Any]:
    return {model: record for model, record in figures.get(part, {}).items() if "rows" in record}


def _make_matrix(models: Mapping[str, Any], format_cell: Callable[[Mapping[str, Any]], str]) -> str:
    """Make a table with a row per candidate and a column per model."""
    names = dict.fromkeys(row["candidate"] for record in models.values() for row in record["rows"])
    by_model = {model: {row["candidate"]: row for row in record["rows"]} for model, record in models.items()}
    best = ["best engine in float32", *(_format_best_engine(rows) for rows in by_model.values())]
    lines = [(name, *(format_cell(rows[name]) if name in rows else "" for rows in by_model.values())) for name in names]
    return table(("candidate", *models), [tuple(best), *lines])


def _format_best_engine(rows: Mapping[str, Any]) -> str:
    row = next(row for row in rows.values() if row["best"])
    return f"{row['candidate'].removesuffix(' fp32')}, {row['ms']:.2f} ms"


def _format_error(row: Mapping[str, Any]) -> str:
    return f"{row['gain']['median']:.2f} x, {row['error']:.2%}{', **wrong**' if 'fault' in row else ''}"


def _format_accuracy(row: Mapping[str, Any]) -> str:
    search = f", {row['search']:.1f} s" if "search" in row else ""
    return f"{row['gain']['median']:.2f} x, {row['metric']:.2%}{search}"


def _list_plans(models: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for model, record in models.items():
        for row in record["rows"]:
            if "limit" in row:
                plan = row.get("plan", "").replace("{", "`{").replace("}", "}`")
                error = f"{row['error']:.3%}"
                yield model, f"{row['limit']:.1%}", f"{format_ratio(row['gain'], 2)} x", error, f"{row['search']:.1f} s", plan


def _list_quantized(models: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for model, record in models.items():
        for row in record["rows"]:
            times = f"{row['ms']:.2f}", f"{row['alone_ms']:.2f}", f"{format_ratio(row['ratio'])} x"
            answers = (f"{row[name]:.1g}" for name in ("difference", "to_reference", "alone_to_reference"))
            yield (model, row["tool"], f"`{row['engine']}`", *times, *answers)


def _list_left_out(figures: Figures) -> Iterator[str]:
    for part in ("live", "trained", "qdq"):
        for model, record in figures.get(part, {}).items():
            if "failed" in record:
                yield f"- {part}, {model}: {record['failed']}"
            for name, reason in record.get("left", {}).items():
                yield f"- {part}, {model}, {name}: `{reason}`"


def _list_precision_verdicts(figures: Figures) -> Iterator[Verdict]:
    for name, (budget, target) in GAINS.items():
        if name in figures["means"]:
            mean = figures["means"][name]
            what = f"`max_error={budget:g}` over the best engine in float32, geometric mean of {mean['models']}"
            yield judge_at_least(what, target, mean)
    if models := {**_get_measured(figures, "live"), **_get_measured(figures, "trained")}:
        for what, exceptions in (
            ("plans within a budget that are slower than 0.98 of the best engine in float32", find_slower(models)),
            ("plans that are slower with a larger budget", find_losing_steps(models)),
            ("plans over their budget, or wrong, on unseen examples", find_over(models)),
        ):
            yield Verdict(what, "none", "; ".join(exceptions) or "none", not exceptions)
    for model, record in _get_measured(figures, "trained").items():
        row = next((row for row in record["rows"] if row["candidate"].startswith("auto,")), None)
        if row is not None:
            figure = f"{100 * row['error']:.2f} points, {row['gain']['median']:.2f} x as fast"
            what = f"accuracy lost within a budget of one point: {model}"
            yield Verdict(what, "at most 1 point", figure, row["error"] <= MAX_ACCURACY_LOSS)
    if quantized := _get_measured(figures, "qdq"):
        for engine, (ratio, name) in find_slowest(quantized).items():
            what = f"quantized models on `{engine}` over the library alone, the slowest ({name})"
            yield Verdict(what, f"at most {MAX_QUANTIZED_RATIO:g} x", f"{ratio:.2f} x", ratio <= MAX_QUANTIZED_RATIO)
        other = find_other_answers(quantized)
        what = "quantized models whose results differ from the library's and are further from the reference"
        yield Verdict(what, "none", "; ".join(other) or "none", not other)


PRECISION = Section(
    "Reduced precision",
    "How fast are reduced precisions, and what does auto choose within an error budget?",
    "BERT-base, GPT-2 with six layers, ConvNeXt-T and MobileNet v2 with random weights; *gpt_hard* computes the same with a "
    "few channels 40 times as large. *images* and *texts* are small classifiers trained on generated data; the *hard* ones "
    "have such channels too. Each model has a process in which all candidates take turns. Errors and accuracies are measured "
    "on 64 examples (batches, for the classifiers) that were used neither for calibration nor for validation. *Alone* is a "
    "session of the library. ONNX Runtime's `quantize_static` and NNCF's `quantize_with_accuracy_control` calibrate with the "
    "examples that auto uses.",
    _list_precision_tables,
    _list_precision_verdicts,
    "Errors of models with random weights are errors of outputs, not of an accuracy. OpenVINO computes in bf16 unless float32 "
    "is requested: *default hint*. Where a quantized model gives other results than its library, the distance to the "
    "reference engine shows which is closer to ONNX. Seconds of search include the search in float32; those of other tools "
    "exclude imports and reading the model.",
)
