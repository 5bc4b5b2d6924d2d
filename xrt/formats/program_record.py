"""Program records: descriptions of compiled programs, with which a process can start without loading the model.

A record has the inputs and outputs of the model and of each region, the fingerprints of the regions, and the locations of the
weights. It has no nodes: a process that needs nodes reads the model or the plan. The compile cache stores one record per model
file and options (`write_record`). A bundle has a record too, plus the options of its module (`xrt.formats.bundle`).
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
MAX_PROGRAMS = 16
"""Maximum number of programs in a record of the cache. The oldest are dropped."""
MAX_TEXT_BYTES = 1 << 24
"""Maximum bytes of the JSON text of a record in the cache."""
MAX_WEIGHT_BYTES = 16_000_000
"""Maximum bytes of weights in a record. A record stores only weights that no file of the model contains, such as folded ones."""

# Section with the JSON text of the record.
_TEXT_SECTION = "record"
IN_RECORD = -1
"""Value of `StoredWeight.file` for a weight that is stored in the record."""


class StoredWeight(NamedTuple):
    """Location of the bytes of a constant."""

    digest: str
    file: int
    """Index into `ProgramRecord.files`, or `IN_RECORD` for the section named by the digest."""
    offset: int
    size: int


class StoredLaunch(NamedTuple):
    """A region of a plan with everything that a call needs, but without nodes."""

    name: str
    engine: str
    nodes: tuple[str, ...]
    """Names of the model's nodes in the region."""
    control: tuple[str, ...]
    """Names of launches that must run before this one."""
    function: str
    """Name of the region's Function."""
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
    """The cache signature for which the region was compiled, as (name, value) pairs."""
    reason: str = ""
    """Why the engine did not save the region."""


class StoredProgram(NamedTuple):
    """The program for one set of input shapes."""

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    launches: tuple[StoredLaunch, ...]
    """Empty if the program cannot run without the nodes of its plan; the plan is then read from section ``plan``."""
    engines: tuple[str, ...] = ()
    """Specs of all engines of the plan, by priority."""
    implicit: str | None = None
    """Spec of the engine that was added as a fallback, if any."""
    key: tuple[tuple[int, ...] | None, ...] | None = None
    """The shape of each input, or None for an input without a shape. The whole key is None for the shapes of the model itself."""
    fetch: tuple[str, ...] = ()
    """Names of the values that the program returns instead of the model's outputs."""
    function: str = ""
    """Section of a bundle with the Function that was planned."""
    plan: str = ""
    """Section of a bundle with the Plan, including nodes and reasons."""
    compiled: tuple[CompiledForm, ...] = ()
    """In a bundle, the compiled form of each launch."""


class ProgramRecord(NamedTuple):
    """The programs of a model, with the inputs and outputs that the model declares."""

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    programs: tuple[StoredProgram, ...]
    files: tuple[tuple[str, Stamp], ...] = ()
    """The model file and its external data files, with stamps to detect changes; empty in a bundle."""
    facts: Mapping[str, Any] = {}
    """In a bundle, the options of its module, see `FACTS`; empty in the cache."""
    sections: Mapping[str, Any] = {}
    """The weights that are stored in the record: digest to bytes, or to the container that has the bytes."""


def merge(stored_record: ProgramRecord | None, record: ProgramRecord) -> ProgramRecord | None:
    """Add the programs of ``record`` to the programs of ``stored_record``, and drop the oldest that exceed the limits.

    Stored programs of another version of the model are dropped too. Return None if the weights of ``record`` alone exceed
    `MAX_WEIGHT_BYTES`. Raises BundleError for damaged weights.
    """
    programs, sections = list(record.programs), dict(record.sections)
    model_version = record.files, record.inputs, record.outputs
    if stored_record is not None and model_version == (stored_record.files, stored_record.inputs, stored_record.outputs):
        new_keys = {program.key for program in record.programs}
        programs = [program for program in stored_record.programs if program.key not in new_keys] + programs
        sections = {**stored_record.sections, **sections}
    programs = programs[-MAX_PROGRAMS:]
    # Drop the oldest stored programs until the weights fit. New programs, at the end of the list, are never dropped.
    while programs:
        weights = [weight for program in programs for launch in program.launches for weight in launch.weights]
        digests = sorted({weight.digest for weight in weights if weight.file == IN_RECORD})
        if sum(len(read_section(sections[digest], digest)) for digest in digests) <= MAX_WEIGHT_BYTES:
            return record._replace(programs=tuple(programs), sections={digest: sections[digest] for digest in digests})
        if len(programs) <= len(record.programs):
            return None
        del programs[0]
    return None


