"""Program records: the compiled programs of a model without its nodes, so that a process can start without loading the model.

A record has the inputs and outputs of the model and of each region, the regions' fingerprints, and the locations of their
weights. Nodes are not stored; a process that needs them reads the model or the plan. The cache keeps a record by model file and
options (`write_record`); a bundle is a record with its sections in one file, and the facts of its module (`xrt.formats.bundle`).
"""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections.abc import Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, get_args, get_origin, get_type_hints

import numpy as np

from xrt.errors import BundleError, ModelError
from xrt.forking import renew_after_fork
from xrt.formats.container import Buffer, Container, ContainerWriter
from xrt.formats.output import FilePart, identify_file, map_file
from xrt.graph.constants import Stamp, find_file_offset, make_aligned_block, make_stamp
from xrt.graph.deferred_function import StaleFunction
from xrt.graph.types import DType, TensorType, Value, may_equal

if TYPE_CHECKING:
    from xrt.graph.constants import Constant


KIND = "program record"
MOST_PROGRAMS = 16
"""A record stores at most this many programs of a model file."""
MOST_BYTES = 1 << 24
"""Maximum bytes of the JSON text of a record in the cache."""
MOST_SECTIONS = 16_000_000
"""Maximum bytes of the weights that are stored in the record because no file of the model contains them."""

_TEXT = "record"
IN_RECORD = -1
"""`StoredWeight.file` of a weight stored in the file of the record."""


class StoredWeight(NamedTuple):
    """Location of a constant's bytes."""

    digest: str
    file: int
    """Index into `ProgramRecord.files`, or `IN_RECORD` for the section named by the digest."""
    offset: int
    size: int


class StoredLaunch(NamedTuple):
    """A region of a plan: all that a call needs, without the nodes."""

    name: str
    engine: str
    nodes: tuple[str, ...]
    control: tuple[str, ...]
    function: str
    fingerprint: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    computed: tuple[str, ...]
    """Names of the outputs that nodes compute. The other outputs are inputs or constants, passed through."""
    weights: tuple[StoredWeight, ...]


class CompiledForm(NamedTuple):
    """The compiled form of a region in a bundle."""

    section: str
    """Section of the bundle; empty if the engine did not save the region."""
    ingredients: tuple[tuple[str, str], ...]
    """The signature that it was compiled for."""
    reason: str = ""
    """Why the engine did not save it."""


class StoredProgram(NamedTuple):
    """The program for one input signature. ``implicit`` is the spec of the engine that was added as a fallback, if any."""

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    launches: tuple[StoredLaunch, ...]
    """Empty if the program cannot run without the nodes of its plan; then the section ``plan`` is read."""
    engines: tuple[str, ...] = ()
    """Specs of all engines that took part, by priority."""
    implicit: str | None = None
    key: tuple[tuple[int, ...] | None, ...] | None = None
    """The input shapes it is compiled for (None: an input without a shape); None for the shapes that the model declares."""
    fetch: tuple[str, ...] = ()
    """Values that the call fetches instead of the model's outputs."""
    function: str = ""
    """Section of a bundle with the Function that was planned."""
    plan: str = ""
    """Section of a bundle with the Plan, including nodes and reasons."""
    compiled: tuple[CompiledForm, ...] = ()
    """In a bundle, the compiled form of each launch."""


class ProgramRecord(NamedTuple):
    """The programs of a model."""

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    programs: tuple[StoredProgram, ...]
    files: tuple[tuple[str, Stamp], ...] = ()
    """The model file and its external data files, with stamps to detect changes; none in a bundle."""
    facts: Mapping[str, Any] = {}
    """In a bundle, the options and engines of its module: see `FACTS`."""
    sections: Mapping[str, Any] = {}
    """The weights stored in the record, by digest: their bytes, or the container to read them from."""


