"""The small models that the onnx package stores with their inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, ValueInfoProto, backend, numpy_helper

from tests.engines.toy_running import ready
from xrt.formats.onnx import load

DATA = Path(next(iter(backend.__path__))) / "test" / "data"
DECLINED = {"test_gradient_of_add", "test_gradient_of_add_and_mul"}
"""Models with Gradient, which reads the graph around it and is no operator of its inputs alone."""


def models() -> list[Path]:
    groups = ("simple", "pytorch-operator", "pytorch-converted")
    found = [path for group in groups for path in sorted((DATA / group).glob("*/model.onnx"))]
    return [path for path in found if path.parent.name not in DECLINED]


def value(path: Path, info: ValueInfoProto) -> Any:
    """Return a stored tensor or sequence as engines take it."""
    if info.type.HasField("sequence_type"):
        return [tidy(item) for item in numpy_helper.to_list(onnx.SequenceProto.FromString(path.read_bytes()))]
    return tidy(numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes())))


def tidy(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if array.dtype.kind not in "OUS":
        return array
    text = np.empty(array.shape, dtype=object)
    text.reshape(-1)[:] = [item.decode() if isinstance(item, bytes) else str(item) for item in array.flat]
    return text


def data_sets(path: Path, model: ModelProto) -> Iterator[tuple[list[Any], list[Any]]]:
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [info for info in model.graph.input if info.name not in weights]
    for folder in sorted(path.parent.glob("test_data_set_*")):
        yield (
            [value(folder / f"input_{i}.pb", info) for i, info in enumerate(inputs)],
            [value(folder / f"output_{i}.pb", info) for i, info in enumerate(model.graph.output)],
        )


def agree(actual: Any, expected: Any) -> None:
    if isinstance(expected, list):
        assert len(actual) == len(expected)
        for a, e in zip(actual, expected, strict=True):
            agree(a, e)
        return
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    if expected.dtype == object:
        assert actual.tolist() == expected.tolist()
    else:
        np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-5)


def test_there_are_models() -> None:
    assert len(models()) > 100


@pytest.mark.parametrize("path", models(), ids=lambda path: path.parent.name)
def test_a_stored_model_gives_its_stored_outputs(path: Path) -> None:
    executable = ready(load(path))
    sets = list(data_sets(path, onnx.load(path)))
    assert sets
    for inputs, expected in sets:
        agree(executable.run(inputs), expected)
