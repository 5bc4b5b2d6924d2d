"""Semantic checks of a Function, as tables of rules: operators, types, opsets, aliases, states and bodies.

Structural errors (a value defined twice, a cycle, a missing control predecessor) are already rejected by Function. Operators
of domains that ``onnx`` does not describe are opaque: only the import of their domain is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

from xrt.errors import ModelError, did_you_mean
from xrt.graph.device_names import is_device
from xrt.graph.schemas import Operator, bind_types, find_operator, format_domain, latest_version, why_deprecated, why_unknown
from xrt.graph.state import find_violations as find_state_violations
from xrt.graph.types import SequenceType, TensorType, Type, may_equal

if TYPE_CHECKING:
    from xrt.graph.function import Function
    from xrt.graph.node import Node


MAX_LISTED_VIOLATIONS = 20
"""Violations that one error lists."""
LAUNCH_DOMAIN = "xrt"
"""Domain of launch nodes. It has no versions, so Functions need not import it."""
MAX_HINT_CANDIDATES = 2000
"""Names that are searched for a similar one; a model may have millions."""
Rule: TypeAlias = Callable[..., Iterator[str]]
"""Yields a text for each violation: in a `_Scope` by a rule of Functions, in a `_Case` by a rule of nodes."""


@dataclass(frozen=True, slots=True)
class _Scope:
    """A Function and the scope that encloses it."""

    function: Function
    prefix: str = ""
    """Prefix of messages, which names the body; empty for the outermost Function."""
    outer: _Scope | None = None
    """For a body: the scope of the node that has the body. Captured values are defined there."""

    def type_of(self, name: str) -> Type | None:
        """The type of a value defined or captured by the Function; None if unknown."""
        if self.outer is None or self.function.defines(name):
            return self.function.get_type(name)
        return self.outer.type_of(name)


@dataclass(frozen=True, slots=True)
class _Case:
    """A node to check, with its operator. The operator is None if ``onnx`` does not describe the domain."""

    node: Node
    scope: _Scope
    operator: Operator | None
    version: int | None
    """The imported version of the node's domain."""


def verify(function: Function) -> None:
    """Check all rules; raise ModelError that lists the first `MAX_LISTED_VIOLATIONS` violations.

    Linear: each group of nodes that differ only in names is checked once.
    """
    _raise_violations(function, _find_violations(_Scope(function), FUNCTION_RULES, NODE_RULES))


def verify_types(function: Function) -> None:
    """Raise ModelError if inferred types contradict the operators. Linear.

    Call it after type inference: `verify` only sees declared types, and most models declare none for inner values.
    """
    _raise_violations(function, _find_violations(_Scope(function), (_check_aliases, _check_states), TYPE_RULES))


def _raise_violations(function: Function, violations: Iterator[str]) -> None:
    # Find one more than is listed, to know whether there are more. The generator does not search the rest.
    first_violations = list(islice(violations, MAX_LISTED_VIOLATIONS + 1))
    if not first_violations:
        return
    if len(first_violations) == 1:
        raise ModelError(f"function {function.name!r} is not valid: {first_violations[0]}")
    listed = "".join(f"\n  - {text}" for text in first_violations[:MAX_LISTED_VIOLATIONS])
    more = "\n  - and more" if len(first_violations) > MAX_LISTED_VIOLATIONS else ""
    count = min(len(first_violations), MAX_LISTED_VIOLATIONS)
    raise ModelError(f"function {function.name!r} breaks {count} rules:{listed}{more}")


