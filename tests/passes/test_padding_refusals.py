"""What padding would change is refused, with the reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.passes.padded_models import (
    BOTH,
    IMAGE,
    Build,
    Inputs,
    X,
    check,
    constant,
    make,
    shape_of,
)
from xrt.builder import Tensor
from xrt.builder.record_op import apply, emit
from xrt.graph import DType
from xrt.passes.padding import Extent, pad_dims

S, T = Extent.of("s"), Extent.of("t")
FLOAT, INT, BOOL = DType.FLOAT32, DType.INT64, DType.BOOL
REFUSED: dict[str, tuple[Build, Inputs, str, str]] = {
    "no rule": (lambda x: emit("NonZero", x), X, "s", "there is no rule for its operator"),
    "sums of writes": (
        lambda x, y: emit("ScatterElements", constant(np.zeros((9, 4), "float32")), y % 9, x, axis=0, reduction="add"),
        {"x": (FLOAT, ("s", 4)), "y": (INT, ("s", 4))},
        "s",
        "an entry that is written twice counts twice in reduction 'add'",
    ),
    "writes of another length": (
        lambda x, y: emit("ScatterElements", x, y * 0, emit("Cast", y, to=FLOAT.onnx), axis=2),
        {"x": (FLOAT, (2, "s", 4)), "y": (INT, (2, 3, 4))},
        "s",
        "its operands differ along axis 1",
    ),
    "normalized": (
        lambda x: emit("InstanceNormalization", x, constant(np.ones(3, "float32")), constant(np.ones(3, "float32"))),
        IMAGE,
        "s",
        "it normalizes by statistics over the padded axis",
    ),
    "sorted": (lambda x: apply("TopK", (x, constant([1])), {"axis": 1}, outputs=2), X, "s", "it sorts the padded axis"),
    "joined behind": (
        lambda x: emit("Concat", x, constant(np.ones((2, 1, 4), "float32")), axis=1),
        X,
        "s",
        "it joins something behind a padded axis, so there is padding between the parts",
    ),
    "a fixed extent": (
        lambda x: x + constant(np.ones((5, 1), "float32")),
        X,
        "s",
        "its inputs have the extents s and 5 along one axis, which padding would make unequal",
    ),
    "other extents": (
        lambda x, y: emit("MatMul", x, y),
        {"x": (FLOAT, (2, "s")), "y": (FLOAT, (5, 2))},
        "s",
        "it sums over a padded axis, whose extent is another one on the other side",
    ),
    "a reshape in another order": (
        lambda x: emit("Reshape", x, shape_of(x, 4, -2, 2)),
        X,
        "s",
        "the new shape has 2 where the old one has s",
    ),
    "a reshape to a number": (
        lambda x: emit("Reshape", x, constant([2, 5, 4])),
        X,
        "s",
        "the new shape has 5 where the old one has s",
    ),
    "linear": (
        lambda x: emit("Resize", x, None, constant(np.array([1, 1, 2, 1], "float32")), mode="linear"),
        IMAGE,
        "s",
        "it interpolates, or scales by no whole number",
    ),
    "rounded up": (
        lambda x: emit("MaxPool", x, kernel_shape=[2, 2], ceil_mode=1),
        IMAGE,
        "s",
        "it rounds up (ceil_mode), or gives indices",
    ),
    "divided by fewer": (
        lambda x: emit("AveragePool", x, kernel_shape=[2, 2], pads=[0, 0, 1, 0]),
        IMAGE,
        "s",
        "windows at the end divide by fewer elements",
    ),
    "a size as the result": (lambda x: emit("Shape", x), X, "s", "its result is a size"),
    "backwards": (
        lambda x: emit("Slice", x, constant([-1]), constant([-(2**63)]), constant([1]), constant([-1])),
        X,
        "s",
        "it cuts at places that are not known, or backwards",
    ),
    "reflected": (
        lambda x: emit("Pad", x, constant([0, 0, 0, 0, 2, 0]), mode="reflect"),
        X,
        "s",
        "it cuts, or repeats what is at the end",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_padding_would_change_is_refused_with_the_reason(name: str) -> None:
    build, inputs, dim, reason = REFUSED[name]
    function = make(build, inputs)
    padded = pad_dims(function)
    assert dim not in padded.dims
    refusal = padded.refusals[dim]
    assert reason in refusal.reason
    assert refusal.node in {node.name for node in function.nodes}
    check(function, padded)  # the other dims are padded


def test_the_body_of_a_loop_is_not_followed() -> None:
    def build(x: Tensor) -> Any:
        return emit(
            "If", emit("Greater", emit("ReduceSum", x, keepdims=0), 3.0), then_branch=lambda: x + 1.0, else_branch=lambda: x
        )

    padded = pad_dims(make(build, X))
    assert padded.dims == ()
    assert "body" in padded.refusals["s"].reason


def test_what_no_output_needs_refuses_nothing() -> None:
    function = make(lambda x: (x * x, emit("NonZero", x)), X)
    padded = pad_dims(function.replace(outputs=function.outputs[:1]))
    assert padded.dims == ("s",)


def test_one_dim_is_refused_without_the_other() -> None:
    function = make(
        lambda x: emit("Transpose", emit("NonZero", emit("Slice", x, constant([0]), constant([1]), constant([1])))), BOTH
    )
    assert set(pad_dims(function).refusals) == {"s"}
    function = make(lambda x: emit("Concat", x, x, axis=1), BOTH)
    padded = pad_dims(function)
    assert (padded.dims, set(padded.refusals)) == (("s",), {"t"})
    check(function, padded)


def test_an_input_that_is_updated_in_place_is_not_padded() -> None:
    function = make(lambda x: x + 1.0, X)
    padded = pad_dims(function.replace(aliases=(("x", function.outputs[0].name),)))
    assert "updated in place" in str(padded.refusals["s"])
