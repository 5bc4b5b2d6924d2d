"""The cases that the ``onnx`` package stores as files: small models, models exported from PyTorch, and the light networks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, OptionalProto, SequenceProto, TensorProto, ValueInfoProto

from xrt.errors import OptionError, did_you_mean
from xrt.testing.cases import ConformanceCase, matches, node_cases, read_value

__all__ = ["GROUPS", "group_cases", "load_light_cases", "load_stored_cases"]

_RTOL, _ATOL = 1e-3, 1e-7
"""What the runner of ``onnx`` grants every stored case, but for the one below."""
_RTOLS = {"densenet121": 2e-3}
_SEED = 0


@lru_cache
def load_stored_cases(group: str) -> tuple[ConformanceCase, ...]:
    """Return the cases of a folder of models, each in one directory with its inputs and outputs; sorted by name."""
    return tuple(case for path in sorted((_data() / group).glob("*/model.onnx")) for case in _load_cases(path, group))


def _data() -> Path:
    return Path(onnx.__file__).parent / "backend" / "test" / "data"


def _load_cases(path: Path, group: str) -> Iterator[ConformanceCase]:
    """Yield a case for each data set; one that is alone bears the folder's name."""
    model = onnx.load(path)
    for number, folder in enumerate(sorted(path.parent.glob("test_data_set_*"))):
        name = path.parent.name if number == 0 else f"{path.parent.name}/{number}"
        inputs = tuple(_read(folder / f"input_{i}.pb", info) for i, info in enumerate(_given(model)))
        expected = tuple(_read(folder / f"output_{i}.pb", info) for i, info in enumerate(model.graph.output))
        yield ConformanceCase(name, model, inputs, expected, _RTOL, _ATOL, group)


def _given(model: ModelProto) -> list[ValueInfoProto]:
    """Return the inputs that a caller gives: weights stand among the inputs of older models too."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return [info for info in model.graph.input if info.name not in weights]


def _read(path: Path, info: ValueInfoProto) -> Any:
    messages = {"sequence_type": SequenceProto, "optional_type": OptionalProto}
    message = messages.get(info.type.WhichOneof("value"), TensorProto)
    return read_value(message.FromString(path.read_bytes()))


@lru_cache
def load_light_cases() -> tuple[ConformanceCase, ...]:
    """Return two cases for each light network: as it comes, and with random weights.

    As it comes, every weight of a tensor is the same number, and so is every output; ``onnx`` stores what must come out.
    With random weights the outputs differ, and the reference engine says what they must be.
    """
    return tuple(case for path in sorted((_data() / "light").glob("light_*.onnx")) for case in _light(path))


def _light(path: Path) -> Iterator[ConformanceCase]:
    model = onnx.load(path)
    stored = read_value(onnx.load_tensor(path.with_name(f"{path.stem}_output_0.pb")))
    inputs = tuple(_ramp(info) for info in _given(model))
    rtol = _RTOLS.get(path.stem.removeprefix("light_"), _RTOL)
    yield ConformanceCase(path.stem, model, inputs, (stored,), rtol, _ATOL, "light")
    yield ConformanceCase(f"{path.stem}_random", model, inputs, (), rtol, _ATOL, "light", _SEED)


def _ramp(info: ValueInfoProto) -> np.ndarray[Any, Any]:
    """Return numbers that climb from 0 to 1: what the stored outputs were computed from."""
    shape = tuple(dim.dim_value for dim in info.type.tensor_type.shape.dim)
    count = int(np.prod(shape))
    return (np.arange(count).reshape(shape) / count).astype(np.float32)


GROUPS: Mapping[str, Callable[[], Sequence[ConformanceCase]]] = MappingProxyType(
    {
        "node": node_cases,
        **{name: partial(load_stored_cases, name) for name in ("simple", "pytorch-operator", "pytorch-converted")},
        "light": load_light_cases,
    }
)
"""What makes the cases of each group. Those of ``node`` are one operator each, or the expansion of one; the others are models."""


def group_cases(
    groups: Sequence[str] = (), pattern: str = "*", *, shard: tuple[int, int] = (0, 1)
) -> tuple[ConformanceCase, ...]:
    """Return the cases of the groups (of all, when none is named) whose names match, or the i-th of n shares of them.

    A share takes every n-th case, so that it has some of every group and of every family of operators. Raises
    OptionError for a group or a share that there is not.
    """
    for name in groups:
        if name not in GROUPS:
            raise OptionError(f"there is no group {name!r}.{did_you_mean(name, GROUPS)} There is: {', '.join(GROUPS)}")
    index, count = shard
    if not 0 <= index < count:
        raise OptionError(f"a share is (i, n) with i from 0 to n-1; got {shard!r}")
    chosen = [node_cases(pattern) if name == "node" else make() for name, make in GROUPS.items() if name in (groups or GROUPS)]
    return tuple(case for cases in chosen for case in cases if matches(case.name, pattern))[index::count]
