"""Running one node, or a few, on the Python kernels of the toy engine."""

from __future__ import annotations

from typing import Any

import numpy as np

from xrt.engines import CompileContext, Executable
from xrt.engines.toy import Toy
from xrt.graph import Constant, DType, Function, Node, TensorType, Value, latest_opset, read_attributes
from xrt.testing.corpus.entry import f32, i64

__all__ = ["Array", "drawn", "f32", "function", "i64", "node", "one", "ready", "run", "same", "typed"]

Array = np.ndarray[Any, Any]
GENERATOR = np.random.default_rng(3)


def drawn(*shape: int) -> Array:
    """Return random numbers, others each time."""
    return GENERATOR.standard_normal(shape).astype(np.float32)


def node(op_type: str, inputs: str, outputs: str, **attributes: Any) -> Node:
    """Return a node from names with blanks between them; ``_`` is a left-out one."""
    names = [tuple("" if n == "_" else n for n in text.split()) for text in (inputs, outputs)]
    domain = attributes.pop("domain", "")
    return Node(op_type, *names, attributes=read_attributes(attributes), domain=domain, name=f"{op_type.lower()}_{names[1][0]}")


def function(
    inputs: str, outputs: str, *nodes: Node, opset: int | None = None, constants: dict[str, Array] | None = None, **domains: int
) -> Function:
    return Function(
        inputs=tuple(Value(name) for name in inputs.split()),
        outputs=tuple(Value(name) for name in outputs.split()),
        nodes=nodes,
        constants={name: Constant(array) for name, array in (constants or {}).items()},
        opsets={"": opset or latest_opset(), **domains},
    )


def typed(name: str, array: Array) -> Value:
    return Value(name, TensorType(DType.from_array(array), array.shape))


def ready(f: Function, engine: Toy = Toy(native="off")) -> Executable:
    executable = engine.compile(f, CompileContext())
    executable.prepare()
    return executable


def run(f: Function, *inputs: Any) -> list[Any]:
    return ready(f).run(inputs)


def one(op_type: str, *inputs: Any, opset: int | None = None, outputs: int = 1, domain: str = "", **attributes: Any) -> Any:
    """Run one node; None is a left-out input. Returns the output, or the list of several."""
    names = [f"x{i}" if x is not None else "_" for i, x in enumerate(inputs)]
    results = " ".join(f"y{i}" for i in range(outputs))
    single = node(op_type, " ".join(names), results, domain=domain, **attributes)
    arrays = {name: x for name, x in zip(names, inputs, strict=True) if x is not None}
    f = function(" ".join(arrays), results, single, opset=opset, **({domain: opset or 1} if domain else {}))
    values = (typed(name, x) if isinstance(x, np.ndarray) else Value(name) for name, x in arrays.items())
    got = run(f.replace(inputs=tuple(values)), *arrays.values())
    return got[0] if outputs == 1 else got


def same(actual: Any, expected: Any) -> None:
    """Demand equal dtype, shape and values, to float32's rounding: a sum is as inexact as its summands are large."""
    assert isinstance(actual, np.ndarray), type(actual)
    expected = np.asarray(expected)
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    if actual.dtype.kind in "fc":
        largest = np.max(np.abs(expected[np.isfinite(expected)]), initial=1.0)
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6 * largest)
    else:
        np.testing.assert_array_equal(actual, expected)
