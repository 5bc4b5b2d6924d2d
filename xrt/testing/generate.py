"""Generate random valid Functions, with all features of the graph format, and inputs for them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from xrt.errors import InputError
from xrt.graph import DType, Function, OptionalType, SequenceType, TensorType, Type
from xrt.graph.node import list_names, rename_function
from xrt.testing.generators import operators, structured
from xrt.testing.generators.draft import SIZES, Chooser, DraftValue, GraphDraft, Recipe, SeededChooser, list_draft_values

ALL_FAMILIES: dict[str, tuple[Recipe, ...]] = {
    "elementwise": operators.ELEMENTWISE,
    "reduction": operators.REDUCTION,
    "product": operators.PRODUCT,
    "window": operators.WINDOW,
    "shape": structured.SHAPE,
    "discontinuous": operators.DISCONTINUOUS,
    "integer": operators.INTEGER,
    "function": operators.FUNCTION,
    "normalization": operators.NORMALIZATION,
    "other product": operators.OTHER_PRODUCT,
    "other window": operators.OTHER_WINDOW,
    "16 bits": operators.SIXTEEN_BITS,
    "indexing": structured.INDEXING,
    "sequence": structured.SEQUENCE,
    "scan": structured.SCAN,
}
"""The recipes by family. The default `Form` has the first six families. If and Loop are not in a family, see `Form.control`."""


@dataclass(frozen=True, slots=True)
class Form:
    """Restricts the generated Functions. The default allows everything; an engine's suite narrows it."""

    families: tuple[str, ...] = ("elementwise", "reduction", "product", "window", "shape", "discontinuous")
    """The keys of `ALL_FAMILIES` to choose recipes from."""
    dtypes: tuple[DType, ...] = (DType.FLOAT32, DType.INT64, DType.BOOL, DType.FLOAT64, DType.INT32)
    control: bool = True
    """Whether to generate If and Loop, whose bodies capture values."""
    passthrough: bool = True
    """Whether an output may be an input, a constant, or another output."""
    empty: bool = True
    """Whether dims may be 0."""
    symbolic: bool = True
    """Whether inputs sometimes have symbolic dims."""
    control_edges: bool = True
    aliases: bool = True
    max_nodes: int = 10
    rank: int = 4
    """The maximum rank of tensors."""
    accepts: Callable[[Function], bool] | None = None
    """Called with the graph after each recipe. If it returns False, the nodes of the recipe are removed. The filter
    `SupportFilter` calls an engine. None accepts everything."""

    def __post_init__(self) -> None:
        for name in self.families:
            if name not in ALL_FAMILIES:
                raise InputError(f"there is no family of recipes {name!r}; there are {', '.join(ALL_FAMILIES)}")

    @property
    def recipes(self) -> tuple[Recipe, ...]:
        """The recipes for which `accepts` returns True for at least one of `MAX_RECIPE_SAMPLES` samples."""
        return _list_recipes(self)


EVERYTHING = Form()
MAX_RECIPE_SAMPLES = 100
"""A recipe is not used if this many samples were rejected. Some recipes choose among many operators, so fewer do not suffice."""


# Cached, because asking an engine about a hundred samples of each recipe takes seconds.
@cache
def _list_recipes(form: Form) -> tuple[Recipe, ...]:
    selected = tuple(recipe for name in form.families for recipe in ALL_FAMILIES[name])
    recipes = selected + (structured.CONTROL if form.control else ())
    return recipes if form.accepts is None else tuple(recipe for recipe in recipes if _is_ever_accepted(recipe, form))


def _is_ever_accepted(recipe: Recipe, form: Form) -> bool:
    for seed in range(MAX_RECIPE_SAMPLES):
        draft = _make_draft(SeededChooser(seed), form)
        # A recipe that adds no node, because it finds no operands, does not count as accepted.
        if _apply_recipe(draft, recipe, form) and draft.nodes:
            return True
    return False


def _make_draft(choose: Chooser, form: Form) -> GraphDraft:
    return GraphDraft(choose, form.dtypes, form.empty, form.rank)


def _apply_recipe(draft: GraphDraft, recipe: Recipe, form: Form) -> bool:
    """Apply the recipe and return True; if the form does not accept the result, undo it and return False."""
    mark = draft.get_mark()
    recipe(draft)
    if form.accepts is None or form.accepts(draft.function(_list_computed(draft))):
        return True
    draft.undo(mark)
    return False


def _list_computed(draft: GraphDraft) -> list[DraftValue]:
    names = {name for node in draft.nodes for name in node.outputs}
    return [value for value in draft.values if value.name in names]


