"""Program records: the compiled programs of a model without its nodes, so that a process can start without loading the model.

A record has the inputs and outputs of the model and of each region, the regions' fingerprints, and the locations of their
weights. Nodes are not stored; a process that needs them reads the model or the plan. The cache keeps a record by model file and
options (`write_record`); a bundle is a record with its sections in one file, and the facts of its module (`xrt.formats.bundle`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from xrt.errors import BundleError, ModelError
from xrt.formats.container import Buffer, Container, ContainerWriter
from xrt.formats.output import identify_file
from xrt.graph.constants import Stamp
from xrt.graph.types import DType, TensorType, Value

__all__ = [
    "FORMAT",
    "OWN",
    "CompiledForm",
    "ProgramRecord",
    "StoredLaunch",
    "StoredProgram",
    "StoredWeight",
    "dump",
    "is_stale",
    "merge",
    "parse",
    "read_record",
    "read_section",
    "write_record",
]

KIND = "program record"
FORMAT = 2
"""Version of the text: the one written, and the only one read."""
MOST_PROGRAMS = 16
"""Limit on the programs of a model file."""
MOST_BYTES = 1 << 24
"""Limit in bytes for the text of a record in the cache."""
MOST_SECTIONS = 16_000_000
"""Limit in bytes for weights that are in no file of the model, and so are stored with its record."""

_TEXT = "record"
OWN = -1
"""`StoredWeight.file` of a weight stored in the file of the record."""


class StoredWeight(NamedTuple):
    """Location of a constant's bytes."""

    digest: str
    """SHA-256 of the constant, in hex."""
    file: int
    """Index into `ProgramRecord.files`, or `OWN` for the section named by the digest."""
    offset: int
    size: int


class StoredLaunch(NamedTuple):
    """A region without its nodes."""

    name: str
    engine: str
    nodes: tuple[str, ...]
    control: tuple[str, ...]
    function: str
    """Name of the Function."""
    fingerprint: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    computed: tuple[str, ...]
    """Outputs that are defined by nodes."""
    weights: tuple[StoredWeight, ...]


class CompiledForm(NamedTuple):
    """The compiled form of a region in a bundle."""

    section: str
    """Empty if there is none."""
    ingredients: tuple[tuple[str, str], ...]
    """The signature that it was compiled for."""
    reason: str = ""
    """Why the engine did not save it."""


class StoredProgram(NamedTuple):
    """The program for one input signature."""

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    launches: tuple[StoredLaunch, ...]
    """Empty if the plan needs its nodes: then it is read from the section ``plan``."""
    engines: tuple[str, ...] = ()
    """Specs of all engines that took part, by priority."""
    implicit: str | None = None
    key: Any = None
    """What it depends on: None, or the shape of each input."""
    fetch: tuple[str, ...] = ()
    """Values that the call fetches instead of the model's outputs."""
    function: str = ""
    """Section of a bundle with the Function that was planned."""
    plan: str = ""
    """Section of a bundle with the Plan, including nodes and reasons."""
    compiled: tuple[CompiledForm, ...] = ()
    """In a bundle, one for each launch."""


class ProgramRecord(NamedTuple):
    """The programs of a model."""

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    programs: tuple[StoredProgram, ...]
    files: tuple[tuple[str, Stamp], ...] = ()
    """The model file and its external data files, with stamps to detect changes; none in a bundle."""
    facts: Mapping[str, Any] = {}
    """In a bundle, what its module was given: see `FACTS`."""
    sections: Mapping[str, Any] = {}
    """Weights in the file of the record by digest: a container to read from, or bytes."""


def merge(before: ProgramRecord | None, record: ProgramRecord) -> ProgramRecord | None:
    """Add a record's programs to the stored ones of the model; the oldest are dropped beyond the limits.

    Return None if its own programs exceed the weight limit. Raises BundleError for damaged weights.
    """
    programs = list(record.programs)
    stored: dict[str, Any] = {}
    if before is not None and (before.files, before.inputs, before.outputs) == (record.files, record.inputs, record.outputs):
        new = {program.key for program in programs}
        programs, stored = [*(one for one in before.programs if one.key not in new), *programs], dict(before.sections)
    programs = programs[-MOST_PROGRAMS:]
    while programs:
        named = {one.digest for program in programs for launch in program.launches for one in launch.weights if one.file == OWN}
        sections = {name: record.sections[name] if name in record.sections else stored[name] for name in sorted(named)}
        if sum(len(read_section(data, name)) for name, data in sections.items()) <= MOST_SECTIONS:
            return record._replace(programs=tuple(programs), sections=sections)
        if len(programs) <= len(record.programs):
            return None
        del programs[0]
    return None


