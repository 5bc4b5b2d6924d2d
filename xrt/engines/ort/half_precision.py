"""Operators of float16 that ONNX Runtime has no kernel for, written with the casts that it would put in by itself.

The library computes such an operator in float32, between casts of its own, and then takes away each of its casts that meets
another one, the model's included: neither `Cast(x, float16)` nor the operator rounds or overflows any more. Casts that the
model itself has between float32 and float16 it leaves where they are. So XRT writes all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from xrt.engines.ort.library import OrtParameter, schema
from xrt.engines.ort.support import has_kernel
from xrt.errors import ModelError
from xrt.formats.onnx import expand
from xrt.graph import Constant, DType, Function, Node, TensorType, Type, Value, read_attributes, since_version
from xrt.graph.rename import rename_node
from xrt.passes import infer_shapes

__all__ = ["with_casts_of_halves"]


@dataclass(frozen=True, slots=True)
class _Scope:
    """The scope of a node: the Function that contains it, and the types of the values outside of it."""

    function: Function
    outer: Callable[[str], Type | None]
    providers: tuple[str, ...]

    def type_of(self, name: str) -> Type | None:
        return self.function.get_type(name) or self.outer(name)

    def is_half(self, name: str) -> bool:
        type_ = self.type_of(name) if name else None
        return isinstance(type_, TensorType) and type_.dtype is DType.FLOAT16


def with_casts_of_halves(function: Function, providers: tuple[str, ...]) -> Function:
    """Return the Function in which what has no kernel for float16 is computed in float32, between casts, in bodies too.

    Itself where there is no such node. Types of inner values must be known: a value of unknown type is left as it is.
    """
    return _rewrite(_Scope(function, lambda name: None, providers))


def _rewrite(scope: _Scope) -> Function:
    rewriting = _Rewriting(scope, [], dict(scope.function.types), dict(scope.function.constants))
    for node in scope.function.nodes:
        rewriting.add(node.map_bodies(lambda body: _rewrite(_Scope(body, scope.type_of, scope.providers))))
    nodes, old = rewriting.nodes, scope.function.nodes
    unchanged = len(nodes) == len(old) and all(new is one for new, one in zip(nodes, old, strict=True))
    return (
        scope.function if unchanged else scope.function.replace(nodes=nodes, types=rewriting.types, constants=rewriting.constants)
    )


@dataclass(frozen=True, slots=True)
class _Rewriting:
    """A Function while it is rewritten: its nodes so far, and all that is known of its values."""

    scope: _Scope
    nodes: list[Node]
    types: dict[str, Type]
    constants: dict[str, Constant]

    def add(self, node: Node) -> None:
        """Add the node as the library computes it right."""
        if not _lacks_kernel(node, self.scope):
            self.nodes.append(node)
            return
        wide = _computed_in_float32(node, self.scope)
        expansion = None if _has_kernel_for(wide, self.scope) else _expanded(node, self.scope)
        if expansion is None:
            self.nodes.extend(wide.nodes)
            self.types.update(wide.types)
        else:
            self._splice(expansion, node)

    def _splice(self, expansion: Function, node: Node) -> None:
        """Add the nodes of what the operator is defined by, their values named after the node's first result."""
        outer = dict(zip((v.name for v in expansion.inputs), dict.fromkeys(filter(None, node.inputs)), strict=True))
        outer |= dict(zip((v.name for v in expansion.outputs), node.defines, strict=True))
        prefix = next(iter(node.defines))
        names = {name: outer.get(name, f"{prefix}/expanded/{name}") for name in expansion.value_names()} | {"": ""}
        self.nodes.extend(replace(rename_node(part, names, {}), name="") for part in expansion.nodes)
        self.types.update({names[name]: type_ for name, type_ in expansion.types.items() if name in names and name not in outer})
        self.constants.update({names[name]: constant for name, constant in expansion.constants.items()})


def _expanded(node: Node, scope: _Scope) -> Function | None:
    """Return what the operator is defined by, with casts of its own; None where it is defined by nothing else."""
    read = tuple(dict.fromkeys(filter(None, node.inputs)))
    values = ((Value(name, scope.type_of(name)) for name in names) for names in (read, node.defines))
    inputs, outputs = map(tuple, values)
    try:
        expansion = expand(Function(inputs, outputs, (replace(node, control=()),), opsets=scope.function.opsets))
        typed = None if expansion is None or expansion.opset() != scope.function.opset() else infer_shapes(expansion)
    except ModelError:
        return None
    return None if typed is None else _rewrite(_Scope(typed, lambda name: None, scope.providers))


def _lacks_kernel(node: Node, scope: _Scope) -> bool:
    if node.op == "Cast" or node.bodies or not any(map(scope.is_half, node.inputs)):
        return False
    return not has_kernel(node, scope.function, scope.type_of, scope.providers)


@dataclass(frozen=True, slots=True)
class _Wide:
    """A node on float32, between its casts."""

    node: Node
    nodes: tuple[Node, ...]
    types: Mapping[str, Type]
    """Of the values that it brings along."""


def _computed_in_float32(node: Node, scope: _Scope) -> _Wide:
    """Return the node on float32, with a cast before it for each input of float16, and one behind for each such output."""
    tied = set(_of_one_type(node, scope))
    before = {name: f"{name}/float32/{next(iter(node.defines))}" for name in dict.fromkeys(node.inputs) if name in tied}
    behind = {name: f"{name}/float32" for name in node.outputs if name in tied}
    inputs, outputs = (tuple(new.get(n, n) for n in old) for new, old in ((before, node.inputs), (behind, node.outputs)))
    wide = replace(node, inputs=inputs, outputs=outputs)
    types = {new: _as_float32(scope.type_of(name)) for name, new in (before | behind).items()}
    casts_before = [_cast(name, new, DType.FLOAT32) for name, new in before.items()]
    casts_behind = [_cast(new, name, DType.FLOAT16) for name, new in behind.items()]
    return _Wide(wide, (*casts_before, wide, *casts_behind), types)


def _as_float32(type_: Type | None) -> Type:
    return TensorType(DType.FLOAT32, type_.shape if isinstance(type_, TensorType) else None)


def _has_kernel_for(wide: _Wide, scope: _Scope) -> bool:
    return has_kernel(wide.node, scope.function, lambda name: wide.types.get(name) or scope.type_of(name), scope.providers)


def _of_one_type(node: Node, scope: _Scope) -> Iterator[str]:
    """Yield the values of float16 that the schema says are of the same type as an input of it: all of them but those whose
    type an attribute says.
    """
    version = since_version(node, scope.function) or scope.function.opsets.get(node.domain, 1)
    known = schema(node.domain, node.op_type, version)
    if known is None:
        return
    inputs, outputs = list(_paired(known.inputs, node.inputs)), list(_paired(known.outputs, node.outputs))
    halves = {constraint for constraint, name in inputs if scope.is_half(name)}
    yield from (name for constraint, name in (*inputs, *outputs) if constraint in halves and scope.is_half(name))


def _paired(formals: Sequence[OrtParameter], names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the type constraint of each value, the last one's for all that are left, with its name."""
    return ((formals[min(k, len(formals) - 1)].constraint, name) for k, name in enumerate(names) if formals and name)


def _cast(name: str, result: str, to: DType) -> Node:
    return Node("Cast", (name,), (result,), read_attributes({"to": to.onnx}))
