"""A module tuned for throughput: how requests are joined, what refuses to be, and where the choice is kept.

The times are real and unbounded, so a busy machine changes no result; the search is tested on simulated times.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xrt
from tests.exact_errors import raises_exactly
from xrt.cli import main
from xrt.errors import OptionError, PlacementWarning
from xrt.graph import Constant, Function, Node, Value
from xrt.placement.throughput import find_batch_dim
from xrt.testing.corpus.entry import graph, node, tensor

pytestmark = [pytest.mark.slow, pytest.mark.sample(3)]

WEIGHT = np.random.default_rng(0).standard_normal((4, 3)).astype("float32")


def perceptron(*nodes: Node, inputs: str = "float32[N,4]", outputs: str = "float32[N,3]") -> Function:
    last = nodes or (node("Relu", "h", "y", name="n1"),)
    return graph({"x": inputs}, {"y": outputs}, node("MatMul", "x w", "h", name="n0"), *last, constants={"w": WEIGHT})


def tune(module: xrt.XRTModule, *args: Any, **terms: Any) -> Any:
    return module.tune(*args, objective="throughput", **{"batches": (1, 4), "budget": 1.0, "progress": False, **terms})


def test_the_choice_is_of_the_module_its_cache_and_its_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with xrt.XRTModule(perceptron(), engine="ort", threads=1, cache=tmp_path) as m:
        assert m.serving is None
        reports: list[Any] = []
        result = tune(m, progress=reports.append)
        assert reports[0].stage == "plan for calls of 1, 1 instance of 1 thread"
        assert reports[-1].budget == 1.0
        chosen = result.configuration
        assert m.serving == chosen
        assert (chosen.dim, chosen.instances, chosen.threads, chosen.plans) == ("N", 1, 1, ("ort",))
        assert chosen.batch in (1, 4)
        assert chosen.memory > 0
        x = np.ones((3, 4), "float32")
        m.save(tmp_path / "m.xrt", x)
    with xrt.XRTModule(perceptron(), engine="ort", threads=1, cache=tmp_path) as later:
        assert later.serving == chosen
    with xrt.XRTModule(perceptron(), engine="toy", threads=1, cache=tmp_path) as other:
        assert other.serving is None
    with xrt.load(tmp_path / "m.xrt", cache=tmp_path / "elsewhere") as loaded:
        assert loaded.serving == chosen
        np.testing.assert_allclose(loaded(x), np.maximum(x @ WEIGHT, 0), rtol=1e-5, atol=1e-6)
        loaded.save(tmp_path / "again.xrt")
    with xrt.load(tmp_path / "again.xrt") as again:
        assert again.serving == chosen
    with pytest.raises(SystemExit):
        main(["inspect", str(tmp_path / "again.xrt")])
    assert capsys.readouterr().out.splitlines()[-1] == f"tuned for throughput: {chosen}"


def test_requests_that_depend_on_each_other_are_not_joined(tmp_path: Path) -> None:
    mean = node("ReduceMean", "h", "m", name="n1"), node("Sub", "h m", "y", name="n2")
    with xrt.XRTModule(perceptron(*mean), engine="toy", threads=1, cache=tmp_path) as m:
        result = tune(m)
    assert result.configuration.batch == 1
    assert result.notes[0].startswith("requests are not batched: a request has other results in a batch than alone: y")


def test_a_traced_graph_is_tuned_as_it_is_called(tmp_path: Path) -> None:
    class Doubled(xrt.Graph):
        def build(self, x: Any) -> Any:
            return xrt.ops.Relu(x + x)

    x = np.ones((2, 3), "float32")
    with xrt.XRTModule(Doubled(), engine="toy", threads=1, cache=tmp_path) as m:
        result = tune(m, x)
        assert result.notes[0] == "requests are not batched: an xrt.Graph has no symbolic dim"
        with pytest.raises(OptionError) as caught:
            tune(m, x, batch_dim="N")
    assert str(caught.value) == "batch_dim= needs a model with symbolic dims, and an xrt.Graph has none; pass graph.trace(...)"


def test_options_of_the_other_objective_are_refused(tmp_path: Path) -> None:
    with xrt.XRTModule(perceptron(), engine="toy", threads=1, cache=tmp_path) as m:
        with raises_exactly(OptionError, "p99= is for objective='throughput'; pass that too, or remove it"):
            m.tune(p99=0.1)  # type: ignore[call-overload]  # it is refused
        with raises_exactly(OptionError, "objective must be 'latency' or 'throughput'; got 'speed'"):
            m.tune(objective="speed")  # type: ignore[call-overload]  # it is refused
        with raises_exactly(OptionError, "max_error= is an option of the module; pass it to XRTModule instead of tune()"):
            m.tune(max_error=0.01)
        with pytest.warns(PlacementWarning, match=r"^nothing serves requests within a p99 of 1e-06 ms; the fastest request"):
            tune(m, p99=1e-9)
        assert m.serving is None


def test_which_dim_counts_requests() -> None:
    def value(name: str, shape: str) -> Value:
        return Value(name, tensor(f"float32[{shape}]"))

    n, x, y = value("n", "N,4"), value("x", "N,N"), value("y", "M")
    assert find_batch_dim([n], [value("o", "N")]) == ("N", "")
    assert find_batch_dim([n, y], [])[0] == ""
    assert find_batch_dim([n], [y]) == (
        "",
        "dim 'N' is the first extent of input 'n' and not of output 'y'; pass batch_dim='N' (--batch-dim) to use this dim",
    )
    assert find_batch_dim([x], [value("o", "N")]) == ("", "dim 'N' is also extent 1 of input 'x'")
    assert find_batch_dim([], []) == ("", "the model has no input")
    assert find_batch_dim([value("fixed", "2,4")], []) == ("", "the first extent of input 'fixed' is not a symbolic dim")
    assert find_batch_dim([n, value("shared", "3")], [value("o", "?")], "N") == ("N", "")
    with pytest.raises(OptionError) as caught:
        find_batch_dim([n], [], "B")
    assert str(caught.value).startswith("batch_dim names 'B', which is not a symbolic dim of the inputs.")
    with raises_exactly(OptionError, "batch_dim='N' is extent 1 of input 'x'; requests are joined on extent 0"):
        find_batch_dim([x], [], "N")
    with raises_exactly(
        OptionError, "batch_dim='N' is not the first extent of output 'y', which is 'M': the output has no row for each request"
    ):
        find_batch_dim([n], [y], "N")


@pytest.mark.full
def test_plans_within_an_error_budget_are_put_under_load(tmp_path: Path) -> None:
    weights = {"w": Constant(np.random.default_rng(1).standard_normal((4, 3)).astype("float32"))}
    function = perceptron().replace(constants=weights)
    rows = [np.random.default_rng(seed).standard_normal((8, 4)).astype("float32") for seed in range(6)]
    data = {"max_error": 0.3, "calibrate": iter(rows[:2]), "validate": rows[2:]}
    options: dict[str, Any] = {"engine": ["ort", "auto"], "threads": 1, "cache": tmp_path, "progress": False}
    with xrt.XRTModule(function, **options, **data) as m:
        result = tune(m, budget=12.0)
        assert result.configuration is not None and result.configuration.batch in (1, 4)
        m(rows[0][: result.configuration.batch])
        record = m.tuned.precision if m.tuned is not None else None
        assert record is not None and record.limit == 0.3 and record.error <= 0.3 and len(record.plans) > 1
    with xrt.XRTModule(function, **options) as exact:
        assert exact.serving is None
    with xrt.XRTModule(function, **options, **{**data, "calibrate": rows[:2]}) as later:
        assert later.serving == result.configuration
