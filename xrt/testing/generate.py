"""Generated Functions: valid by construction, of every form that a Function may have."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from xrt.errors import InputError
from xrt.graph import DType, Function, OptionalType, SequenceType, TensorType, Type
from xrt.graph.node import list_names, rename_function
from xrt.testing.generators import ALL_FAMILIES
from xrt.testing.generators.draft import SIZES, Chooser, DraftValue, GraphDraft, Recipe, Seeded, list_draft_values
from xrt.testing.generators.operators import gentle
from xrt.testing.generators.structured import CONTROL

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Form:
    """What generated Functions may look like. The default is everything; an engine's suite narrows it."""

    families: tuple[str, ...] = ("elementwise", "reduction", "product", "window", "shape", "stepping")
    """Keys of `ALL_FAMILIES`."""
    dtypes: tuple[DType, ...] = (DType.FLOAT32, DType.INT64, DType.BOOL, DType.FLOAT64, DType.INT32)
    control: bool = True
    """If and Loop, whose bodies capture values."""
    passthrough: bool = True
    """Outputs that are an input, a constant, or another output once more."""
    empty: bool = True
    """Extents of zero."""
    symbolic: bool = True
    """Now and then, extents of inputs that are names."""
    control_edges: bool = True
    aliases: bool = True
    max_nodes: int = 10
    rank: int = 4
    takes: Callable[[Function], bool] | None = None
    """What a recipe adds stays only where this says so of the graph so far.

    `SupportFilter` asks an engine. None keeps everything.
    """

    def __post_init__(self) -> None:
        for name in self.families:
            if name not in ALL_FAMILIES:
                raise InputError(f"there is no family of recipes {name!r}; there are {', '.join(ALL_FAMILIES)}")

    @property
    def recipes(self) -> tuple[Recipe, ...]:
        """Those of the families, without those of which nothing is ever kept; empty where nothing is."""
        return _kept_recipes(self)


EVERYTHING = Form()
TRIES = 100
"""How many graphs of a recipe are looked at before it counts as one of which nothing is kept: some have many operators."""


@cache
def _kept_recipes(form: Form) -> tuple[Recipe, ...]:
    chosen = tuple(recipe for name in form.families for recipe in ALL_FAMILIES[name])
    recipes = chosen + (CONTROL if form.control else ())
    return recipes if form.takes is None else tuple(recipe for recipe in recipes if _is_ever_kept(recipe, form))


def _is_ever_kept(recipe: Recipe, form: Form) -> bool:
    drafts = (_draft(Seeded(seed), form) for seed in range(TRIES))
    return any(_grow(draft, recipe, form) and draft.nodes for draft in drafts)


def _draft(choose: Chooser, form: Form) -> GraphDraft:
    return GraphDraft(choose, form.dtypes, form.empty, form.rank)


def _grow(draft: GraphDraft, recipe: Recipe, form: Form) -> bool:
    """Let the recipe add to the draft; take back what the form does not keep, and say whether it was kept."""
    before = draft.mark()
    recipe(draft)
    if form.takes is None or form.takes(draft.function(_made(draft))):
        return True
    draft.take_back(before)
    return False


def _made(draft: GraphDraft) -> list[DraftValue]:
    names = {name for node in draft.nodes for name in node.outputs}
    return [value for value in draft.values if value.name in names]


def function_from(choose: Chooser, form: Form = EVERYTHING) -> Function:
    """Return a Function made of the chooser's choices; equal choices give an equal Function."""
    draft = _draft(choose, form)
    for _ in range(choose.integer(1, form.max_nodes)):
        _grow(draft, choose.pick(form.recipes), form)
    if not draft.nodes:  # no recipe found what it needed, or nothing was kept
        gentle(draft, draft.add_given(form.dtypes[0], (2,)))
    outputs = _outputs(draft, form)
    if form.control_edges:
        _add_control_edges(draft)
    named = form.symbolic and choose.integer(0, 3) == 3
    aliases = _aliases(draft, outputs) if form.aliases else ()
    return draft.function(outputs, named=named, aliases=aliases)


def _outputs(draft: GraphDraft, form: Form) -> list[DraftValue]:
    """Return the outputs: what nothing reads, something that is read, and odd ones."""
    read = {name for node in draft.nodes for name in node.uses}
    made = _made(draft)
    outputs = [v for v in made if v.name not in read]
    inner = [v for v in made if v.name in read]
    if inner and draft.choose.integer(0, 2) == 2:
        outputs.insert(0, draft.choose.pick(inner))
    given = [v for v in draft.values if v not in made]
    if form.passthrough and given and draft.choose.integer(0, 3) == 3:
        outputs.append(draft.choose.pick(given))
    if form.passthrough and outputs and draft.choose.integer(0, 5) == 5:
        outputs.append(draft.choose.pick(outputs))
    return outputs


def _add_control_edges(draft: GraphDraft) -> None:
    """Now and then make a node wait for an earlier one from which no value reaches it."""
    for index in range(1, len(draft.nodes)):
        if draft.choose.integer(0, 7) == 7:
            earlier = draft.choose.pick(draft.nodes[:index])
            draft.nodes[index] = replace(draft.nodes[index], control=(earlier.name,))


def _aliases(draft: GraphDraft, outputs: Sequence[DraftValue]) -> tuple[tuple[str, str], ...]:
    """Now and then let an input hold an output of the same type after the call."""
    made = {name for node in draft.nodes for name in node.outputs}
    pairs = [
        (i.name, o.name) for i in draft.inputs for o in outputs if o.name in made and (i.dtype, i.shape) == (o.dtype, o.shape)
    ]
    return (draft.choose.pick(pairs),) if pairs and draft.choose.integer(0, 4) == 4 else ()


def make_seeded_function(seed: int, form: Form = EVERYTHING) -> Function:
    """Return the Function of a seed, for where hypothesis is not wanted."""
    return function_from(Seeded(seed), form)


def make_random_inputs(
    function: Function, seed: int = 0, sizes: dict[str, int] = SIZES, empty: Collection[str] = ()
) -> list[Any]:
    """Return random values for a Function's inputs, in their order: equal seeds give equal values.

    ``sizes`` gives the named extents; those that are unknown are 2. Inputs named in ``empty`` are absent optionals.
    """
    rng = np.random.default_rng(seed)
    return [None if v.name in empty else _value(rng, v.type, sizes) for v in function.inputs]


def _value(rng: np.random.Generator, type_: Type | None, sizes: dict[str, int]) -> Any:
    if isinstance(type_, OptionalType):
        return _value(rng, type_.element, sizes)
    if isinstance(type_, SequenceType):
        return [_value(rng, type_.element, sizes) for _ in range(2)]
    if not isinstance(type_, TensorType) or type_.shape is None:
        raise InputError(f"no random value can be made for the type {type_}; give a tensor type whose rank is known")
    return list_draft_values(rng, type_.dtype, tuple(d if isinstance(d, int) else sizes.get(str(d), 2) for d in type_.shape))


def rename_values(function: Function, names: Mapping[str, str]) -> Function:
    """Return the function with values and nodes called otherwise, in its bodies too.

    Values that ``names`` does not mention get a prime, so that no name stays.
    """
    old = [name for name in list_names(function) if name]
    values = {name: names.get(name, f"{name}'") for name in old}
    return rename_function(function, values, {name: f"node of {name}" for name in old})
