"""Recurrent layers of the torch engine: PyTorch's own functions where these compute what the node says, else a loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.engines.torch_running import compiled
from tests.engines.written import Array
from xrt.engines.toy import Toy
from xrt.graph import Constant, DType, Function, Node, TensorType, Value, read_attributes

TIME, BATCH, WIDTH, HIDDEN = 5, 3, 4, 6
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def layer(op: str, *, constant: bool, states: bool = True, **attributes: Any) -> tuple[Function, list[Array]]:
    """Return a Function of one recurrent node, and its inputs."""
    rng = np.random.default_rng(0)
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    first = bool(attributes.get("layout"))
    shapes = {
        "x": (BATCH, TIME, WIDTH) if first else (TIME, BATCH, WIDTH),
        "w": (directions, GATES[op] * HIDDEN, WIDTH),
        "r": (directions, GATES[op] * HIDDEN, HIDDEN),
        "b": (directions, 2 * GATES[op] * HIDDEN),
    }
    state = (BATCH, directions, HIDDEN) if first else (directions, BATCH, HIDDEN)
    shapes |= dict.fromkeys((["h0", "c0"] if op == "LSTM" else ["h0"]) if states else [], state)
    values = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    held = {name: Constant(values.pop(name)) for name in ("w", "r", "b")} if constant else {}
    inputs = tuple(Value(name, TensorType(DType.FLOAT32, value.shape)) for name, value in values.items())
    outputs = ("y", "h", "c") if op == "LSTM" else ("y", "h")
    operands = ("x", "w", "r", "b", "", *(name for name in ("h0", "c0") if name in shapes))
    node = Node(op, operands, outputs, read_attributes({"hidden_size": HIDDEN, **attributes}))
    unknown = TensorType(DType.FLOAT32, None)
    results = tuple(Value(name, unknown) for name in outputs)
    return Function(inputs, results, (node,), held, {"": 22}), list(values.values())


def list_layers() -> Iterator[Any]:
    for op in GATES:
        for direction in ("forward", "reverse", "bidirectional"):
            for layout in (0, 1):
                yield pytest.param(op, {"direction": direction, "layout": layout}, id=f"{op}-{direction}-{layout}")
    yield pytest.param("GRU", {"linear_before_reset": 1, "direction": "bidirectional"}, id="GRU-linear_before_reset")
    yield pytest.param("RNN", {"activations": ["Relu"], "direction": "reverse"}, id="RNN-relu")


@pytest.mark.parametrize("constant", [False, True], ids=["inputs", "constants"])
@pytest.mark.parametrize(("op", "attributes"), list(list_layers()))
def test_results_are_those_of_the_reference(op: str, attributes: dict[str, Any], constant: bool) -> None:
    for states in (False, True):
        function, inputs = layer(op, constant=constant, states=states, **attributes)
        executable = compiled(function)
        expected = compiled(function, engine=Toy()).run(inputs)
        for _ in range(2):
            for got, due in zip(executable.run(inputs), expected, strict=True):
                np.testing.assert_allclose(got, due, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("op", "attributes", "function"),
    [
        ("LSTM", {}, "lstm"),
        ("GRU", {"linear_before_reset": 1}, "gru"),
        ("RNN", {}, "rnn_tanh"),
        ("LSTM", {"input_forget": 1}, None),
        ("LSTM", {"clip": 0.5}, None),
        ("LSTM", {"activations": ["HardSigmoid", "Tanh", "Tanh"]}, None),
        ("GRU", {}, None),
        ("RNN", {"activations": ["Softsign"]}, None),
    ],
)
def test_the_library_computes_what_it_has(op: str, attributes: dict[str, Any], function: str | None, monkeypatch: Any) -> None:
    called: list[str] = []
    for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):

        def record(*arguments: Any, name: str = name, original: Any = getattr(torch, name)) -> Any:
            called.append(name)
            return original(*arguments)

        monkeypatch.setattr(torch, name, record)
    made, inputs = layer(op, constant=True, **attributes)
    compiled(made).run(inputs)
    assert called == ([] if function is None else [function])


@pytest.mark.slow
def test_the_copies_of_constant_weights_are_made_once_and_counted() -> None:
    function, inputs = layer("LSTM", constant=True)
    executable = compiled(function)
    for _ in range(3):
        executable.run(inputs)
    (packed,) = (one for one in executable.memory() if one.name == "packed weights")
    assert packed.nbytes == sum(constant.array.nbytes for constant in function.constants.values())
    function, inputs = layer("LSTM", constant=False)
    executable = compiled(function)
    executable.run(inputs)
    assert [one.name for one in executable.memory()] == ["workspace"]