def write_record(file: BinaryIO, record: ProgramRecord) -> None:
    """Write a record of the cache with its weights."""
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
    """The bytes of a weight in the file of a record; raises BundleError if damaged."""
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
"""The facts of a bundle: XRT's version; the section of the model, empty for traces of a graph; options of the module; specs and
versions of the engines; the option ``shapes``; the serving configuration as text, or empty."""


def dump(record: ProgramRecord) -> bytes:
    """Serialize a record without its sections for `parse`."""
    values = {
        "format": FORMAT,
        "files": record.files,
        "facts": record.facts,
        "inputs": _dump_values(record.inputs),
        "outputs": _dump_values(record.outputs),
        "programs": [_dump_program(program) for program in record.programs],
    }
    return json.dumps(values, separators=(",", ":")).encode()


def _dump_program(program: StoredProgram) -> dict[str, Any]:
    launches = [
        [*launch[:6], _dump_values(launch.inputs), _dump_values(launch.outputs), launch.computed, launch.weights]
        for launch in program.launches
    ]
    ends = {"inputs": _dump_values(program.inputs), "outputs": _dump_values(program.outputs)}
    return {**program._asdict(), **ends, "launches": launches}


def _dump_values(values: Iterable[Value]) -> list[Any]:
    """Names with dtype and shape of tensors, or with the text of other types."""
    return [_dump_value(value) for value in values]


def _dump_value(value: Value) -> list[Any]:
    type_ = value.type
    if isinstance(type_, TensorType):
        return [value.name, type_.dtype.text, type_.shape]
    return [value.name, None, None if type_ is None else str(type_)]


def parse(data: bytes) -> ProgramRecord:
    """Parse a record; raises BundleError if the text is invalid."""
    try:
        values: Any = json.loads(data)
        if (version := values["format"]) == FORMAT:
            return _parse_record(values)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, ModelError) as error:
        raise BundleError(f"it holds no programs: {type(error).__name__}: {error}") from error
    reason = f"it has record format {version!r:.20}, and this version of XRT reads {FORMAT}"
    raise BundleError(f"{reason}; read it with the version that wrote it")


def _parse_record(values: Any) -> ProgramRecord:
    files = tuple((_text(path), tuple(_number(one) for one in stamp)) for path, stamp in _list(values["files"]))
    programs = tuple(_parse_program(one, len(files)) for one in _list(values["programs"]))
    inputs, outputs = _parse_values(values["inputs"]), _parse_values(values["outputs"])
    record = ProgramRecord(inputs, outputs, programs, files, _parse_facts(values["facts"]))
    if not files and not record.facts:
        raise ValueError("it is of no file and of no module")
    if files:
        if len(programs) > MOST_PROGRAMS or not all(program.launches for program in programs):
            raise ValueError("it has too many programs, or one without launches")
        _check_ends(record)
    return record


def _parse_facts(facts: Any) -> dict[str, Any]:
    if not facts:
        return {}
    for name, kind in FACTS.items():
        if type(facts[name]) is not kind:
            raise TypeError(f"{name} is {facts[name]!r:.80}, not a {kind.__name__}")
    engines = [{name: _text(one[name]) for name in ("spec", "version")} for one in facts["engines"]]
    return {**{name: facts[name] for name in FACTS}, "engines": engines}


def _parse_program(values: Any, files: int) -> StoredProgram:
    key, implicit = values["key"], values["implicit"]
    if key is not None:
        key = tuple(None if shape is None else tuple(_number(one) for one in shape) for shape in _list(key))
    program = StoredProgram(
        _parse_values(values["inputs"]),
        _parse_values(values["outputs"]),
        tuple(_parse_launch(one, files) for one in _list(values["launches"])),
        _texts(values["engines"]),
        None if implicit is None else _text(implicit),
        key,
        _texts(values["fetch"]),
        _text(values["function"]),
        _text(values["plan"]),
        tuple(_parse_compiled(*_list(one)) for one in _list(values["compiled"])),
    )
    if program.launches:
        _check_order(program)
    return program


def _parse_compiled(section: Any, ingredients: Any, reason: Any) -> CompiledForm:
    pairs = tuple((_text(name), _text(value)) for name, value in _list(ingredients))
    return CompiledForm(_text(section), pairs, _text(reason))


