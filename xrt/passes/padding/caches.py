"""Turn growing KV caches into static ones: buffers of fixed capacity with a length, and a write instead of the Concat."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from xrt.errors import ModelError
from xrt.graph import DType, Function, Node, State, TensorType, Value, declare_states
from xrt.graph.state import Capacity, declare_capacity
from xrt.graph.types import LARGEST_EXTENT
from xrt.passes.extents import Extent, multiply
from xrt.passes.padding.function import decompose_without_rule, walk
from xrt.passes.padding.padder import SIZE, PaddedTensor, Padder, PaddingRefusal, Unpaddable
from xrt.passes.shape_inference import infer_shapes

LENGTH = "xrt.length"
NEXT_LENGTH = "xrt.next_length"
"""Input and output of the state that holds the number of valid cache entries."""
CAPACITY = "capacity"
"""Name of the dim that replaces the growing extent."""
SCATTER_OPSET = 24
"""First opset with TensorScatter."""


@dataclass(frozen=True, slots=True)
class _Cache:
    """A state that grows by a Concat of past and new entries."""

    state: State
    node: Node
    axis: int
    dim: str
    """Name of the dim that grows."""

    @property
    def new(self) -> str:
        """Name of the value with the entries that a call appends."""
        return self.node.inputs[1]


class _CachePadder(Padder):
    """Pads the past entries of all caches to the capacity. New entries are written after the valid ones."""

    def __init__(self, function: Function, caches: Sequence[_Cache], new_entries: Extent, capacity: int | str) -> None:
        super().__init__(function, frozenset({caches[0].dim}))
        (self._dim,) = self.dims
        self.new_entries = new_entries
        self.fed[self._dim] = LENGTH
        self._max_past_entries = Extent.of(capacity) - new_entries
        # Read the capacity from the output: another reader of the input would prevent an update in place.
        self._sources[CAPACITY] = caches[0].state.output, caches[0].axis
        self.rules.update({cache.node.name: _make_write_rule(cache) for cache in caches})

    def get_shape_operand(self, name: str) -> str:
        """Add nodes that compute the shape operand for the whole buffer. That of the model is for the valid entries."""
        extents = self._contents[name]
        if any(extent is None for extent in extents.flat):
            return name
        sizes = [extent.substitute(lambda atom: self._max_past_entries if atom == self._dim else None) for extent in extents.flat]
        operand = self.emit_sizes(name, sizes)
        self._contents[operand], self.states[operand] = extents, SIZE
        return operand


def _make_write_rule(cache: _Cache) -> Callable[[Padder, Node], Node]:
    """Make the padding rule that replaces a cache's Concat by a write after the valid entries of the buffer."""

    def rule(p: Padder, node: Node) -> Node:
        past, new = node.inputs
        axes = p.get_axes(new)
        total = (*axes[: cache.axis], (axes[cache.axis][0] + Extent.of(cache.dim),), *axes[cache.axis + 1 :])
        p.set_axes(node.outputs[0], total, {cache.axis})
        start = p.emit_extent(Extent.of(cache.dim))
        if p.function.opsets.get("", 0) >= SCATTER_OPSET:
            starts = p.add_node("Expand", start, p.emit_reshape(p.emit_length(new, 0), [1]))
            write = replace(node, op_type="TensorScatter", inputs=(past, new, starts), attributes=())
        else:
            shape = [1] * len(axes)
            shape[cache.axis] = -1
            positions = p.emit_reshape(p.emit_positions(Extent.of(cache.dim), axes[cache.axis][0]), shape)
            indices = p.add_node("Expand", positions, p.add_node("Shape", new))
            write = replace(node, op_type="ScatterElements", inputs=(past, indices, new), attributes=())
        return write.with_attributes(axis=cache.axis)

    return rule


