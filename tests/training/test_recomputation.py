"""Values that are computed again for the gradient: the same numbers, in less memory."""

from __future__ import annotations

import re
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import xrt
from xrt import ops, training
from xrt.errors import ModelError, OptionError
from xrt.graph.memory_forecast import estimate_peak
from xrt.passes.gradient import gradient
from xrt.passes.gradient.recomputation import list_recomputable, recompute

DEPTH, BATCH, WIDTH = 12, 64, 16
DRAW = np.random.default_rng(4)
X = DRAW.standard_normal((BATCH, WIDTH), dtype="float32")
REFERENCE = "toy{native=off}"


class Deep(xrt.Graph):
    """A chain of layers that end in a sum: what they keep is far more than what a layer computes with."""

    def __init__(self, draws: bool = False) -> None:
        draw = np.random.default_rng(1)
        self.draws = draws
        for i in range(DEPTH):
            setattr(self, f"w{i:02}", draw.standard_normal((WIDTH, WIDTH), dtype="float32") / 4)

    def build(self, x: Any) -> Any:
        for i in range(DEPTH):
            x = ops.Tanh(x @ getattr(self, f"w{i:02}"))
            x = ops.Dropout(x, np.float32(0.5), np.array(True)) if self.draws else x
        return {"loss": ops.ReduceSum(x * x, keepdims=0)}


def train(engine: Any, **options: Any) -> dict[str, Any]:
    """Make three steps; return the state, the last loss and the plan."""
    with xrt.TrainModule(
        Deep().trace(X), engine, loss="loss", optimizer=training.Adam(), learning_rate=0.01, **options
    ) as trained:
        loss = [trained(X) for _ in range(3)][-1]
        return {**trained.state_dict(), "loss": loss, "plan": trained.module.plan}


def list_again(function: xrt.Function) -> list[str]:
    return [node.name for node in function.nodes if "/again" in node.name]


@pytest.mark.slow
@pytest.mark.parametrize("chosen", ["Tanh", "*", "name:matmul_1*|tanh_?", ["MatMul", "Tanh"]])
def test_the_numbers_stay_bit_for_bit(chosen: Any) -> None:
    plain, again = train(REFERENCE), train(REFERENCE, recompute=chosen)
    assert list_again(again["plan"].launches[0].function)
    for name in plain.keys() - {"plan"}:
        np.testing.assert_array_equal(plain[name], again[name], err_msg=name)


@pytest.mark.slow
def test_auto_lowers_the_peak_to_the_limit() -> None:
    plain = training.step(Deep().trace(X), loss="loss", optimizer=training.Adam())
    before = estimate_peak(plain)
    assert before is not None
    limit = 2 * before // 3
    function = training.step(Deep().trace(X), loss="loss", optimizer=training.Adam(), recompute="auto", memory_limit=limit)
    after = estimate_peak(function)
    assert after is not None
    assert after <= limit
    kept = {f"tanh_{i}" for i in range(1, DEPTH + 1)} - {name.removesuffix("/again_1") for name in list_again(function)}
    assert len(kept) >= DEPTH // 4  # checkpoints, from which the others are computed
    engines = train(REFERENCE), train(REFERENCE, recompute="auto", memory_limit=limit)
    np.testing.assert_array_equal(engines[0]["w00"], engines[1]["w00"])
    text = str(engines[1]["plan"])
    found = re.search(r"^memory: (\d+) nodes computed again; values take at most ([\d,]+) bytes at once$", text, re.MULTILINE)
    assert found and int(found[1]) == len(list_again(function)) and int(found[2].replace(",", "")) <= limit
    assert "memory:" not in str(engines[0]["plan"])


