"""Which int64 values are known to fit in the int32 ones that OpenVINO's CPU plugin computes with instead."""

from __future__ import annotations

from collections.abc import Mapping

from xrt.graph import DType, Function, Node, TensorType

__all__ = ["fits_in_int32"]

DEEPEST = 16
"""How many operators a value is followed back through."""

_COUNTS: Mapping[str, tuple[int, ...]] = {
    "ArgMax": (0,),
    "ArgMin": (0,),
    "NonMaxSuppression": (0,),
    "NonZero": (0,),
    "Shape": (0,),
    "Size": (0,),
    "TopK": (1,),
}
"""Operators that count elements or number them, with the outputs that do."""

_MOVES = frozenset(
    {
        *(
            "Compress",
            "DepthToSpace",
            "Expand",
            "Flatten",
            "Gather",
            "GatherElements",
            "GatherND",
            "Identity",
            "Reshape",
            "Slice",
        ),
        *("SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
    }
)
"""Operators whose results are elements of their first input."""

_FROM_ALL = frozenset({"Concat", "Max", "Min", "Where"})
"""Operators whose results are elements of their inputs."""


def fits_in_int32(name: str, function: Function, deepest: int = DEEPEST) -> bool:
    """Whether every element is known to fit: a constant's that do, counts and places, and what moves such about."""
    constant = function.constants.get(name)
    if constant is not None:
        array = constant.array
        return not array.size or (int(array.min()) >= -(1 << 31) and int(array.max()) < 1 << 31)
    maker = function.producer(name)
    if maker is None or maker.domain or not deepest:
        return False
    return _makes_fitting(maker, name, function, deepest - 1)


def _makes_fitting(maker: Node, name: str, function: Function, deepest: int) -> bool:
    place = maker.outputs.index(name)
    if place in _COUNTS.get(maker.op_type, ()):
        return True
    if maker.op_type == "Cast":
        return _is_narrow(maker.inputs[0], function)
    if maker.op_type in _MOVES:
        return fits_in_int32(maker.inputs[0], function, deepest)
    return maker.op_type in _FROM_ALL and all(
        _is_narrow(read, function) or fits_in_int32(read, function, deepest) for read in maker.inputs if read
    )


def _is_narrow(name: str, function: Function) -> bool:
    type_ = function.type_of(name)
    return isinstance(type_, TensorType) and type_.dtype in _NARROW


_NARROW = frozenset({DType.BOOL, DType.INT8, DType.UINT8, DType.INT16, DType.UINT16, DType.INT32})