def draft_function(choose: Chooser, form: Form = EVERYTHING) -> Function:
    """Generate a Function with the choices of ``choose``; equal choices give equal Functions."""
    draft = _make_draft(choose, form)
    for _ in range(choose.integer(1, form.max_nodes)):
        _apply_recipe(draft, choose.pick(form.recipes), form)
    if not draft.nodes:  # no recipe was applicable, or the form accepted none
        operators.add_simple_unary(draft, draft.add_source(form.dtypes[0], (2,)))
    outputs = _choose_outputs(draft, form)
    if form.control_edges:
        _add_control_edges(draft)
    symbolic = form.symbolic and choose.integer(0, 3) == 3
    aliases = _choose_aliases(draft, outputs) if form.aliases else ()
    return draft.function(outputs, symbolic=symbolic, aliases=aliases)


def _choose_outputs(draft: GraphDraft, form: Form) -> list[DraftValue]:
    """Choose the outputs: all unread values, and sometimes a value that is read, an input or constant, or a repeated output."""
    read = {name for node in draft.nodes for name in node.uses}
    computed = _list_computed(draft)
    # Unread values are always outputs: otherwise optimizing would remove the nodes that compute them.
    outputs = [v for v in computed if v.name not in read]
    inner = [v for v in computed if v.name in read]
    if inner and draft.choose.integer(0, 2) == 2:
        outputs.insert(0, draft.choose.pick(inner))
    sources = [v for v in draft.values if v not in computed]
    if form.passthrough and sources and draft.choose.integer(0, 3) == 3:
        outputs.append(draft.choose.pick(sources))
    if form.passthrough and outputs and draft.choose.integer(0, 5) == 5:
        outputs.append(draft.choose.pick(outputs))
    return outputs


def _add_control_edges(draft: GraphDraft) -> None:
    """Sometimes add a control edge from an earlier node."""
    for index in range(1, len(draft.nodes)):
        # 7 is the largest number. Shrinking prefers small numbers, so that a reduced example has no unnecessary edge.
        if draft.choose.integer(0, 7) == 7:
            earlier = draft.choose.pick(draft.nodes[:index])  # nodes are in topological order, so no cycle arises
            draft.nodes[index] = replace(draft.nodes[index], control=(earlier.name,))


def _choose_aliases(draft: GraphDraft, outputs: Sequence[DraftValue]) -> tuple[tuple[str, str], ...]:
    """Sometimes alias an input to an output of the same type: the call then overwrites the input with the output."""
    # Only computed outputs, as in a model that computes the next value of a state.
    computed = _list_computed(draft)
    targets = [output for output in outputs if output in computed]
    pairs = [(i.name, o.name) for i in draft.inputs for o in targets if (i.dtype, i.shape) == (o.dtype, o.shape)]
    return (draft.choose.pick(pairs),) if pairs and draft.choose.integer(0, 4) == 4 else ()


def make_seeded_function(seed: int, form: Form = EVERYTHING) -> Function:
    """Generate a Function from a seed, without hypothesis."""
    return draft_function(SeededChooser(seed), form)


def make_random_inputs(
    function: Function, seed: int = 0, sizes: dict[str, int] = SIZES, empty: Collection[str] = ()
) -> list[Any]:
    """Generate random values for the inputs of a Function, in order; equal seeds give equal values.

    ``sizes`` maps symbolic dims to sizes; all other dynamic dims are 2. Inputs in ``empty`` are None (absent optionals).
    """
    rng = np.random.default_rng(seed)
    return [None if v.name in empty else _make_value(rng, v.type, sizes) for v in function.inputs]


def _make_value(rng: np.random.Generator, type_: Type | None, sizes: dict[str, int]) -> Any:
    if isinstance(type_, OptionalType):
        return _make_value(rng, type_.element, sizes)
    if isinstance(type_, SequenceType):
        return [_make_value(rng, type_.element, sizes) for _ in range(2)]
    if not isinstance(type_, TensorType) or type_.shape is None:
        raise InputError(f"no random value can be made for the type {type_}; give a tensor type whose rank is known")
    return list_draft_values(rng, type_.dtype, tuple(d if isinstance(d, int) else sizes.get(str(d), 2) for d in type_.shape))


def rename_values(function: Function, names: Mapping[str, str]) -> Function:
    """Rename all values and nodes, also in bodies. A prime is appended to values that are not in ``names``."""
    old = [name for name in list_names(function) if name]
    values = {name: names.get(name, f"{name}'") for name in old}
    return rename_function(function, values, {name: f"node of {name}" for name in old})
