"""Memory use of one signature: weights, values between regions, and the memory of each engine. Prints as a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from xrt.graph import Constant, Function, TensorType
from xrt.graph.constants import is_mapped

if TYPE_CHECKING:
    from xrt.engines import MemoryUse
    from xrt.partition import Launch, Plan
    from xrt.runtime import Program


@dataclass(frozen=True, slots=True)
class RegionMemory:
    """Memory of one region."""

    name: str
    engine: str
    weights: int
    """Bytes of the constants that it reads; a constant read by several regions is stored only once."""
    uses: tuple[MemoryUse, ...] | None
    """Memory that the engine reports, without weights; None if it reports none, or nothing is compiled yet."""
    same_as: str = ""
    """An earlier equal region whose executable it shares."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of one signature in bytes. Prints as a table; `to_dict` returns plain data."""

    weights: int
    """Bytes of constants that regions read, each counted once."""
    mapped: int
    """Bytes of ``weights`` and ``unused`` in memory-mapped files, whose pages the OS loads on demand and may evict."""
    unused: int
    """Bytes of model constants that no region reads after constant folding, but that are still in memory."""
    crossing: int
    """Bytes of the regions' outputs whose sizes are known at compile time."""
    unknown: int
    """Number of region outputs whose sizes are known only at run time."""
    arena: int | None
    """Bytes of the arena for values between regions, one per concurrent call; None before the compile."""
    regions: tuple[RegionMemory, ...]

    @property
    def is_compiled(self) -> bool:
        """Whether the signature is compiled, so that engines report their memory."""
        return self.arena is not None

    @property
    def held(self) -> int:
        """Bytes in use between calls, as far as engines report them."""
        uses = (use for region in self.regions if not region.same_as for use in region.uses or ())
        return self.weights + self.unused + sum(use.nbytes or 0 for use in uses if not use.per_call)

    @property
    def shared(self) -> int:
        """Bytes of ``held`` in memory-mapped files, whose pages all processes of the host share."""
        uses = (use for region in self.regions if not region.same_as for use in region.uses or ())
        return self.mapped + sum(use.nbytes or 0 for use in uses if use.shared)

    @property
    def private(self) -> int:
        """Bytes of ``held`` that are not shared between processes."""
        return self.held - self.shared

    def to_dict(self) -> dict[str, Any]:
        """The figures as dicts, lists and numbers."""
        return {**asdict(self), "held": self.held, "shared": self.shared, "private": self.private}

    def _repr_html_(self) -> str:
        """An HTML table for a notebook."""
        from xrt.html.views import render_cell  # only for notebooks

        rows = [(name.strip(), "?" if nbytes is None else _size(nbytes), why) for name, nbytes, why in _rows(self)]
        table = ("Bytes of one signature", {"what": "", "size": "number", "": ""}, rows)
        return render_cell("summary.html", title="Memory", facts={}, tables=[table])

    def __str__(self) -> str:
        rows = ((name, "?" if nbytes is None else _size(nbytes), why) for name, nbytes, why in _rows(self))
        return "\n".join(f"{name:<28}{size:>11}  {why}".rstrip() for name, size, why in rows)


def memory(plan: Plan, original: Function, program: Program | None) -> Memory:
    """Compute the memory of a plan; ``original`` is the unoptimized model, ``program`` is None before the compile."""
    used = _held([plan.function, *(launch.function for launch in plan.launches)])
    everything = {**used, **_held([original])}
    sizes = [
        v.type.nbytes if isinstance(v.type, TensorType) else None for launch in plan.launches for v in launch.function.outputs
    ]
    known = [size for size in sizes if size is not None]
    return Memory(
        weights=_total(used.values()),
        mapped=_total(constant for constant in everything.values() if is_mapped(constant.array)),
        unused=_total(everything.values()) - _total(used.values()),
        crossing=sum(known),
        unknown=len(sizes) - len(known),
        arena=program.arena_bytes if program else None,
        regions=tuple(_regions(plan.launches, program)),
    )


def _regions(launches: Sequence[Launch], program: Program | None) -> Iterator[RegionMemory]:
    first: dict[int, str] = {}
    for index, launch in enumerate(launches):
        weights = _total(_held([launch.function]).values())
        if program is None:
            yield RegionMemory(launch.name, launch.engine, weights, None)
            continue
        executable = program.executables[index]
        uses = executable.memory()
        name = first.setdefault(id(executable), launch.name)
        same_as = name if name != launch.name else ""
        yield RegionMemory(launch.name, launch.engine, weights, None if uses is None else tuple(uses), same_as)


def _held(functions: Iterable[Function]) -> dict[object, Constant]:
    """Constants by memory address and size, including those in bodies and attributes."""
    return {_place(constant): constant for function in functions for constant in _constants(function)}


def _place(constant: Constant) -> object:
    return constant.array.ctypes.data, constant.array.nbytes


def _constants(function: Function) -> Iterator[Constant]:
    yield from function.constants.values()
    for node in function.nodes:
        for attribute in node.attributes:
            values = attribute.value if attribute.kind.is_list else (attribute.value,)
            yield from (value for value in values if isinstance(value, Constant))
        for body in node.bodies:
            yield from _constants(body)


def _total(constants: Iterable[Constant]) -> int:
    return sum(constant.nbytes for constant in constants)


# ---------------------------------------------------------------------- as a table

Row = tuple[str, int | None, str]


def _rows(memory: Memory) -> Iterator[Row]:
    """Yield table rows: a label, bytes (None if unknown), and a remark."""
    yield "weights", memory.weights, f"held once; {_size(memory.mapped)} of all constants in mapped files"
    if memory.unused:
        yield "  unused", memory.unused, "constants of the model that were folded into others"
    rest = f"; {memory.unknown} more of sizes known only at run time" if memory.unknown else ""
    if memory.arena:
        yield "between regions", memory.arena, f"per call: the arena, for values of {_size(memory.crossing)}{rest}"
    else:
        planned = "no arena; " if memory.is_compiled else ""  # None: the compile plans the arena
        yield "between regions", memory.crossing, f"per call: {planned}values, each in memory of its own{rest}"
    seen: set[str] = set()
    for region in memory.regions:
        yield f"{region.name} on {region.engine}", region.weights, "of the weights"
        uses: list[Row] = [("the engine's own", None, "the engine does not tell")] * memory.is_compiled
        if region.same_as:
            uses = [("executable", 0, f"that of {region.same_as}, which is equal")]
        elif region.uses is not None:
            uses = [(use.name, use.nbytes, f"per call: {use.why}" if use.per_call else use.why) for use in region.uses]
        for name, nbytes, why in uses:
            yield f"  {name}", nbytes, "as above" if why in seen else why
            seen.add(why)
    hint = "" if memory.is_compiled else "before the compile; m.compile() lets the engines tell theirs"
    yield "held between calls", memory.held, hint
    if memory.shared:
        yield "  shared", memory.shared, "in mapped files: processes have the same pages, and the system may drop them"
        yield "  private", memory.private, "of this process alone"


def _size(nbytes: int) -> str:
    if nbytes < 1000:
        return f"{nbytes} B"
    return f"{nbytes / 1e6:.1f} MB" if nbytes >= 1e6 else f"{nbytes / 1e3:.1f} kB"