_SIZE = TensorType(DType.INT64, ())


def _check_ends(record: ProgramRecord) -> None:
    """Check that each program has the model's inputs and outputs: names, element types and static extents.

    A program of the padded form has additional size inputs. Raises ValueError.
    """
    for program in record.programs:
        inputs, sizes = program.inputs[: len(record.inputs)], program.inputs[len(record.inputs) :]
        own, ends = (*inputs, None, *program.outputs), (*record.inputs, None, *record.outputs)
        if len(own) != len(ends) or not all(map(_fits, own, ends)) or any(one.type != _SIZE for one in sizes):
            raise ValueError("a program has other inputs or outputs than the model")
        if program.key is not None and len(program.key) != len(program.inputs):
            raise ValueError("a program is of another number of inputs")


def _fits(own: Value | None, end: Value | None) -> bool:
    """Whether an input or output of a plan matches that of the model; None separates inputs from outputs."""
    if own is None or end is None:
        return own is end
    mine, its = own.type, end.type
    if own.name != end.name or not isinstance(mine, TensorType) or not isinstance(its, TensorType) or mine.dtype != its.dtype:
        return False
    if mine.shape is None or its.shape is None:
        return its.shape is None
    pairs = zip(mine.shape, its.shape, strict=False)
    return len(mine.shape) == len(its.shape) and not any(isinstance(x, int) and isinstance(y, int) and x != y for x, y in pairs)


def _check_order(program: StoredProgram) -> None:
    """Check that each value is defined once and before it is read. Raises ValueError."""
    defined = {value.name for value in program.inputs}
    if len(defined) != len(program.inputs) or len({launch.name for launch in program.launches}) != len(program.launches):
        raise ValueError("a name occurs twice")
    names = {launch.name for launch in program.launches}
    for launch in program.launches:
        if not launch.nodes or not set(launch.control) <= names - {launch.name} or not launch.name:
            raise ValueError(f"launch {launch.name!r} has no nodes or no name, or waits for one that is not there")
        outputs = {value.name for value in launch.outputs}
        if not set(launch.computed) <= outputs:
            raise ValueError(f"launch {launch.name!r} computes what is no output of it")
        if not {value.name for value in launch.inputs} <= defined or outputs & defined or len(outputs) != len(launch.outputs):
            raise ValueError(f"launch {launch.name!r} does not fit the others")
        defined |= outputs
    if not {value.name for value in program.outputs} <= defined:
        raise ValueError("an output is not computed")


def _parse_launch(values: Any, files: int) -> StoredLaunch:
    name, engine, nodes, control, function, fingerprint, inputs, outputs, computed, weights = _list(values)
    names = _text(name), _text(engine), _texts(nodes), _texts(control), _text(function), _text(fingerprint)
    places = tuple(_parse_weight(one, files) for one in _list(weights))
    return StoredLaunch(*names, _parse_values(inputs), _parse_values(outputs), _texts(computed), places)


def _parse_weight(values: Any, files: int) -> StoredWeight:
    digest, file, offset, size = _list(values)
    if file != OWN and not 0 <= _number(file) < files:
        raise ValueError("a weight lies in no file")
    bytes.fromhex(_text(digest))
    return StoredWeight(digest, file, _number(offset), _number(size))


def _parse_values(values: Any) -> tuple[Value, ...]:
    return tuple(_parse_value(*_list(one)) for one in _list(values))


def _parse_value(name: Any, dtype: Any, shape: Any) -> Value:
    if dtype is not None:
        return Value(_text(name), TensorType(_DTYPES[dtype], None if shape is None else tuple(_dim(dim) for dim in _list(shape))))
    if shape is None:
        return Value(_text(name))
    from xrt.formats.text import parse_type  # few models have inputs or outputs that are not tensors

    return Value(_text(name), parse_type(_text(shape)))


_DTYPES = {dtype.text: dtype for dtype in DType}


def _dim(dim: Any) -> int | str | None:
    return dim if dim is None else _text(dim) if type(dim) is str else _number(dim)


def _list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise TypeError(f"a list is expected, not {type(value).__name__}")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(_text(one) for one in _list(value))


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"a text is expected, not {type(value).__name__}")
    value.encode()  # rejects lone surrogates
    return value


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise TypeError(f"a number is expected, not {value!r}")
    return value