def merge(stored_record: ProgramRecord | None, record: ProgramRecord) -> ProgramRecord | None:
    """Add the programs of ``record`` to those of ``stored_record``, and drop the oldest that exceed the limits.

    Return None if the weights of ``record`` alone exceed `MOST_SECTIONS`. Raises BundleError for damaged weights.
    """
    programs = list(record.programs)
    stored_sections: dict[str, Any] = {}
    if stored_record is not None and (stored_record.files, stored_record.inputs, stored_record.outputs) == (
        record.files,
        record.inputs,
        record.outputs,
    ):
        new_keys = {program.key for program in programs}
        programs = [*(old for old in stored_record.programs if old.key not in new_keys), *programs]
        stored_sections = dict(stored_record.sections)
    programs = programs[-MOST_PROGRAMS:]
    # Drop the oldest stored programs until the weights fit; the new ones are never dropped.
    while programs:
        digests = {w.digest for program in programs for launch in program.launches for w in launch.weights if w.file == IN_RECORD}
        sections = {name: record.sections[name] if name in record.sections else stored_sections[name] for name in sorted(digests)}
        if sum(len(read_section(data, name)) for name, data in sections.items()) <= MOST_SECTIONS:
            return record._replace(programs=tuple(programs), sections=sections)
        if len(programs) <= len(record.programs):
            return None
        del programs[0]
    return None


def write_record(file: BinaryIO, record: ProgramRecord) -> None:
    """Write a record with its weights to a file of the cache."""
    writer = ContainerWriter(file, KIND)
    writer.add(_TEXT, dump(record))
    for digest, data in record.sections.items():
        writer.add(digest, read_section(data, digest))
    writer.finish()


def read_record(path: Path) -> ProgramRecord:
    """Read a record of the cache; raises BundleError if the file is damaged, OSError if it is unreadable."""
    container = Container.open(path, KIND)
    text = bytes(container.section(_TEXT))
    if len(text) > MOST_BYTES:
        raise BundleError(f"its text has {len(text)} bytes")
    record = parse(text)
    if not record.files:
        raise BundleError("it names no file")
    return record._replace(sections={name: container for name in container.sections if name != _TEXT})


def is_stale(record: ProgramRecord) -> bool:
    """Whether a file of the model has changed."""
    return any(identify_file(Path(path)) != stamp for path, stamp in record.files)


def read_section(data: Any, digest: str) -> Buffer:
    """Return the bytes of a stored weight. ``data`` is their container or the bytes. Raises BundleError if damaged."""
    return data.section(digest) if isinstance(data, Container) else data


# ---------------------------------------------------------------------- as text


FACTS: Mapping[str, type] = {
    "writer": str,
    "model": str,
    "device": str,
    "strict": bool,
    "fold_constants": bool,
    "engines": list,
    "clustering": dict,
    "execution": dict,
    "shapes": dict,
    "serving": str,
}
"""Names and types of the facts of a bundle: options of its module; ``writer``, XRT's version; ``model``, the model's section or
empty for traces of a graph; ``engines``, specs and versions; ``serving``, the serving configuration as JSON, or empty."""


def dump(record: ProgramRecord) -> bytes:
    """Serialize a record without its sections for `parse`: programs as objects, other tuples as lists."""
    values = {**record._asdict(), "programs": [program._asdict() for program in record.programs]}
    del values["sections"]
    return json.dumps(values, separators=(",", ":"), default=_dump_value).encode()


def _dump_value(value: Value) -> list[Any]:
    """Convert a value to ``[name, dtype, shape]`` for a tensor, or to ``[name, None, type as text]``."""
    type_ = value.type
    if isinstance(type_, TensorType):
        return [value.name, type_.dtype.text, type_.shape]
    return [value.name, None, None if type_ is None else str(type_)]


def parse(data: bytes) -> ProgramRecord:
    """Parse a record; raises BundleError if the text is invalid."""
    try:
        values = json.loads(data)
        parts = {name: _build(kind, values[name]) for name, kind in _list_fields(ProgramRecord) if name in _PARTS}
        record = ProgramRecord(**parts, facts=_parse_facts(values["facts"]))
        _check(record)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, ModelError) as error:
        raise BundleError(f"it holds no programs: {type(error).__name__}: {error}") from error
    return record


_PARTS = ("inputs", "outputs", "programs", "files")


def _parse_facts(facts: Any) -> dict[str, Any]:
    if not facts:
        return {}
    for name, kind in FACTS.items():
        if type(facts[name]) is not kind:
            raise TypeError(f"{name} is {facts[name]!r:.80}, not a {kind.__name__}")
    engines = [{name: _build(str, engine[name]) for name in ("spec", "version")} for engine in facts["engines"]]
    return {**{name: facts[name] for name in FACTS}, "engines": engines}


@cache
def _list_fields(kind: type) -> tuple[tuple[str, Any], ...]:
    return tuple(get_type_hints(kind).items())


