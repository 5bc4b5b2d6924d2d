"""A Function before the sweep: types known, at an opset that the rules write, operators without a rule by their definition."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from xrt.builder.builder import Builder
from xrt.errors import ModelError
from xrt.formats.onnx.inference import node_types
from xrt.formats.onnx.operator_definitions import expand
from xrt.graph import Constant, Function, Node, Type
from xrt.graph.node import Names, rename_node
from xrt.passes.constant_folding import find_constant, fold_constants
from xrt.passes.gradient.table import RuleContext, find_rule, may_have_gradient
from xrt.passes.inlining import drop_dead_nodes
from xrt.passes.opset_upgrade import upgrade_opset
from xrt.passes.shape_inference import infer_shapes

if TYPE_CHECKING:
    from xrt.builder.tensor import Tensor

__all__ = [
    "DEFINITIONS",
    "MISSING",
    "OPSET",
    "WITHOUT_GRADIENT",
    "Definition",
    "continue_function",
    "define",
    "definition",
    "describe_missing",
    "expand_body",
    "lift_constants",
    "list_names",
    "new_builder",
    "prepare",
    "record_function",
]


def new_builder(function: Function) -> Builder:
    """Return a builder without inputs that imports what the Function does."""
    return Builder(function.name, opsets=dict(function.opsets), inference=node_types)


def continue_function(function: Function) -> tuple[Builder, dict[str, Tensor]]:
    """Return a builder that has recorded the Function, outputs excepted, and the Function's values by name."""
    builder = new_builder(function)
    for name in list_names(function):
        builder.names.take(name)
    builder.nodes = list(function.nodes)
    builder.constants = dict(function.constants)
    builder.types = {name: type_ for node in function.nodes for name in node.defines if (type_ := function.get_type(name))}
    builder.inputs = [builder.tensor(value.name, value.type) for value in function.inputs]
    return builder, {name: builder.tensor(name, function.get_type(name)) for name in function.value_names()}


def list_names(function: Function) -> Iterator[str]:
    """Yield every name of a value or a node in the Function and its bodies, some more than once."""
    yield from function.value_names()
    yield from function.captures
    for node in function.nodes:
        yield node.name
        for body in node.bodies:
            yield from list_names(body)