def write_record(file: BinaryIO, record: ProgramRecord) -> None:
    writer = ContainerWriter(file, KIND)
    writer.add(_TEXT_SECTION, dump(record))
    for digest, data in record.sections.items():
        writer.add(digest, read_section(data, digest))
    writer.finish()


def read_record(path: Path) -> ProgramRecord:
    """Read a record of the cache; raises BundleError if the file is damaged, OSError if it is unreadable."""
    container = Container.open(path, KIND)
    text = bytes(container.section(_TEXT_SECTION))
    if len(text) > MAX_TEXT_BYTES:
        raise BundleError(f"its text has {len(text)} bytes")
    record = parse(text)
    if not record.files:
        raise BundleError("it names no file")
    return record._replace(sections={name: container for name in container.sections if name != _TEXT_SECTION})


def is_stale(record: ProgramRecord) -> bool:
    return any(identify_file(Path(path)) != stamp for path, stamp in record.files)


def read_section(data: Any, digest: str) -> Buffer:
    """Return the bytes of a weight; ``data`` is a value of `ProgramRecord.sections`. Raises BundleError if they are damaged."""
    return data.section(digest) if isinstance(data, Container) else data


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
"""Names and types of the facts of a bundle. Most are options of its module. ``writer`` is the version of XRT, ``model`` the
section with the model (empty if the bundle has traces of an `xrt.Graph`), ``engines`` a list of specs and versions, and
``serving`` the text of a placement file with the serving configuration."""


def dump(record: ProgramRecord) -> bytes:
    """Serialize a record, except its sections, to JSON for `parse`. Programs become objects, other tuples lists."""
    values = {**record._asdict(), "programs": [program._asdict() for program in record.programs]}
    del values["sections"]
    return json.dumps(values, separators=(",", ":"), default=_dump_value).encode()


def _dump_value(value: Value) -> list[Any]:
    """Convert a tensor to ``[name, dtype, shape]``, and a value of another type to ``[name, None, type as text]``."""
    type_ = value.type
    if isinstance(type_, TensorType):
        return [value.name, type_.dtype.text, type_.shape]
    return [value.name, None, None if type_ is None else str(type_)]


def parse(data: bytes) -> ProgramRecord:
    """Parse the result of `dump`; raises BundleError if it is invalid."""
    try:
        values = json.loads(data)
        types = dict(_list_fields(ProgramRecord))
        fields = {name: _parse_field(types[name], values[name]) for name in ("inputs", "outputs", "programs", "files")}
        record = ProgramRecord(**fields, facts=_parse_facts(values["facts"]))
        _check(record)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, ModelError) as error:
        raise BundleError(f"it holds no programs: {type(error).__name__}: {error}") from error
    return record


def _parse_facts(facts: Any) -> dict[str, Any]:
    """Select the facts that `FACTS` lists; raises TypeError or KeyError if one has another type, or is missing."""
    if not facts:
        return {}
    for name, kind in FACTS.items():
        if type(facts[name]) is not kind:
            raise TypeError(f"{name} is {facts[name]!r:.80}, not a {kind.__name__}")
    engines = [{name: _parse_field(str, engine[name]) for name in ("spec", "version")} for engine in facts["engines"]]
    return {**{name: facts[name] for name in FACTS}, "engines": engines}


@cache
def _list_fields(kind: type) -> tuple[tuple[str, Any], ...]:
    return tuple(get_type_hints(kind).items())