def _build(kind: Any, value: Any) -> Any:
    """Convert parsed JSON to the type of a field; raises TypeError or ValueError if it has another structure."""
    if kind is str:
        if type(value) is not str:
            raise TypeError(f"a text is expected, not {type(value).__name__}")
        value.encode()  # rejects lone surrogates
        return value
    if kind is int:  # `type`, because JSON's true would pass as an int
        if type(value) is not int or not IN_RECORD <= value < 1 << 64:
            raise TypeError(f"a number is expected, not {value!r:.80}")
        return value
    if kind is Value:
        return _parse_value(*_check_list(value))
    args = get_args(kind)
    if type(None) in args:
        return None if value is None else _build(args[0], value)
    if get_origin(kind) is not tuple:  # a NamedTuple
        fields = _list_fields(kind)
        items = [value[name] for name, _ in fields] if isinstance(value, dict) else _check_list(value)
        return kind(*(_build(field, item) for (_, field), item in zip(fields, items, strict=True)))
    if args[-1] is Ellipsis:
        return tuple(_build(args[0], item) for item in _check_list(value))
    return tuple(_build(field, item) for field, item in zip(args, _check_list(value), strict=True))


def _check_list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise TypeError(f"a list is expected, not {type(value).__name__}")
    return value


def _parse_value(name: Any, dtype: Any, shape: Any) -> Value:
    name = _build(str, name)
    if dtype is not None:
        return Value(name, TensorType(_DTYPES[dtype], None if shape is None else tuple(map(_parse_dim, _check_list(shape)))))
    if shape is None:
        return Value(name)
    from xrt.formats.text import parse_type  # few models have inputs or outputs that are not tensors

    return Value(name, parse_type(_build(str, shape)))


_DTYPES = {dtype.text: dtype for dtype in DType}


def _parse_dim(dim: Any) -> int | str | None:
    if type(dim) is int and dim < 0:
        raise ValueError("an extent is negative")
    return None if dim is None else _build(str if type(dim) is str else int, dim)


# ---------------------------------------------------------------------- consistency


def _check(record: ProgramRecord) -> None:
    """Raise ValueError unless the parts of a record fit together."""
    if not record.files and not record.facts:
        raise ValueError("it names neither a model file nor options of a module")
    for program in record.programs:
        if program.launches:
            _check_order(program)
        for weight in (weight for launch in program.launches for weight in launch.weights):
            if (weight.file != IN_RECORD and weight.file >= len(record.files)) or min(weight.offset, weight.size) < 0:
                raise ValueError("a weight is outside the files")
            bytes.fromhex(weight.digest)
    if record.files:
        if len(record.programs) > MOST_PROGRAMS or not all(program.launches for program in record.programs):
            raise ValueError("it has too many programs, or one without launches")
        _check_inputs_and_outputs(record)


_SIZE_TYPE = TensorType(DType.INT64, ())


def _check_inputs_and_outputs(record: ProgramRecord) -> None:
    """Raise ValueError unless each program has the model's inputs and outputs, with their names, dtypes and static dims.

    A program that pads its inputs has additional inputs with sizes.
    """
    for program in record.programs:
        count = len(record.inputs)
        are_complete = len(program.inputs) >= count and len(program.outputs) == len(record.outputs)
        pairs = (*zip(program.inputs, record.inputs, strict=False), *zip(program.outputs, record.outputs, strict=False))
        are_sizes = all(size.type == _SIZE_TYPE for size in program.inputs[count:])
        if not are_complete or not all(_is_compatible(*pair) for pair in pairs) or not are_sizes:
            raise ValueError("a program has other inputs or outputs than the model")
        if program.key is not None and len(program.key) != len(program.inputs):
            raise ValueError("a program's key has another number of inputs")


def _is_compatible(actual: Value, expected: Value) -> bool:
    """Whether a program's input or output has the model's name and a compatible type, with a shape if the model has one."""
    a, b = actual.type, expected.type
    if actual.name != expected.name or not isinstance(a, TensorType) or not isinstance(b, TensorType):
        return False
    return may_equal(a, b) and (a.shape is not None or b.shape is None)


