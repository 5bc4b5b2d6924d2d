"""Which dim of a model counts requests: the symbolic dim that all inputs and outputs have as their first axis."""

from __future__ import annotations

from collections.abc import Sequence

from xrt.errors import OptionError, did_you_mean
from xrt.graph import TensorType, Value
from xrt.placement.sizes import list_open_axes

__all__ = ["find_batch_dim"]


def find_batch_dim(inputs: Sequence[Value], outputs: Sequence[Value], name: str | None = None) -> tuple[str, str]:
    """Return the dim that counts requests, and why there is none where it is empty.

    A dim that is named must be the first axis of each input that has it, and of each output whose extents are known; an input
    that lacks it is shared by all requests. Raises OptionError where that is not so.
    """
    if name is not None:
        _check_named(name, inputs, outputs)
        return name, ""
    if not inputs:
        return "", "the model has no input"
    first = _find_first(inputs[0])
    if first is None:
        return "", f"the first extent of input {inputs[0].name!r} is no symbolic dim"
    for kind, values in (("input", inputs), ("output", outputs)):
        for value in values:
            if _find_first(value) != first:
                found = f"dim {first!r} is the first extent of input {inputs[0].name!r} and not of {kind} {value.name!r}"
                return "", f"{found}; batch_dim={first!r} (--batch-dim) asks for it all the same"
    for place, axis, other in list_open_axes(inputs):
        if axis and other == first:
            return "", f"dim {first!r} is another extent of input {inputs[place].name!r} too"
    return first, ""


def _check_named(name: str, inputs: Sequence[Value], outputs: Sequence[Value]) -> None:
    axes = list(list_open_axes(inputs))
    names = list(dict.fromkeys(one for _, _, one in axes))
    if name not in names:
        raise OptionError(f"batch_dim names {name!r}, which is no symbolic dim of the inputs.{did_you_mean(name, names)}")
    for place, axis, one in axes:
        if one == name and axis:
            raise OptionError(
                f"batch_dim={name!r} is extent {axis} of input {inputs[place].name!r}; requests are joined on extent 0"
            )
    for value in outputs:
        first = _find_first(value)
        if first is not None and first != name:
            raise OptionError(
                f"batch_dim={name!r} is not the first extent of output {value.name!r}, which is {first!r}: its rows are not "
                f"those of the requests"
            )


def _find_first(value: Value) -> str | None:
    """Return the first extent of a value where that is a named symbolic dim."""
    shape = value.type.shape if isinstance(value.type, TensorType) else None
    return shape[0] if shape and isinstance(shape[0], str) else None