def test_a_gradient_of_the_last_layer_is_used_before_that_of_the_first_is_known() -> None:
    """The order of a step keeps neither gradients nor what a layer has computed longer than needed."""
    function = training.step(Deep().trace(X), loss="loss")
    place = {node.name: number for number, node in enumerate(function.nodes)}
    updates = [place[f"w{i:02}/update/sub_1"] for i in range(DEPTH)]
    assert updates == sorted(updates, reverse=True)
    kept, layer = DEPTH * BATCH * WIDTH * 4, BATCH * WIDTH * 4
    peak = estimate_peak(function)
    assert peak is not None and peak < kept + 8 * layer


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ort", ["ort", "toy"], "xla", ["openvino", "toy"], "torch"], ids=str)
def test_engines_compute_the_copies(engine: Any) -> None:
    plain, again = train(engine), train(engine, recompute=["MatMul", "Tanh"])
    assert list_again(again["plan"].launches[0].function)
    for name in plain.keys() - {"plan"}:
        np.testing.assert_allclose(plain[name], again[name], rtol=1e-4, atol=1e-6, err_msg=name)


def _make_steps() -> tuple[xrt.Function, xrt.Function]:
    """A step, and what it is with at most two thirds of its values at once."""
    plain = training.step(Deep().trace(X), loss="loss")
    limit = 2 * (estimate_peak(plain) or 0) // 3
    return plain, training.step(Deep().trace(X), loss="loss", recompute="auto", memory_limit=limit)


@pytest.mark.slow
def test_xla_does_not_merge_the_copies_and_needs_less_memory() -> None:
    """Barriers do not do it: they are gone before equal operations are merged for the last time."""
    from xrt.engines.xla.program import compile_program

    steps = _make_steps()
    programs = [compile_program(step, 1) for step in steps]
    texts = [program.code.hlo_modules()[0].to_string() for program in programs]
    for op, name in (("Tanh", "tanh"), ("MatMul", "dot")):
        counts = [len(re.findall(rf"= \S+ {name}\(", text)) for text in texts]
        assert counts == [sum(node.op == op for node in step.nodes) for step in steps]
    assert programs[1].workspace <= 0.75 * programs[0].workspace


def test_what_draws_is_never_computed_again() -> None:
    """A Dropout without a seed would drop other elements the second time."""
    function = gradient(Deep(draws=True).trace(X), with_respect_to=["w00", "w05"])
    assert "Dropout" not in {node.op for node in list_recomputable(function, ["loss"])}
    made = recompute(function, ["loss"], {node.name for node in function.nodes})
    assert "Dropout" not in {node.op for node in made.nodes if "/again" in node.name}


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.sets(st.integers(0, 2 * DEPTH)), st.booleans())
def test_any_choice_of_nodes_is_a_valid_function_with_the_same_gradient(numbers: set[int], seeded: bool) -> None:
    function = gradient(Deep().trace(X), of="loss", with_respect_to=["w00", "w07", "x"], seeds=seeded)
    nodes = list_recomputable(function, ["loss"])
    made = recompute(function, ["loss"], {nodes[number % len(nodes)].name for number in numbers})
    values = {"x": X, **({"loss_seed": np.float32(2)} if seeded else {})}
    with xrt.XRTModule(function, REFERENCE) as one, xrt.XRTModule(made, REFERENCE) as other:
        for left, right in zip(one(**values), other(**values), strict=True):
            np.testing.assert_array_equal(left, right)


@pytest.mark.slow
def test_errors_say_what_to_give() -> None:
    function = Deep().trace(X)
    both = "; give both memory_limit=BYTES and recompute='auto', or patterns of nodes alone"
    with pytest.raises(OptionError, match=re.escape("recompute='auto' needs a limit" + both)):
        training.step(function, loss="loss", recompute="auto")
    with pytest.raises(OptionError, match=re.escape(f"memory_limit= bounds what recompute='auto' chooses{both}")):
        training.step(function, loss="loss", memory_limit=1000)
    with pytest.raises(OptionError, match="memory_limit must be a positive number of bytes; got 0"):
        training.step(function, loss="loss", recompute="auto", memory_limit=0)
    with pytest.raises(ModelError, match="recompute='Softmax' matches no node before the loss that may be computed again"):
        training.step(function, loss="loss", recompute="Softmax")
    with pytest.raises(OptionError) as caught:
        training.step(function, loss="loss", recompute="auto", memory_limit=1000)
    text = r"the values of a step take [\d,]+ bytes at once, and [\d,]+ with what can be computed again"
    assert re.fullmatch(rf"memory_limit=1,000 is too low: {text}; raise it, or take a smaller batch", str(caught.value))