def _find_violations(scope: _Scope, rules: Sequence[Rule], node_rules: Sequence[Rule]) -> Iterator[str]:
    for rule in rules:
        yield from (scope.prefix + text for text in rule(scope))
    valid_keys: set[object] = set()
    for node in scope.function.nodes:
        key = _make_key(node, scope)
        if key in valid_keys:
            continue
        version = scope.function.opsets.get(node.domain)
        operator = None if version is None else find_operator(node.op_type, version, node.domain)
        case = _Case(node, scope, operator, version)
        texts = [text for rule in node_rules for text in rule(case)]
        yield from (f"{scope.prefix}node {node.name!r} ({node.op}): {text}" for text in texts)
        # A violation is reported for every node, and bodies are checked one by one.
        if not texts and not node.bodies:
            valid_keys.add(key)
        for body in node.bodies:
            prefix = f"{scope.prefix}in body {body.name!r} of node {node.name!r}: "
            yield from _find_violations(_Scope(body, prefix, scope), rules, node_rules)


def _make_key(node: Node, scope: _Scope) -> object:
    """Make a key of everything that the rules depend on: nodes with equal keys have equal violations."""
    type_of = scope.function.get_type if scope.outer is None else scope.type_of
    types = []
    for name in node.inputs:
        type_ = type_of(name)
        types.append(type_.dtype if isinstance(type_, TensorType) else type_)  # the rules ignore extents
    present_inputs = tuple(map(bool, node.inputs))
    attributes = tuple([(attribute.name, attribute.kind) for attribute in node.attributes])
    return node.op_type, node.domain, tuple(types), present_inputs, len(node.outputs), attributes, node.device


# ---------------------------------------------------------------------- rules of a function


def _check_captures(scope: _Scope) -> Iterator[str]:
    if scope.outer is not None:
        return  # what a body captures is defined by the Function around it, or captured there too and reported once
    for name in scope.function.captures:
        hint = did_you_mean(name, islice(scope.function.value_names(), MAX_HINT_CANDIDATES))
        yield f"{_describe_reader(scope.function, name)} {name!r}, which nothing defines.{hint}"


def _describe_reader(function: Function, name: str) -> str:
    for holder, node in function.walk():
        if name in node.inputs:
            location = "" if holder is function else f" in body {holder.name!r}"
            return f"node {node.name!r} ({node.op}){location} reads"
    return "an output is" if any(value.name == name for value in function.outputs) else "the output of a body is"


def _check_value_names(scope: _Scope) -> Iterator[str]:
    for kind, values in (("input", scope.function.inputs), ("output", scope.function.outputs)):
        for index, value in enumerate(values):
            if not value.name:
                yield f"{kind} {index + 1} has no name"


def _check_opset_versions(scope: _Scope) -> Iterator[str]:
    for domain, version in scope.function.opsets.items():
        newest = latest_version(domain)
        if newest and not 1 <= version <= newest:
            advice = "; a newer onnx may know it" if version > newest else ""
            yield f"opset {version} of {format_domain(domain)} is not known: the installed onnx knows 1 to {newest}{advice}"


def _check_declared_types(scope: _Scope) -> Iterator[str]:
    function = scope.function
    declared = [*function.types.items(), *((v.name, v.type) for v in function.outputs)]
    input_types = {v.name: v.type for v in function.inputs}
    for name, type_ in declared:
        actual = function.constants[name].type if name in function.constants else input_types.get(name)
        if actual is not None and type_ is not None and not may_equal(type_, actual):
            kind = "constant" if name in function.constants else "input"
            yield f"{kind} {name!r} is {actual}, but is also declared as {type_}"


def _check_aliases(scope: _Scope) -> Iterator[str]:
    function = scope.function
    inputs = [value.name for value in function.inputs]
    outputs = [value.name for value in function.outputs]
    seen: set[str] = set()
    for target, source in function.aliases:  # an input, and the output that holds its next value
        if target not in inputs:
            yield f"alias {target!r} of {source!r}: {target!r} is not an input.{did_you_mean(target, inputs)}"
        elif source not in outputs:
            yield f"alias {target!r} of {source!r}: {source!r} is not an output.{did_you_mean(source, outputs)}"
        elif target in seen:
            yield f"input {target!r} is updated by two aliases; its buffer can hold one value"
        else:
            input_type, output_type = function.get_type(target), function.get_type(source)
            alias = f"alias {target!r} of {source!r}: the input is {input_type}"
            if input_type is not None and output_type is not None and not may_equal(input_type, output_type):
                yield f"{alias}, the output {output_type}; they must be of one type"
            elif input_type is not None and not isinstance(input_type, TensorType):
                yield f"{alias}; only a tensor has a buffer to update"
        seen.add(target)