def record_function(
    builder: Builder, function: Function, inputs: Sequence[Tensor], outer: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Record the nodes of a Function on other inputs, and return its values by the names that they have in it.

    ``outer`` has what it captures. Everything that it defines, also in bodies inside of it, gets a new name.
    """
    found = {name: outer[name] for name in function.captures}
    found.update({value.name: tensor for value, tensor in zip(function.inputs, inputs, strict=True)})
    found.update({name: builder.constant(constant) for name, constant in function.constants.items()})
    names = {name: tensor.name for name, tensor in found.items()}
    for name in _list_defined(function):
        if name not in names:
            names[name] = builder.names.plain(name)
    nodes = {node.name: names.get(node.name) or builder.names.plain(node.name) for node in function.nodes}
    for node in function.nodes:
        renamed = rename_node(node, names, nodes)
        tensors = builder.record(renamed, [function.get_type(name) if name else None for name in node.outputs])
        found.update(zip(node.outputs, tensors, strict=True))
    return found


def _list_defined(function: Function) -> Iterator[str]:
    """Yield every name that the Function or a body in it defines."""
    yield from function.value_names()
    for node in function.nodes:
        for body in node.bodies:
            yield from _list_defined(body)


def lift_constants(function: Function) -> Function:
    """Return the Function with what its Constant nodes give, and the Shape of static values, among its constants."""
    lifted: dict[str, Constant] = {}
    kept = []
    for node in function.nodes:
        constant = None if node.control else find_constant(node, function)
        if constant is None:
            kept.append(node)
        else:
            lifted[node.outputs[0]] = constant
    if not lifted:
        return function
    awaited = {name for node in kept for name in node.control}
    if awaited.intersection(node.name for node in function.nodes if node.outputs[0] in lifted):
        return function  # another node must run after one of them
    types = {name: type_ for name, type_ in function.types.items() if name not in lifted}
    return function.replace(nodes=tuple(kept), constants={**function.constants, **lifted}, types=types)


Definition: TypeAlias = Callable[[RuleContext], "Sequence[Tensor | None]"]
"""Returns the outputs of the node in their places; missing places at the end are outputs that it cannot be asked for."""
DEFINITIONS: dict[str, Definition] = {}
"""By operator."""
_Definition = TypeVar("_Definition", bound=Definition)


def definition(*operators: str) -> Callable[[_Definition], _Definition]:
    """Register a function as the definition of those operators."""

    def register(function: _Definition) -> _Definition:
        for operator in operators:
            DEFINITIONS[operator] = function
        return function

    return register


def define(alone: Function) -> Function:
    """Return a Function that computes by other operators what a Function of one node does."""
    (node,) = alone.nodes
    builder = new_builder(alone)
    with builder:
        tensors = {value.name: builder.input(value.name, value.type) for value in alone.inputs}
        at = RuleContext(replace(node, outputs=()), tensors, (), frozenset(), builder)
        results = dict(zip(node.outputs, DEFINITIONS[node.op](at), strict=False))
        for name in node.defines:
            value = results.get(name)
            if value is None:
                at.refuse(f"its output {name!r} is not defined by other operators")
            builder.output(value, name)
    return builder.function()


_STEP = "it is constant between its steps"
_DRAWN = "what it draws does not depend on its input"
_SHAPE = "it reads shapes and types only"
WITHOUT_GRADIENT: Mapping[str, str] = {
    **dict.fromkeys(("Binarizer", "Ceil", "Floor", "Hardmax", "Round", "Sign"), _STEP),
    **dict.fromkeys(("Bernoulli", "Multinomial", "RandomNormalLike", "RandomUniformLike"), _DRAWN),
    **dict.fromkeys(("ConstantOfShape", "EyeLike", "Shape", "Size"), _SHAPE),
}
"""Operators through which no gradient passes, each with the reason. Nor does one through values of integers or booleans."""
_SEQUENCES = "gradients of sequences are not computed; Split and Concat do the same with tensors"
_QUANTIZED = "its results are integers, or scales that depend on the largest element"
_WAITS = "its rule is not written yet"
MISSING: Mapping[str, str] = {
    "CumProd": "its gradient is a quotient by elements that may be 0",
    "Det": "its gradient is the inverse of the matrix, which no operator of ONNX computes",
    "DFT": _WAITS,
    "STFT": _WAITS,
    "Col2Im": _WAITS,
    "DeformConv": _WAITS,
    "GridSample": _WAITS,
    "LinearAttention": "its definition is a Scan inside of which ranks are not known",
    "MaxRoiPool": _WAITS,
    "RoiAlign": _WAITS,
    "DynamicQuantizeLinear": _QUANTIZED,
    "DequantizeLinear": _WAITS,
    **dict.fromkeys(
        (
            *("ConcatFromSequence", "SequenceAt", "SequenceConstruct", "SequenceErase", "SequenceInsert", "SequenceMap"),
            *("SplitToSequence", "Optional", "OptionalGetElement"),
        ),
        _SEQUENCES,
    ),
}
"""Operators that have neither a rule nor a definition to be differentiated through, each with the reason."""


def describe_missing(node: Node) -> str:
    """Return why there is no gradient of a node."""
    return MISSING.get(node.op, "there is no rule for it, and ONNX does not define it by other operators")


OPSET = 18
"""The least opset that the rules write: axes of reductions are inputs, and scatters add."""
SMALL = 64
"""Elements up to which a constant input may decide how an operator is defined."""
DEPTH = 8
"""How often operators are replaced by their definitions; no definition of ONNX's needs more."""


def prepare(function: Function, targets: Collection[str], wanted: Collection[str]) -> Function:
    """Return an equivalent Function in which every node between the wanted values and the targets has a rule, if it can have one.

    Raises ModelError where the Function cannot be brought to `OPSET`.
    """
    prepared = lift_constants(infer_shapes(upgrade_opset(infer_shapes(function), OPSET)))
    for _ in range(DEPTH):
        expanded = _expanded(prepared, _find_path(prepared, targets, wanted))
        if expanded is prepared:
            break
        prepared = lift_constants(expanded)
    return prepared


def expand_body(body: Function) -> Function:
    """Return a body in which nodes with results of floating point are written by operators with rules, as far as they can be."""
    body = lift_constants(body)
    for _ in range(DEPTH):
        floating = {node.name for node in body.nodes if any(may_have_gradient(body.get_type(name)) for name in node.defines)}
        expanded = _expanded(body, floating)
        if expanded is body:
            break
        body = lift_constants(expanded)
    return body


def _find_path(function: Function, targets: Collection[str], wanted: Collection[str]) -> set[str]:
    """Return the names of the nodes by which the targets depend on the wanted values."""
    active, needed = set(wanted), set(targets)
    forward = []
    for node in function.nodes:
        if not active.isdisjoint(node.uses):
            forward.append(node)
            active.update(name for name in node.defines if may_have_gradient(function.get_type(name)))
    path = set()
    for node in reversed(forward):
        if not needed.isdisjoint(node.outputs):
            path.add(node.name)
            needed.update(name for name in node.uses if name in active)
    return path


def _expanded(function: Function, chosen: Collection[str]) -> Function:
    """Return the Function with those of its nodes that have no rule in the words of their definition, once."""
    nodes: list[Node] = []
    constants, types = dict(function.constants), dict(function.types)
    names: Names | None = None
    for node in function.nodes:
        meaning = _find_definition(node, function) if node.name in chosen and not node.control else None
        if meaning is None:
            nodes.append(node)
            continue
        if names is None:
            names = Names()
            for name in list_names(function):
                names.take(name)
        nodes += _spliced(meaning, node, names, constants, types)
    return function if names is None else function.replace(nodes=tuple(nodes), constants=constants, types=types)


def _find_definition(node: Node, function: Function) -> Function | None:
    """Return a node in other operators; None where it has a rule, or no definition."""
    if find_rule(node) or node.op in WITHOUT_GRADIENT or node.op in MISSING:
        return None
    alone = _alone(node, function)
    if node.op in DEFINITIONS:
        return infer_shapes(define(alone))
    try:
        meaning = expand(alone)
        if meaning is None or meaning.opset() > function.opset():
            return None
        newer = upgrade_opset(infer_shapes(_with_constants(meaning, function)), function.opset())
        return drop_dead_nodes(infer_shapes(fold_constants(infer_shapes(newer), _evaluate_nothing)))
    except ModelError:
        return None  # the sweep says that there is no rule


def _evaluate_nothing(function: Function, inputs: list[Any]) -> Sequence[Any]:
    """Leave folding to what is known of shapes, which decides the branches of definitions."""
    raise ModelError(f"{function.name!r} is not computed here")


def _alone(node: Node, function: Function) -> Function:
    """Return the node as a Function of its own, under its own names."""
    return Function(
        inputs=tuple(map(function.value, dict.fromkeys(filter(None, node.inputs)))),
        outputs=tuple(map(function.value, node.defines)),
        nodes=(replace(node, device=""),),
        opsets=function.opsets,
    )


def _with_constants(meaning: Function, function: Function) -> Function:
    """Return the definition with its small constant inputs as constants, from which shapes follow."""
    found = {value.name: constant for value in meaning.inputs if (constant := function.constants.get(value.name)) is not None}
    small = {name: constant for name, constant in found.items() if constant.array.size <= SMALL}
    inputs = tuple(value for value in meaning.inputs if value.name not in small)
    return meaning.replace(inputs=inputs, constants={**meaning.constants, **small}) if small else meaning


def _spliced(
    meaning: Function, node: Node, names: Names, constants: dict[str, Constant], types: dict[str, Type]
) -> Iterator[Node]:
    """Yield the nodes of a definition under names that are free; its constants and types are added to the others.

    The node that makes the first result gets the name of the one that is defined.
    """
    ends = {*filter(None, node.inputs), *node.defines}
    values = {name: names.plain(f"{node.name}/{name}") for name in dict.fromkeys(list_names(meaning)) if name not in ends}
    for name, new in values.items():
        if (constant := meaning.constants.get(name)) is not None:
            constants[new] = constant
        elif (type_ := meaning.get_type(name)) is not None:
            types[new] = type_
    results = [value.name for value in meaning.outputs if not meaning.computes(value.name)]
    passed = [Node("Identity", (values.get(name, name),), (name,)) for name in results]
    first = next(iter(node.defines))
    for inner in (*meaning.nodes, *passed):
        name = node.name if first in inner.outputs else ""
        yield replace(rename_node(inner, values, {}), name=name, control=(), device=node.device)