def _check_order(program: StoredProgram) -> None:
    """Raise ValueError unless each value is defined once, before it is read."""
    defined = {value.name for value in program.inputs}
    if len(defined) != len(program.inputs) or len({launch.name for launch in program.launches}) != len(program.launches):
        raise ValueError("a name occurs twice")
    names = {launch.name for launch in program.launches}
    for launch in program.launches:
        if not launch.nodes or not set(launch.control) <= names - {launch.name} or not launch.name:
            raise ValueError(f"launch {launch.name!r} has no nodes or no name, or waits for an unknown launch")
        outputs = {value.name for value in launch.outputs}
        if not set(launch.computed) <= outputs:
            raise ValueError(f"launch {launch.name!r} computes values that are not its outputs")
        if not {value.name for value in launch.inputs} <= defined or outputs & defined or len(outputs) != len(launch.outputs):
            raise ValueError(f"launch {launch.name!r} reads or defines unexpected values")
        defined |= outputs
    if not {value.name for value in program.outputs} <= defined:
        raise ValueError("an output is not computed")


# ---------------------------------------------------------------------- weights in model files

MAX_FILES = 16
"""A module keeps at most this many files open. Models with more files are not started from the cache."""


class Place(NamedTuple):
    """A byte range of a file."""

    path: Path
    offset: int
    size: int


def find_places(path: Path, stamp: Stamp, constants: Mapping[str, Constant]) -> dict[str, Place]:
    """Find the byte ranges of constants in the model file ``path`` or in its external data, without reading them.

    Constants that were created in memory, or loaded from a file whose stamp is not ``stamp``, are omitted.
    """
    places: dict[str, Place] = {}
    for name, constant in constants.items():
        mapped, part = find_file_offset(constant.array), _find_file_part(constant.array)
        if mapped is not None and mapped[0].path is not None:
            places[name] = Place(Path(mapped[0].path), mapped[1], constant.nbytes)
        elif part is not None and part[0] == stamp:
            places[name] = Place(path, part[1], constant.nbytes)
    return places


def _find_file_part(array: np.ndarray[Any, Any]) -> tuple[Stamp, int] | None:
    """Find the stamp of the file that a C-contiguous array was read from, and its offset there; None for any other array."""
    base: Any = array if array.flags.c_contiguous else None
    while isinstance(base, np.ndarray | memoryview):
        if isinstance(base, FilePart):
            return base.stamp, base.start + array.ctypes.data - base.ctypes.data
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return None


def check_unchanged(files: tuple[tuple[str, Stamp], ...]) -> None:
    """Raise ModelError unless all files still match their stamps."""
    for path, stamp in files:
        if identify_file(Path(path)) != stamp:
            raise ModelError(f"{path} has changed since the module was made; make a new XRTModule")


class OpenFiles:
    """Files of a model, kept open and checked against their stamps. Closed by `close` or on garbage collection."""

    def __init__(self, files: tuple[tuple[str, Stamp], ...]) -> None:
        """Raises OSError if a file cannot be opened, StaleFunction if it does not match its stamp."""
        self._files = files
        self._lock = renew_after_fork(threading.Lock())
        with ExitStack() as stack:
            self._open = [stack.enter_context(Path(path).open("rb", buffering=0)) for path, _ in files]
            for file_index in range(len(files)):
                self._check(file_index)
            # From here on the files belong to this object; before, the stack closes them if one fails to open.
            self._close = weakref.finalize(self, stack.pop_all().close)

    def _check(self, file_index: int) -> None:
        path, stamp = self._files[file_index]
        if make_stamp(os.fstat(self._open[file_index].fileno())) != stamp:
            raise StaleFunction(f"{path} has changed since the module was made")

    def read(self, file_index: int, offset: int, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Read bytes of file ``file_index``. File 0, the model, is copied to aligned memory; the others are memory-mapped.

        Raises StaleFunction if the file has changed, is unreadable, or after `close`.
        """
        with self._lock:
            if not self._close.alive:
                raise StaleFunction("the module is closed")
            path, file = self._files[file_index][0], self._open[file_index].fileno()
            try:
                if offset + size > os.fstat(file).st_size:
                    raise StaleFunction(f"{path!r} has become shorter")
                if file_index:
                    part = np.frombuffer(map_file(file, Path(path)), np.uint8, size, offset)
                else:
                    part = make_aligned_block(size)
                    filled = 0
                    while filled < size:  # one call reads at most 2 GB
                        count = os.preadv(file, [part.data[filled:]], offset + filled)
                        if not count:
                            raise StaleFunction(f"{path!r} became shorter while it was read")
                        filled += count
            except OSError as error:
                raise StaleFunction(f"{path!r} cannot be read: {error.strerror}") from error
            # Checked after reading, so that a change during the read is noticed.
            self._check(file_index)
            return part

    def close(self) -> None:
        """Close the files."""
        with self._lock:
            self._close()