def make_static_caches(function: Function, states: Iterable[State], capacity: int | None) -> Function:
    """Store growing caches in buffers of fixed capacity, and add a state that holds the number of valid entries.

    ``capacity`` is the size of the buffers in entries; if None, the size is the symbolic dim `CAPACITY`, which a session can
    enlarge. Attention masks the entries after the valid ones. Raises ModelError, with node and reason, if no state grows by a
    Concat or if equal results cannot be proved.
    """
    all_states = tuple(states)
    caches = [cache for state in all_states if (cache := _find_cache(function, state)) is not None]
    if not caches:
        raise ModelError(f"no state of {function.name!r} grows by a Concat of past and new entries")
    if others := sorted({cache.dim for cache in caches} - {caches[0].dim}):
        names = ", ".join([caches[0].dim, *others])
        raise ModelError(f"the caches grow along extents with different names ({names}); give them the same name")
    function = decompose_without_rule(function)
    new_entries = _count_new_entries(function, caches)
    p = _CachePadder(function, caches, new_entries, CAPACITY if capacity is None else capacity)
    walk(p)
    _check_outputs(p, caches)
    return _assemble(p, all_states, caches, capacity)


def _find_cache(function: Function, state: State) -> _Cache | None:
    """Find the cache that a state is; None if it does not grow by a Concat. Raises ModelError if another node reads its past."""
    before = function.get_type(state.input)
    node = function.producer(state.output)
    if node is None or node.op != "Concat" or not isinstance(before, TensorType) or before.shape is None:
        return None
    if len(node.inputs) != 2 or node.inputs[0] != state.input:
        return None
    axis = node.attr("axis") % len(before.shape)
    dim = before.shape[axis]
    if not isinstance(dim, str):
        raise ModelError(f"state {state.input!r} is {before}; the extent that grows must be a named dim")
    for use in function.users(state.input):
        # A Shape is replaced by the tracked sizes. Other nodes would read the unused part of the buffer.
        if use.node.name != node.name and use.node.op != "Shape":
            raise ModelError(
                f"state {state.input!r} is read by node {use.node.name!r} ({use.node.op}), not only by the Concat "
                f"{node.name!r}; it would also read the unused part of the buffer"
            )
    return _Cache(state, node, axis, dim)


def _count_new_entries(function: Function, caches: Sequence[_Cache]) -> Extent:
    """Compute the number of entries that a call appends. Raises ModelError unless it is known and equal for all caches."""
    p = Padder(function, frozenset())
    walk(p)
    subject = f"the number of entries that a call adds to the caches of {function.name!r}"
    try:
        extents = {multiply(p.get_axes(cache.new)[cache.axis]) for cache in caches}
    except Unpaddable as error:
        raise ModelError(f"{subject} is not known: {error.reason}") from None
    if len(extents) != 1 or not p.is_known(next(iter(extents))):
        shown = ", ".join(sorted(map(str, extents)))
        raise ModelError(f"{subject} differs between caches, or does not follow from the shapes of the inputs: {shown}")
    return extents.pop()


def _check_outputs(p: Padder, caches: Sequence[_Cache]) -> None:
    """Raise ModelError if an output that is not a cache is padded, or if a cache could not be made a buffer."""
    cache_outputs = {cache.state.output for cache in caches}
    for value in p.function.outputs:
        state = p.states.get(value.name)
        if isinstance(state, PaddingRefusal):
            raise ModelError(f"the caches of {p.function.name!r} cannot be made static: {state}")
        if (isinstance(state, PaddedTensor) or state is SIZE) and value.name not in cache_outputs:
            raise ModelError(f"output {value.name!r} is as long as the caches, so these cannot be made static; remove the output")
    for cache in caches:
        if not isinstance(p.states.get(cache.state.output), PaddedTensor):
            raise ModelError(f"the Concat {cache.node.name!r} cannot be made a write to a buffer")