def _parse_field(kind: Any, value: Any) -> Any:
    """Convert parsed JSON to the type ``kind`` of a field; raises TypeError or ValueError if its structure differs."""
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
    if type(None) in args:  # an optional field
        return None if value is None else _parse_field(args[0], value)
    if get_origin(kind) is not tuple:  # a NamedTuple
        fields = _list_fields(kind)
        items = [value[name] for name, _ in fields] if isinstance(value, dict) else _check_list(value)
        return kind(*(_parse_field(type_, item) for (_, type_), item in zip(fields, items, strict=True)))
    if args[-1] is Ellipsis:
        return tuple(_parse_field(args[0], item) for item in _check_list(value))
    return tuple(_parse_field(type_, item) for type_, item in zip(args, _check_list(value), strict=True))


def _check_list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise TypeError(f"a list is expected, not {type(value).__name__}")
    return value


def _parse_value(name: Any, dtype: Any, shape: Any) -> Value:
    """Parse the result of `_dump_value`; without a dtype, ``shape`` is the type as text."""
    name = _parse_field(str, name)
    if dtype is not None:
        dims = None if shape is None else tuple(map(_parse_dim, _check_list(shape)))
        return Value(name, TensorType(_DTYPES[dtype], dims))
    if shape is None:
        return Value(name)
    from xrt.formats.text import parse_type  # imported only here: nearly all inputs and outputs are tensors

    return Value(name, parse_type(_parse_field(str, shape)))


_DTYPES = {dtype.text: dtype for dtype in DType}


def _parse_dim(dim: Any) -> int | str | None:
    if type(dim) is int and dim < 0:
        raise ValueError("an extent is negative")
    return None if dim is None else _parse_field(str if type(dim) is str else int, dim)


def _check(record: ProgramRecord) -> None:
    """Raise ValueError if the fields of a record contradict each other."""
    if not record.files and not record.facts:
        raise ValueError("it names neither a model file nor options of a module")
    for program in record.programs:
        if program.launches:
            _check_order(program)
        for launch in program.launches:
            for weight in launch.weights:
                is_known_file = weight.file == IN_RECORD or weight.file < len(record.files)
                if not is_known_file or min(weight.offset, weight.size) < 0:
                    raise ValueError("a weight is outside the files")
                bytes.fromhex(weight.digest)  # raises ValueError
    if record.files:
        if len(record.programs) > MAX_PROGRAMS or not all(program.launches for program in record.programs):
            raise ValueError("it has too many programs, or one without launches")
        _check_inputs_and_outputs(record)


_SIZE_TYPE = TensorType(DType.INT64, ())


def _check_inputs_and_outputs(record: ProgramRecord) -> None:
    """Raise ValueError unless each program has the model's inputs and outputs, with the same names, dtypes and static dims.

    A program that pads its inputs has additional inputs, the sizes before padding, as int64 scalars.
    """
    input_count = len(record.inputs)
    for program in record.programs:
        has_all = len(program.inputs) >= input_count and len(program.outputs) == len(record.outputs)
        pairs = (*zip(program.inputs, record.inputs, strict=False), *zip(program.outputs, record.outputs, strict=False))
        is_matching = all(_is_compatible(*pair) for pair in pairs)
        has_sizes = all(value.type == _SIZE_TYPE for value in program.inputs[input_count:])
        if not (has_all and is_matching and has_sizes):
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
    names = {launch.name for launch in program.launches}
    if len(defined) != len(program.inputs) or len(names) != len(program.launches):
        raise ValueError("a name occurs twice")
    for launch in program.launches:
        has_known_control = set(launch.control) <= names - {launch.name}
        if not launch.nodes or not launch.name or not has_known_control:
            raise ValueError(f"launch {launch.name!r} has no nodes or no name, or waits for an unknown launch")
        outputs = {value.name for value in launch.outputs}
        if not set(launch.computed) <= outputs:
            raise ValueError(f"launch {launch.name!r} computes values that are not its outputs")
        reads_defined = {value.name for value in launch.inputs} <= defined
        defines_new = defined.isdisjoint(outputs) and len(outputs) == len(launch.outputs)
        if not (reads_defined and defines_new):
            raise ValueError(f"launch {launch.name!r} reads or defines unexpected values")
        defined |= outputs
    if not {value.name for value in program.outputs} <= defined:
        raise ValueError("an output is not computed")