def _check_states(scope: _Scope) -> Iterator[str]:
    return find_state_violations(scope.function)


def _check_body_opsets(scope: _Scope) -> Iterator[str]:
    for node in scope.function.nodes:
        for body in node.bodies:
            if body.opsets != scope.function.opsets:
                yield f"body {body.name!r} of node {node.name!r} imports other opsets than the function around it"


FUNCTION_RULES = (
    _check_captures,
    _check_value_names,
    _check_opset_versions,
    _check_declared_types,
    _check_aliases,
    _check_states,
    _check_body_opsets,
)


# ---------------------------------------------------------------------- rules of a node


def _check_domain(case: _Case) -> Iterator[str]:
    if case.version is None and case.node.domain != LAUNCH_DOMAIN:
        imported = ", ".join(format_domain(domain) for domain in case.scope.function.opsets) or "none"
        yield f"the function imports no opset for {format_domain(case.node.domain)} (it imports: {imported})"


def _check_operator(case: _Case) -> Iterator[str]:
    node = case.node
    newest = latest_version(node.domain)
    if case.version is None or not newest or not 1 <= case.version <= newest:
        return
    if case.operator is None:
        yield why_unknown(node.op_type, case.version, node.domain)
    elif case.operator.is_deprecated:
        yield why_deprecated(case.operator, case.version)


def _check_inputs(case: _Case) -> Iterator[str]:
    operator, inputs = case.operator, case.node.inputs
    if operator is None:
        return
    if not operator.allows_inputs(len(inputs)):
        yield f"takes {operator.input_count} input(s); it has {len(inputs)}"
        return
    for index, name in enumerate(inputs):
        if not name and not operator.formal_input(index).is_optional:
            yield f"input {index + 1} ({operator.formal_input(index).name}) is omitted, but the operator requires it"


def _check_outputs(case: _Case) -> Iterator[str]:
    if case.operator is not None and not case.operator.allows_outputs(len(case.node.outputs)):
        yield f"has {case.operator.output_count} output(s); the node defines {len(case.node.outputs)}"


def _check_attributes(case: _Case) -> Iterator[str]:
    if case.operator is None:
        return
    formals = case.operator.attributes
    for attribute in case.node.attributes:
        formal = formals.get(attribute.name)
        if formal is None:
            hint = did_you_mean(attribute.name, formals)
            yield f"has no attribute {attribute.name!r} at version {case.operator.since_version}.{hint}"
        elif formal.kind is not attribute.kind:
            yield f"attribute {attribute.name!r} must be {formal.kind.name.lower()}; it is {attribute.kind.name.lower()}"
    for name in sorted(case.operator.required.difference(a.name for a in case.node.attributes)):
        yield f"needs the attribute {name!r} ({formals[name].kind.name.lower()})"


def _check_input_types(case: _Case) -> Iterator[str]:
    if case.operator is None or not case.operator.allows_inputs(len(case.node.inputs)) or not case.node.inputs:
        return
    names = case.node.inputs
    try:
        bind_types(case.operator, [case.scope.type_of(name) if name else None for name in names], names)
    except ModelError as error:
        yield str(error)


def _check_body_signatures(case: _Case) -> Iterator[str]:
    if case.operator is None or case.operator.name not in _BODY_COUNTS:
        return
    inputs, outputs = _BODY_COUNTS[case.operator.name](case.node, case.operator)
    for body in case.node.bodies:
        if len(body.inputs) != inputs:
            yield f"body {body.name!r} has {len(body.inputs)} input(s); the node passes {inputs}"
        if len(body.outputs) != outputs:
            yield f"body {body.name!r} has {len(body.outputs)} output(s); the node needs {outputs}"