def _assemble(p: _CachePadder, states: Sequence[State], caches: Sequence[_Cache], capacity: int | None) -> Function:
    """Build the Function: buffers as states, the length as an additional state, and a declaration of the capacity's limit."""
    function = p.function
    by_input = {cache.state.input: cache for cache in caches}
    by_output = {cache.state.output: cache for cache in caches}
    length = TensorType(DType.INT64, ())
    next_length = Node("Add", (LENGTH, p.emit_length(caches[0].new, caches[0].axis)), (NEXT_LENGTH,))
    dim = CAPACITY if capacity is None else capacity
    inputs = [_resize(value, by_input.get(value.name), function, dim) for value in function.inputs]
    outputs = [_resize(value, by_output.get(value.name), function, dim) for value in function.outputs]
    # The dim that grows does not exist in the new Function.
    outputs = [value if value.name in by_output else _drop_cache_length(value, p) for value in outputs]
    static = function.replace(
        inputs=(*inputs, Value(LENGTH, length)),
        outputs=(*outputs, Value(NEXT_LENGTH, length)),
        nodes=(*p.nodes, next_length),
        constants={**function.constants, **p.constants},
        types={},
    )
    source, axis = _find_source(function, p.new_entries, by_input)
    limit = _find_limit(p)
    if capacity is not None and capacity > limit:
        raise ModelError(f"capacity={capacity} is more than the {limit} entries of a table of {function.name!r}")
    limit = limit if capacity is None else capacity
    declared = declare_states(infer_shapes(static), [*states, State(LENGTH, NEXT_LENGTH)])
    return declare_capacity(declared, Capacity(LENGTH, source, axis, limit, CAPACITY if capacity is None else ""))


def _find_limit(p: _CachePadder) -> int:
    """Find the largest capacity that satisfies all padding conditions, so that no table is read out of bounds.

    Raises ModelError if it is not known.
    """
    limit, max_past_entries = LARGEST_EXTENT, Extent.of(CAPACITY) - p.new_entries
    for condition in p.conditions:
        extent = condition.substitute(lambda atom: max_past_entries if atom in p.dims else None)
        coefficients = dict(extent.terms)
        # A condition a - c * capacity >= 0 limits the capacity to a / c. The coefficient of the empty product is a.
        c = -coefficients.pop((CAPACITY,), 0)
        a = coefficients.pop((), 0)
        if c > 0:
            if coefficients:
                raise ModelError(f"the model requires {extent} >= 0, and no capacity is known that guarantees this")
            limit = min(limit, a // c)
    return limit


def _resize(value: Value, cache: _Cache | None, function: Function, dim: int | str) -> Value:
    """Replace the growing extent in the type of a cache by the capacity ``dim``. Values that are not caches are unchanged."""
    if cache is None:
        return value
    type_ = function.get_type(cache.state.input)
    assert isinstance(type_, TensorType)  # `_find_cache` requires a known rank
    assert type_.shape is not None
    return Value(value.name, TensorType(type_.dtype, (*type_.shape[: cache.axis], dim, *type_.shape[cache.axis + 1 :])))


def _drop_cache_length(value: Value, p: Padder) -> Value:
    """Replace the dims of an output that are the growing extent by unknown dims."""
    type_ = value.type
    if not isinstance(type_, TensorType) or type_.shape is None:
        return value
    return Value(value.name, type_.with_shape(tuple(None if dim in p.dims else dim for dim in type_.shape)))


def _find_source(function: Function, new_entries: Extent, caches: Mapping[str, object]) -> tuple[str, int]:
    """Find an input and axis whose extent is the number of new entries, where a session reads it. Raises ModelError if none."""
    for value in function.inputs:
        shape = value.type.shape if isinstance(value.type, TensorType) and value.name not in caches else None
        for axis, dim in enumerate(shape or ()):
            if dim is not None and Extent.of(dim) == new_entries:
                return value.name, axis
    raise ModelError(f"no input of {function.name!r} has the extent {new_entries} that a call adds to the caches")
