"""benchmarks/precision.py on made-up records: what is slower, over its budget or answered otherwise, and what is kept."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from tools.performance_precision import list_left, list_tables, list_verdicts

FOLDER = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(FOLDER))

import precision as benchmark  # noqa: E402  # benchmarks are scripts, not a package
import precision_figures as figures  # noqa: E402
import precision_tools as tools  # noqa: E402
import precision_trained as trained  # noqa: E402
import torch  # noqa: E402

OPTIONS = {"threads": 1, "budget": 1.0, "seconds": 0.1, "engines": ["ort"], "is_quick": True}


def gain(median: float, spread: float = 0.01) -> dict[str, float]:
    return {"median": median, "low": median - spread, "high": median + spread}


def row(candidate: str, ratio: float, error: float = 0.0, **more: Any) -> dict[str, Any]:
    rounds = [0.01 / ratio] * 6
    return {
        "candidate": candidate,
        "ms": 10 / ratio,
        "gain": gain(ratio),
        "error": error,
        "rounds": rounds,
        "best": False,
        **more,
    }


def record(*rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"rows": [{**row("ort fp32", 1.0), "best": True}, *rows], "steps": [], "left": {}, **more}


def quantized(**more: Any) -> dict[str, Any]:
    answers = {"difference": 0.0, "to_reference": 0.0, "alone_to_reference": 0.0, "error": 0.05}
    return {"tool": "nncf", "engine": "ort", "ms": 1.0, "alone_ms": 1.0, "ratio": gain(1.0), **answers, **more}


def found(**parts: Any) -> dict[str, Any]:
    means = {name: mean for name in benchmark.MEANS if (mean := figures.make_mean(parts.get("live", {}), name))}
    return {"machine": "a machine", "threads": 1, "budget": 1.0, "means": means, **parts}


# ---------------------------------------------------------------------- judged


def test_a_plan_is_over_its_budget_by_its_error_or_by_outputs_that_are_wrong() -> None:
    rows = (
        row("auto 1%", 2.0, 0.0101, limit=0.01, search=1.0),
        row("auto 5%", 2.0, 0.0499, limit=0.05, search=1.0),
        row("auto 0.1%", 2.0, 0.0, limit=0.001, search=1.0, fault="output 0 is 0 everywhere"),
        row("ort int8", 2.0, 0.9),
    )
    models = {"bert": record(*rows)}
    assert figures.find_over(models) == ["bert auto 1%: 1.010%", "bert auto 0.1%: output 0 is 0 everywhere"]
    verdict = next(one for one in list_verdicts(found(live=models)) if "over their budget" in one.what)
    assert not verdict.reached and verdict.figure.startswith("bert auto 1%: 1.010%; ")


def test_a_budget_of_nothing_allows_the_rounding_of_another_engine() -> None:
    assert figures.find_over({"bert": record(row("auto 0%", 1.0, 1e-6, limit=0.0))}) == []
    assert figures.find_over({"bert": record(row("auto 0%", 1.0, 1e-2, limit=0.0))}) == ["bert auto 0%: 1.000%"]


def test_only_what_is_certain_counts_as_slower() -> None:
    doubtful = {**row("auto 1%", 0.95, limit=0.01), "gain": gain(0.95, 0.05)}
    steps = [{"of": "auto 1%", "to": "auto 5%", **gain(0.9)}, {"of": "auto fp32", "to": "auto 0%", **gain(0.97, 0.02)}]
    models = {"gpt": record(doubtful, row("auto 5%", 0.95, limit=0.05), row("ort int8", 0.1), steps=steps)}
    assert figures.find_slower(models) == ["gpt auto 5% 0.95"]
    assert figures.find_losing_steps(models) == ["gpt auto 1% over auto 5%: 0.90"]


def test_the_mean_is_geometric_and_leaves_hard_models_out() -> None:
    models = {name: record(row("auto 1%", ratio)) for name, ratio in (("bert", 1.0), ("gpt", 4.0), ("gpt_hard", 100.0))}
    mean = figures.make_mean(models, "auto 1%")
    assert mean is not None and mean["median"] == pytest.approx(2.0) and mean["models"] == 2
    assert figures.make_mean({**models, "convnext": {"failed": "killed"}}, "auto 5%") is None
    assert "rounds" not in figures.drop_rounds(models["bert"])["rows"][0]


def test_other_answers_count_unless_they_are_nearer_to_the_reference() -> None:
    near = quantized(difference=0.04, to_reference=0.0, alone_to_reference=0.04)
    far = quantized(difference=0.04, to_reference=0.04, alone_to_reference=0.0, ratio=gain(1.2))
    models = {"images": {"rows": [near, quantized(engine="openvino")], "left": {}}, "texts": {"rows": [far], "left": {}}}
    assert figures.find_other_answers(models) == ["texts of nncf on ort: 0.04"]
    assert figures.find_slowest(models) == {"ort": (1.2, "texts of nncf"), "openvino": (1.0, "images of nncf")}
    reached = {verdict.what: verdict.reached for verdict in list_verdicts(found(qdq=models))}
    assert reached["quantized models on `ort` over the library alone, the slowest (texts of nncf)"] is False
    assert reached["quantized models on `openvino` over the library alone, the slowest (images of nncf)"] is True
    assert reached["quantized models with other answers than the library's, and no nearer to the reference"] is False


def test_a_page_shows_what_was_measured_and_what_was_not() -> None:
    live = {"bert": record(row("auto 1%", 2.0, 0.005, limit=0.01, search=3.0, plan="bf16 on openvino{precision=bf16}"))}
    trained_ = {"images": record(row("auto, 1 point", 1.5, 0.002, limit=0.01, search=4.0, metric=0.95))}
    trained_["images"]["rows"][0]["metric"] = 0.952
    text = "\n".join(list_tables(found(live={**live, "gpt": {"failed": "the process ended with code -9"}}, trained=trained_)))
    for part in (
        "ort, 10.00 ms",
        "2.00 x, 0.50%",
        "bf16 on openvino`{precision=bf16}`",
        "1.50 x, 95.00%, 4.0 s",
        "- live, gpt: the process ended with code -9",
    ):
        assert part in text
    verdicts = {one.what: one for one in list_verdicts(found(live=live, trained=trained_))}
    assert verdicts["accuracy lost within a budget of one point: images"].figure == "0.20 points, 1.50 x as fast"
    mean = verdicts["`max_error=0.01` over the best engine in float32, geometric mean of 1"]
    assert mean.reached
    assert list(list_left({"qdq": {"bert": {"rows": [], "left": {"nncf": "no"}}}})) == ["- qdq, bert, nncf: `no`"]


# ---------------------------------------------------------------------- measured


def test_wrong_outputs_and_items_over_the_limit_are_found() -> None:
    examples = [{"x": np.full((1, 4), 1.0 + seed, np.float32) * (1, 2, 3, 4)} for seed in range(4)]
    candidates = {
        "exact": figures.Candidate(lambda one: [one["x"]], is_exact=True),
        "zeros": figures.Candidate(lambda one: [np.zeros_like(one["x"])]),
        "auto 1%": figures.Candidate(lambda one: [one["x"] * (1.02 if one["x"][0, 0] > 3 else 1.0)], limit=0.01),
    }
    errors = figures.measure_errors(candidates, "exact", examples)
    assert errors["zeros"]["fault"] == "output 0 is 0 everywhere, where the reference is not constant"
    assert errors["auto 1%"]["items_over"] == 1 and errors["auto 1%"]["worst"] == pytest.approx(0.02, rel=1e-3)
    rows = figures.make_rows(candidates, {"exact": [2.0] * 6, "zeros": [1.0] * 6, "auto 1%": [4.0] * 6}, errors)
    assert [(one["best"], one["gain"]["median"]) for one in rows] == [(True, 1.0), (False, 2.0), (False, 0.5)]


# ---------------------------------------------------------------------- a run goes on


def test_a_piece_is_kept_for_the_same_options_and_only_if_it_did_not_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: Iterator[dict[str, Any]] = iter([{"failed": "killed"}, {"rows": [1]}, {"rows": [2]}])
    monkeypatch.setattr(benchmark, "measure_piece", lambda *_: next(answers))

    def ask(options: dict[str, Any]) -> dict[str, Any]:
        return benchmark.measure_kept("live", "bert", options, tmp_path)

    assert ask(OPTIONS) == {"failed": "killed"}
    assert ask(OPTIONS) == ask(OPTIONS) == {"rows": [1]}
    assert ask({**OPTIONS, "budget": 2.0}) == {"rows": [2]}


def test_pieces_are_chosen_by_part_and_model() -> None:
    assert list(benchmark.list_pieces(["qdq", "live"], ["bert"])) == [("qdq", "bert"), ("live", "bert")]
    assert len(list(benchmark.list_pieces([*benchmark.MODELS], None))) == 15


# ---------------------------------------------------------------------- trained models and other tools


@pytest.mark.slow
@pytest.mark.parametrize("name", ["images", "texts"])
def test_a_hard_network_is_the_same_function(name: str) -> None:
    task = trained.TASKS[name]
    torch.manual_seed(0)
    network = task.make_network().eval()
    values = torch.from_numpy(task.draw(0, 8)[0])
    with torch.no_grad():
        before = network(values)
        trained._spread_channels(task, network)
        norms = [norm for norm, _ in task.find_scaled(network)]
        assert all(float(norm.weight[0]) == task.factor and float(norm.weight[-1]) == 1.0 for norm in norms) and norms
        torch.testing.assert_close(network(values), before, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["images", "texts"])
def test_data_is_made_again_from_its_seed(name: str) -> None:
    task = trained.TASKS[name]
    one, again, other = (task.draw(seed, 16) for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))
    assert not np.array_equal(one[0], other[0])


def test_a_missing_tool_is_named_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "find_spec", lambda name: None)
    with pytest.raises(tools.ToolFailed, match=r"^NNCF is not installed: pip install '\.\[benchmarks\]'$"):
        tools.run_tool("nncf accuracy", tmp_path, 1)


def test_examples_are_read_as_they_were_written(tmp_path: Path) -> None:
    examples = [{"x": np.full((2, 2), at, np.float32), "label": np.array([at])} for at in range(12)]
    tools.write_examples(tmp_path, "calibrate", examples)
    read = tools._read_examples(tmp_path, "calibrate")
    assert [int(one["label"][0]) for one in read] == list(range(12))
    assert all(set(one) == {"x"} for one in tools._list_inputs(read))


@pytest.mark.full
@pytest.mark.slow
def test_a_trained_classifier_is_compared_with_other_tools() -> None:
    command = [sys.executable, str(FOLDER / "precision.py"), "--quick", "--json", "--parts", "trained", "--models", "images"]
    done = subprocess.run([*command, "--budget", "3", "--seconds", "0.2"], capture_output=True, text=True, check=True)
    figures_ = json.loads(done.stdout)
    rows = {one["candidate"]: one for one in figures_["trained"]["images"]["rows"]}
    assert rows["ort fp32"]["metric"] > 0.8
    assert rows["auto, 1 point"]["limit"] == 0.01 and rows["auto, 1 point"]["search"] > 0
    assert rows["onnxruntime, quantize_static"]["search"] > 0
    assert list(list_tables(figures_)) and list(list_verdicts(figures_))