# Operator to a function that computes the number of inputs and outputs of its bodies.
_BODY_COUNTS: dict[str, Callable[[Node, Operator], tuple[int, int]]] = {
    "If": lambda node, _: (0, len(node.outputs)),
    "Loop": lambda node, _: (max(len(node.inputs), 2), len(node.outputs) + 1),  # inputs: iteration, condition; outputs: condition
    "SequenceMap": lambda node, _: (len(node.inputs), len(node.outputs)),
    # Version 8 has an additional input, the lengths of the sequences.
    "Scan": lambda node, operator: (len(node.inputs) - (1 if operator.since_version < 9 else 0), len(node.outputs)),
}


def _check_device(case: _Case) -> Iterator[str]:
    if case.node.device and not is_device(case.node.device):
        yield f"device {case.node.device!r} is unknown; a device is 'cpu', 'cuda', or has a number, such as 'cuda:1'"


def _check_body_results(case: _Case) -> Iterator[str]:
    """Yield a violation for each output of a body that has the wrong type; extents are ignored."""
    if case.node.op == "If":
        then_scope = _Scope(case.node.attr("then_branch"), outer=case.scope)
        else_scope = _Scope(case.node.attr("else_branch"), outer=case.scope)
        # `_check_body_signatures` reports branches with different numbers of outputs.
        pairs = zip(then_scope.function.outputs, else_scope.function.outputs, strict=False)
        for number, (a, b) in enumerate(pairs, 1):
            then_type, else_type = then_scope.type_of(a.name), else_scope.type_of(b.name)
            if _differ(then_type, else_type):
                types = f"{a.name!r} is {then_type} and {b.name!r} is {else_type}"
                yield f"output {number} of both branches must have one type; {types}"
    for name, body, output in _find_carried_values(case):
        type_before = case.scope.type_of(name)
        type_after = _Scope(body, outer=case.scope).type_of(output)
        if _differ(type_before, type_after):
            types = f"{name!r} is {type_before} and {output!r} is {type_after}"
            yield f"a carried value of body {body.name!r} must keep its type; {types}"


def _find_carried_values(case: _Case) -> Iterator[tuple[str, Function, str]]:
    """Yield each loop-carried value of a Loop or Scan: the node's input, the body, and the body's output."""
    node = case.node
    if node.op == "Loop":
        inputs = node.inputs[2:]  # without trip count and condition
        first_output = 1  # output 0 is the condition
    elif node.op == "Scan" and case.operator is not None and case.operator.since_version >= 9:  # 8 has an input for lengths
        carried_count = len(node.inputs) - node.attr("num_scan_inputs", 0)
        inputs = node.inputs[:carried_count]
        first_output = 0
    else:
        return
    for body in node.bodies:
        for name, output in zip(inputs, body.outputs[first_output:], strict=False):
            if name:
                yield name, body, output.name


def _differ(a: Type | None, b: Type | None) -> bool:
    """Whether two known types differ in kind or element type; an optional or unknown type never differs."""
    if isinstance(a, TensorType) and isinstance(b, TensorType):
        return a.dtype is not b.dtype
    if isinstance(a, SequenceType) and isinstance(b, SequenceType):
        return _differ(a.element, b.element)
    kinds = (TensorType, SequenceType)
    return isinstance(a, kinds) and isinstance(b, kinds)


TYPE_RULES = (_check_input_types, _check_body_results)
"""Rules checked after type inference."""
NODE_RULES = (
    _check_domain,
    _check_operator,
    _check_inputs,
    _check_outputs,
    _check_attributes,
    _check_input_types,
    _check_body_signatures,
    _check_device,
)