MAX_FILES = 16
"""Maximum number of open files per module. A model with more files is not started from the cache."""


class FileRange(NamedTuple):
    path: Path
    offset: int
    size: int


def find_file_ranges(path: Path, stamp: Stamp, constants: Mapping[str, Constant]) -> dict[str, FileRange]:
    """Find the byte ranges of constants in the model file ``path`` or in its external data, without reading the files.

    Constants that were created in memory, or loaded from a file whose stamp is not ``stamp``, are omitted.
    """
    ranges: dict[str, FileRange] = {}
    for name, constant in constants.items():
        mapping, mapped_offset = find_file_offset(constant.array) or (None, 0)
        copied_stamp, copied_offset = _find_file_part(constant.array) or (None, 0)
        if mapping is not None and mapping.path is not None:
            ranges[name] = FileRange(Path(mapping.path), mapped_offset, constant.nbytes)
        elif copied_stamp == stamp:
            ranges[name] = FileRange(path, copied_offset, constant.nbytes)
    return ranges


def _find_file_part(array: np.ndarray[Any, Any]) -> tuple[Stamp, int] | None:
    """Find the `FilePart` of which a C-contiguous array is a view. Return the file's stamp and the array's offset in the file."""
    base: Any = array if array.flags.c_contiguous else None
    while isinstance(base, np.ndarray | memoryview):
        if isinstance(base, FilePart):
            return base.stamp, base.start + array.ctypes.data - base.ctypes.data
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return None


def check_unchanged(files: tuple[tuple[str, Stamp], ...]) -> None:
    for path, stamp in files:
        if identify_file(Path(path)) != stamp:
            raise ModelError(f"{path} has changed since the module was made; make a new XRTModule")


def _read_aligned(descriptor: int, path: str, offset: int, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    block = make_aligned_block(size)
    filled = 0
    while filled < size:  # one call reads at most 2 GB
        count = os.preadv(descriptor, [block.data[filled:]], offset + filled)
        if not count:
            raise StaleFunction(f"{path!r} became shorter while it was read")
        filled += count
    return block


class OpenFiles:
    """The open files of a model. They are closed by `close`, or by garbage collection."""

    def __init__(self, files: tuple[tuple[str, Stamp], ...]) -> None:
        """Raises OSError if a file cannot be opened, StaleFunction if it has changed since its stamp was made."""
        self._files = files
        self._lock = renew_after_fork(threading.Lock())
        with ExitStack() as stack:
            self._open = [stack.enter_context(Path(path).open("rb", buffering=0)) for path, _ in files]
            for file_index in range(len(files)):
                self._check(file_index)
            # All files are open: from here on `close` closes them. Until here, the stack does if one of them fails to open.
            self._close = weakref.finalize(self, stack.pop_all().close)

    def _check(self, file_index: int) -> None:
        path, stamp = self._files[file_index]
        if make_stamp(os.fstat(self._open[file_index].fileno())) != stamp:
            raise StaleFunction(f"{path} has changed since the module was made")

    def read(self, file_index: int, offset: int, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return bytes of a file: of file 0, the model, as an aligned copy; of external data files as a memory-mapped view.

        Raises StaleFunction if the file has changed or is unreadable, and after `close`.
        """
        with self._lock:
            if not self._close.alive:
                raise StaleFunction("the module is closed")
            (path, _), descriptor = self._files[file_index], self._open[file_index].fileno()
            try:
                if offset + size > os.fstat(descriptor).st_size:
                    raise StaleFunction(f"{path!r} has become shorter")
                if file_index:
                    part = np.frombuffer(map_file(descriptor, Path(path)), np.uint8, size, offset)
                else:
                    part = _read_aligned(descriptor, path, offset, size)
            except OSError as error:
                raise StaleFunction(f"{path!r} cannot be read: {error.strerror}") from error
            # Checked after reading, so that a change during the read is noticed.
            self._check(file_index)
            return part

    def close(self) -> None:
        with self._lock:
            self._close()
