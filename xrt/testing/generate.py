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
    "reduction": operators.REDUCTIONS,
    "product": operators.PRODUCTS,
    "window": operators.WINDOWS,
    "shape": structured.SHAPES,
    "stepping": operators.STEPPING,
    "numbers": operators.NUMBERS,
    "functions": operators.FUNCTIONS,
    "normalizations": operators.NORMALIZATIONS,
    "products": operators.OTHER_PRODUCTS,
    "windows": operators.OTHER_WINDOWS,
    "narrow": operators.NARROW,
    "moves": structured.MOVES,
    "lists": structured.LISTS,
    "scans": structured.SCANS,
}
"""All families of recipes by name; the default `Form` has the first six. Control flow is separate, see `Form.control`."""


@dataclass(frozen=True, slots=True)
class Form:
    """Restricts the generated Functions. The default allows everything; an engine's suite narrows it."""

    families: tuple[str, ...] = ("elementwise", "reduction", "product", "window", "shape", "stepping")
    """Keys of `ALL_FAMILIES`, the recipes to choose from."""
    dtypes: tuple[DType, ...] = (DType.FLOAT32, DType.INT64, DType.BOOL, DType.FLOAT64, DType.INT32)
    control: bool = True
    """Whether to generate If and Loop, whose bodies capture values."""
    passthrough: bool = True
    """Whether an output may be an input, a constant, or a repeated output."""
    empty: bool = True
    """Whether dims may be 0."""
    symbolic: bool = True
    """Whether inputs sometimes have symbolic dims."""
    control_edges: bool = True
    aliases: bool = True
    max_nodes: int = 10
    rank: int = 4
    """The maximum rank of tensors."""
    takes: Callable[[Function], bool] | None = None
    """Decides after each recipe whether the graph so far is acceptable; if not, the recipe's nodes are removed.

    `SupportFilter` queries an engine. None accepts everything.
    """

    def __post_init__(self) -> None:
        for name in self.families:
            if name not in ALL_FAMILIES:
                raise InputError(f"there is no family of recipes {name!r}; there are {', '.join(ALL_FAMILIES)}")

    @property
    def recipes(self) -> tuple[Recipe, ...]:
        """The usable recipes of the families: `takes` accepts at least one of `TRIES` samples of each. May be empty."""
        return _list_recipes(self)


EVERYTHING = Form()
TRIES = 100
"""A recipe is dropped if this many samples were rejected: not fewer, since some recipes choose among many operators."""


# Cached, because asking an engine about a hundred samples of each recipe takes seconds.
@cache
def _list_recipes(form: Form) -> tuple[Recipe, ...]:
    selected = tuple(recipe for name in form.families for recipe in ALL_FAMILIES[name])
    recipes = selected + (structured.CONTROL if form.control else ())
    return recipes if form.takes is None else tuple(recipe for recipe in recipes if _is_ever_accepted(recipe, form))


def _is_ever_accepted(recipe: Recipe, form: Form) -> bool:
    # A recipe that adds no node to an empty draft, for lack of operands, does not count as accepted.
    drafts = (_draft(SeededChooser(seed), form) for seed in range(TRIES))
    return any(_grow(draft, recipe, form) and draft.nodes for draft in drafts)


def _draft(choose: Chooser, form: Form) -> GraphDraft:
    return GraphDraft(choose, form.dtypes, form.empty, form.rank)


def _grow(draft: GraphDraft, recipe: Recipe, form: Form) -> bool:
    """Apply the recipe and return True; if the form does not accept the result, undo it and return False."""
    before = draft.mark()
    recipe(draft)
    if form.takes is None or form.takes(draft.function(_list_computed(draft))):
        return True
    draft.undo(before)
    return False


def _list_computed(draft: GraphDraft) -> list[DraftValue]:
    names = {name for node in draft.nodes for name in node.outputs}
    return [value for value in draft.values if value.name in names]


def function_from(choose: Chooser, form: Form = EVERYTHING) -> Function:
    """Generate a Function from the chooser's choices; equal choices give equal Functions."""
    draft = _draft(choose, form)
    for _ in range(choose.integer(1, form.max_nodes)):
        _grow(draft, choose.pick(form.recipes), form)
    if not draft.nodes:  # no recipe was applicable, or the form accepted none
        operators.gentle(draft, draft.add_source(form.dtypes[0], (2,)))
    outputs = _choose_outputs(draft, form)
    if form.control_edges:
        _add_control_edges(draft)
    symbolic = form.symbolic and choose.integer(0, 3) == 3
    aliases = _choose_aliases(draft, outputs) if form.aliases else ()
    return draft.function(outputs, symbolic=symbolic, aliases=aliases)


def _choose_outputs(draft: GraphDraft, form: Form) -> list[DraftValue]:
    """Choose the outputs: all unread values, sometimes a value that is read, an input or constant, or a repeated output."""
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
        # The largest number, because shrinking prefers small ones: a reduced example has no needless edge.
        if draft.choose.integer(0, 7) == 7:
            earlier = draft.choose.pick(draft.nodes[:index])  # nodes are in topological order, so no cycle arises
            draft.nodes[index] = replace(draft.nodes[index], control=(earlier.name,))


def _choose_aliases(draft: GraphDraft, outputs: Sequence[DraftValue]) -> tuple[tuple[str, str], ...]:
    """Sometimes alias an input to an output of the same type, which the input holds after the call."""
    # Only computed outputs, as in a model that computes the next value of a state.
    computed = {name for node in draft.nodes for name in node.outputs}
    pairs = [
        (i.name, o.name) for i in draft.inputs for o in outputs if o.name in computed and (i.dtype, i.shape) == (o.dtype, o.shape)
    ]
    return (draft.choose.pick(pairs),) if pairs and draft.choose.integer(0, 4) == 4 else ()


def make_seeded_function(seed: int, form: Form = EVERYTHING) -> Function:
    """Generate a Function from a seed, without hypothesis."""
    return function_from(SeededChooser(seed), form)


def make_random_inputs(
    function: Function, seed: int = 0, sizes: dict[str, int] = SIZES, empty: Collection[str] = ()
) -> list[Any]:
    """Generate random values for the inputs of a Function, in order; equal seeds give equal values.

    ``sizes`` has the sizes of symbolic dims; missing and unknown ones are 2. Inputs in ``empty`` are None (absent optionals).
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
    """Rename all values and nodes, in bodies too.

    Values that are not in ``names`` get a prime appended, so every name changes.
    """
    old = [name for name in list_names(function) if name]
    values = {name: names.get(name, f"{name}'") for name in old}
    return rename_function(function, values, {name: f"node of {name}" for name in old})
