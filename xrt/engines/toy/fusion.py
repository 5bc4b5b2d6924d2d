"""Chains of elementwise operators as one kernel of a device.

A node joins the chain of its one reader. What comes out is the chain's source in CUDA C++, a line per node, and its meaning: the
kernels of its nodes one after the other. Both round after each operator, so that a chain computes what its nodes do.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from xrt.engines.contract.device import Accelerator, Elementwise
from xrt.engines.contract.op_table import Kernel
from xrt.engines.toy.kernel_context import KernelContext
from xrt.graph import DType, Function, Node, TensorType

if TYPE_CHECKING:
    from xrt.engines.toy.kernel_selection import KernelSelection
    from xrt.engines.toy.table import Run

__all__ = ["Chain", "find_chains", "write_chain_source"]

MOST_READS = 24
"""Arrays that one kernel reads at most."""
MOST_NODES = 200
"""Nodes of one chain, so that its source stays small."""

NUMBERS = {DType.FLOAT32: ("float", "f"), DType.FLOAT64: ("double", "")}
"""Element types of chains, with C's word for them and the suffix of its literals."""

Write: TypeAlias = Callable[[Sequence[str], Mapping[str, str]], str]
"""Takes operands, and attributes as literals; returns an expression of C."""


def _of(text: str, **defaults: float) -> tuple[Write, Mapping[str, float]]:
    """Return what writes an expression; ``{a}`` and ``{b}`` are operands, other words in braces attributes."""

    def write(operands: Sequence[str], attributes: Mapping[str, str]) -> str:
        return text.format(**dict(zip("ab", operands, strict=False)), **attributes)

    return write, defaults


def _folded(text: str) -> tuple[Write, Mapping[str, float]]:
    """Return what writes an expression of any number of operands, two at a time."""

    def write(operands: Sequence[str], attributes: Mapping[str, str]) -> str:
        result = operands[0]
        for operand in operands[1:]:
            result = text.format(a=result, b=operand)
        return result

    return write, {}


_EXPRESSIONS: dict[str, tuple[Write, Mapping[str, float]]] = {
    "Abs": _of("fabs({a})"),
    "Add": _of("({a} + {b})"),
    "Ceil": _of("ceil({a})"),
    "Cos": _of("cos({a})"),
    "Div": _of("({a} / {b})"),
    "Elu": _of("({a} < 0 ? {alpha} * expm1({a}) : {a})", alpha=1.0),
    "Erf": _of("erf({a})"),
    "Exp": _of("exp({a})"),
    "Floor": _of("floor({a})"),
    "HardSigmoid": _of(
        "({line} < 0 ? {zero} : {line} > 1 ? {one} : {line})".replace("{line}", "({alpha} * {a} + {beta})"),
        alpha=0.2,
        beta=0.5,
        zero=0.0,
        one=1.0,
    ),
    "Identity": _of("{a}"),
    "LeakyRelu": _of("({a} < 0 ? {alpha} * {a} : {a})", alpha=0.01),
    "Log": _of("log({a})"),
    "Max": _folded("({a} != {a} || {b} != {b} ? {a} + {b} : {a} > {b} ? {a} : {b})"),
    "Min": _folded("({a} != {a} || {b} != {b} ? {a} + {b} : {a} < {b} ? {a} : {b})"),
    "Mul": _of("({a} * {b})"),
    "Neg": _of("(-{a})"),
    "Pow": _of("pow({a}, {b})"),
    "Reciprocal": _of("({one} / {a})", one=1.0),
    "Relu": _of("({a} < 0 ? {zero} : {a})", zero=0.0),
    "Round": _of("rint({a})"),
    "Sigmoid": _of("({one} / ({one} + exp(-{a})))", one=1.0),
    "Sin": _of("sin({a})"),
    "Softplus": _of("(({a} > 0 ? {a} : {zero}) + log1p(exp(-fabs({a}))))", zero=0.0),
    "Softsign": _of("({a} / ({one} + fabs({a})))", one=1.0),
    "Sqrt": _of("sqrt({a})"),
    "Sub": _of("({a} - {b})"),
    "Sum": _folded("({a} + {b})"),
    "Tanh": _of("tanh({a})"),
}
"""Operators by the expression of their result."""


def write_chain_source(node: Node, operands: Sequence[str], dtype: DType) -> str:
    """Return the C expression of a node's result from those of its operands."""
    write, defaults = _EXPRESSIONS[node.op_type]
    suffix = NUMBERS[dtype][1]
    values = {name: float(np.float32(node.attr(name, default))) for name, default in defaults.items()}
    return write(operands, {name: f"{value!r}{suffix}" for name, value in values.items()})


