"""Why ONNX Runtime cannot take a node.

Asked in this order: is it known to go wrong (`gaps`); can its values cross the border; does the library know the
operator at that version; has it a kernel for these types. Where it has none it may still run the node, by expanding an
operator that is defined as a function, or by casting to a type that has a kernel: then a session over the one node tells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

from xrt.engines.ort.gaps import known_gap
from xrt.engines.ort.library import Formal, Kernel, Schema, kernels, newest_opset, schema
from xrt.engines.ort.names import LIBRARY, plain_type, type_name
from xrt.engines.ort.trial import why_refused
from xrt.engines.ort.values import why_not_carried
from xrt.graph import Function, Node, Type, since_version

__all__ = ["why_not"]

TypeOf: TypeAlias = Callable[[str], Type | None]
Bound: TypeAlias = Mapping[str, frozenset[str]]

_CPU = "CPUExecutionProvider"


def why_not(node: Node, function: Function, providers: tuple[str, ...]) -> str | None:
    """Return why ONNX Runtime cannot take the node with those execution providers; None when it can."""
    return _why_not(node, function, function.type_of, providers) or _why_not_bodies(node, function.type_of, providers)


def _why_not(node: Node, function: Function, type_of: TypeOf, providers: tuple[str, ...]) -> str | None:
    version = function.opsets.get(node.domain)
    if version is None:
        return f"the function imports no opset for domain {node.domain!r}"
    reason = known_gap(node, function, type_of) or _why_not_crossing(node, function, type_of)
    if reason:
        return reason
    since = _since(node, function, version)
    types = tuple(_name(type_of(name)) for name in node.inputs), tuple(_name(type_of(name)) for name in node.outputs)
    reason = _why_no_kernel(node.domain, node.op_type, since, *types, providers)
    if reason is None or None in types[0]:
        return reason
    refusal = why_refused(node, function, type_of, providers)
    return refusal and reason


def _why_not_bodies(node: Node, type_of: TypeOf, providers: tuple[str, ...]) -> str | None:
    """Return the reason of the first node inside the bodies that has one. Inside, outer values have their outer types."""
    for body in node.bodies:
        inside = _nested(body, type_of)
        for inner in body.nodes:
            reason = _why_not(inner, body, inside, providers) or _why_not_bodies(inner, inside, providers)
            if reason:
                return f"in its body, node {inner.name!r} ({inner.op}): {reason}"
    return None


def _nested(body: Function, outer: TypeOf) -> TypeOf:
    def type_of(name: str) -> Type | None:
        return body.type_of(name) or outer(name)

    return type_of


def _why_not_crossing(node: Node, function: Function, type_of: TypeOf) -> str | None:
    """Return why a value of the node cannot enter or leave, as they must where the node is a region of its own."""
    for name in (*node.uses, *node.defines):
        reason = name not in function.constants and why_not_carried(name, type_of(name))
        if reason:
            return reason
    return None


def _since(node: Node, function: Function, version: int) -> int:
    """Return the version at which the operator took its present meaning, by onnx or, in other domains, by the library."""
    since = since_version(node, function)
    if since is not None:
        return since
    known = schema(node.domain, node.op_type, version)
    return known.since if known else version


def _name(type_: Type | None) -> str | None:
    return None if type_ is None else type_name(type_)


@lru_cache(maxsize=16384)
def _why_no_kernel(
    domain: str, op_type: str, since: int, inputs: tuple[str | None, ...], outputs: tuple[str | None, ...], providers: tuple[str, ...]
) -> str | None:
    """Return why no kernel of the providers serves the operator on those types; an unknown type counts as served."""
    op = f"{domain}.{op_type}" if domain else op_type
    if not domain and since > newest_opset():
        return f"{op} took its present meaning in opset {since}, and {LIBRARY} reads opsets up to {newest_opset()}"
    known = schema(domain, op_type, since)
    if known is None:
        return f"{LIBRARY} does not know {op}"
    if known.deprecated:
        return f"{LIBRARY} knows {op} only as deprecated since opset {known.since}"
    served = [k for k in kernels(domain, op_type) if k.serves(known.since) and k.provider in (*providers, _CPU)]
    if not served:
        return f"{LIBRARY} has no kernel for {op} as of opset {known.since}"
    bound = _bound(known, inputs, outputs)
    if any(_accepts(kernel, bound) for kernel in served):
        return None
    return f"{LIBRARY} computes {op} {_for_which_types(known, served, bound)}"


def _bound(known: Schema, inputs: Sequence[str | None], outputs: Sequence[str | None]) -> Bound:
    """Return the types that stand for each type constraint and each formal parameter: kernels refer to either."""
    found: dict[str, set[str]] = {}
    for formal, type_ in (*_paired(known.inputs, inputs), *_paired(known.outputs, outputs)):
        if type_ is not None:
            found.setdefault(formal.constraint, set()).add(type_)
            found.setdefault(formal.name, set()).add(type_)
    return {name: frozenset(types) for name, types in found.items()}


def _paired(formals: Sequence[Formal], types: Sequence[str | None]) -> Iterator[tuple[Formal, str | None]]:
    """Yield each type with its formal parameter; the last one takes all that are left, being variadic."""
    for index, type_ in enumerate(types):
        if formals:
            yield formals[min(index, len(formals) - 1)], type_


def _accepts(kernel: Kernel, bound: Bound) -> bool:
    return all(bound[name] <= allowed for name, allowed in kernel.types.items() if name in bound)


def _for_which_types(known: Schema, served: Sequence[Kernel], bound: Bound) -> str:
    """Return which types the kernels take and which are here, for the first constraint that none of them meets."""
    for name, types in bound.items():
        offered = frozenset().union(*(kernel.types[name] for kernel in served if name in kernel.types))
        if offered and not types <= offered:
            return f"for {_parameters(known, name)} of {_listed(offered)}; here it is {_listed(types)}"
    here = ", ".join(f"{name} {_listed(bound[name])}" for name in sorted({n for k in served for n in k.types} & set(bound)))
    return f"for other combinations of types than {here}"


def _parameters(known: Schema, constraint: str) -> str:
    """Return the names of the parameters that a constraint binds, for people: ``A and B``."""
    names = dict.fromkeys(f.name for f in (*known.inputs, *known.outputs) if constraint in (f.constraint, f.name))
    return " and ".join(names)


def _listed(types: frozenset[str]) -> str:
    return ", ".join(sorted(plain_type(name) for name in types))