@dataclass(slots=True)
class Chain:
    """Nodes that become one kernel; the last one's output is the kernel's."""

    function: Function
    dtype: DType
    nodes: list[Node]
    kernels: dict[str, Kernel[Any]] = field(default_factory=dict)
    """By node: its own kernel, which is what it means."""

    @property
    def last(self) -> Node:
        return self.nodes[-1]

    @property
    def reads(self) -> tuple[str, ...]:
        """What comes from outside, each once."""
        made = {name for node in self.nodes for name in node.outputs}
        return tuple(dict.fromkeys(name for node in self.nodes for name in node.inputs if name not in made))

    def source(self) -> str:
        """Return the chain in CUDA C++, of one element."""
        word = NUMBERS[self.dtype][0]
        names = {name: f"x{i}" for i, name in enumerate(self.reads)}
        lines = []
        for i, node in enumerate(self.nodes):
            lines.append(f"const {word} v{i} = {write_chain_source(node, [names[name] for name in node.inputs], self.dtype)};")
            names[node.outputs[0]] = f"v{i}"
        return "\n".join([*lines, f"y = v{len(self.nodes) - 1};"])

    def compute(self, xp: Any, *arrays: Any) -> Any:
        """Compute the chain of whole arrays, node by node."""
        values = dict(zip(self.reads, arrays, strict=True))
        for node in self.nodes:
            run = self.kernels[node.name].code(node, KernelContext(node, self.function, xp, _no_body))
            values[node.outputs[0]] = run(*[values[name] for name in node.inputs])
        return values[self.last.outputs[0]]

    def run(self, accelerator: Accelerator) -> Run:
        """Return the chain as one kernel of the device."""
        source = self.source()
        digest = hashlib.sha256(f"{self.dtype}{len(self.reads)}{source}".encode()).hexdigest()[:16]
        dtype = self.dtype.numpy
        return accelerator.fuse(Elementwise(f"xrt_chain_{digest}", (dtype,) * len(self.reads), dtype, source, self.compute))


def _no_body(function: Function) -> Any:
    raise TypeError(f"an elementwise operator has no body {function.name!r}")


def find_chains(function: Function, choice: KernelSelection, besides: frozenset[str]) -> dict[str, Chain]:
    """Return by node the chain that it belongs to, of at least two nodes; values ``besides`` are no part of any. Linear."""
    found: dict[str, Chain] = {}
    waited_for = {name for node in function.nodes for name in node.control}
    for node in function.nodes:
        kernel = None if besides.intersection(node.outputs) or node.name in waited_for else _kernel(node, function, choice)
        dtype = _dtype(node, function)
        if kernel is None or dtype is None:
            continue
        chain = Chain(function, dtype, [node], {node.name: kernel})
        for name in dict.fromkeys(node.inputs):
            _absorb(chain, name, found)
        found.update(dict.fromkeys((member.name for member in chain.nodes), chain))
    return {name: chain for name, chain in found.items() if len(chain.nodes) > 1}


def _absorb(chain: Chain, name: str, found: Mapping[str, Chain]) -> None:
    """Take in the chain that makes an operand, if it has no other reader and the two are not too large together."""
    function = chain.function
    producer = function.producer(name)
    before = found.get(producer.name) if producer is not None else None
    if before is None or before.last is not producer or before is chain:
        return
    alone = len({use.node.name for use in function.users(name)}) == 1 and name not in {v.name for v in function.outputs}
    if not alone or before.dtype is not chain.dtype or len(before.nodes) + len(chain.nodes) > MOST_NODES:
        return
    if len({*before.reads, *chain.reads}) <= MOST_READS:
        chain.nodes = [*before.nodes, *chain.nodes]
        chain.kernels |= before.kernels


def _kernel(node: Node, function: Function, choice: KernelSelection) -> Kernel[Any] | None:
    if node.domain or node.op_type not in _EXPRESSIONS or node.control or len(node.outputs) != 1 or "" in node.inputs:
        return None
    if node.attr("broadcast", 0) or any(not math.isfinite(node.attr(name, 0.0)) for name in _EXPRESSIONS[node.op_type][1]):
        return None
    found = choice.in_python(node, function)
    return found if isinstance(found, Kernel) else None


def _dtype(node: Node, function: Function) -> DType | None:
    """Return the one element type of all that the node reads and makes, if chains have it."""
    types = [function.get_type(name) for name in (*node.inputs, *node.outputs) if name]
    dtypes = {type_.dtype if isinstance(type_, TensorType) else None for type_ in types}
    (dtype, *others) = dtypes
    return dtype if not others and dtype in NUMBERS else None
