"""Plans of model files, so that a later process can start without loading the model.

A plan is found by the model file and all other inputs of the decision. It contains the inputs and outputs of the model and of
each region, the regions' fingerprints, and the locations of their weights: in the model's files or in the plan file. Nodes are
not stored; a process that needs them reads the model. A file that is damaged, or of another model, is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from xrt.errors import BundleError
from xrt.formats.container import Buffer, Container, ContainerWriter
from xrt.formats.output import identify_file
from xrt.graph.constants import Stamp
from xrt.graph.types import DType, TensorType, Value

__all__ = [
    "OWN",
    "StoredLaunch",
    "StoredModel",
    "StoredPlan",
    "StoredWeight",
    "dump_plan",
    "dump_values",
    "is_stale",
    "merge",
    "parse",
    "parse_plan",
    "parse_values",
    "read_plans",
    "read_section",
    "write_plans",
]

KIND = "model plans"
FORMAT = 2
MOST_PLANS = 16
MOST_BYTES = 1 << 24
"""Limit in bytes for the text of a plan file."""
MOST_SECTIONS = 16_000_000
"""Limit in bytes for weights that are in no file of the model, and so are stored with its plans."""

_TEXT = "plans"
OWN = -1
"""`StoredWeight.file` of a weight stored in the plan file."""


class StoredWeight(NamedTuple):
    """Location of a constant's bytes."""

    digest: str
    """SHA-256 of the constant, in hex."""
    file: int
    """Index into `StoredModel.files`, or `OWN` for the section named by the digest."""
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


class StoredPlan(NamedTuple):
    """The plan for one input signature."""

    key: Any
    """What it depends on: None, or the shape of each input."""
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    launches: tuple[StoredLaunch, ...]


class StoredModel(NamedTuple):
    """A model file with its plans."""

    files: tuple[tuple[str, Stamp], ...]
    """The model file and its external data files, with stamps to detect changes."""
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    plans: tuple[StoredPlan, ...]
    sections: Mapping[str, Any] = {}
    """Weights in the plan file by digest: a container to read from, or bytes."""


def merge(before: StoredModel | None, model: StoredModel) -> StoredModel | None:
    """Merge a model's plans into the stored ones; the oldest are dropped beyond the limits.

    Return None if its own plans exceed the weight limit. Raises BundleError for damaged weights.
    """
    plans = list(model.plans)
    known: dict[str, Any] = {}
    if before is not None and before[:3] == model[:3]:  # same files, inputs and outputs
        new = {plan.key for plan in plans}
        plans, known = [*(plan for plan in before.plans if plan.key not in new), *plans], dict(before.sections)
    plans = plans[-MOST_PLANS:]
    while plans:
        named = {one.digest for plan in plans for launch in plan.launches for one in launch.weights if one.file == OWN}
        sections = {name: model.sections[name] if name in model.sections else known[name] for name in sorted(named)}
        if sum(len(read_section(data, name)) for name, data in sections.items()) <= MOST_SECTIONS:
            return model._replace(plans=tuple(plans), sections=sections)
        if len(plans) <= len(model.plans):
            return None
        del plans[0]
    return None


def write_plans(file: BinaryIO, model: StoredModel) -> None:
    """Write a model's plans with their weights."""
    writer = ContainerWriter(file, KIND)
    writer.add(_TEXT, json.dumps({"format": FORMAT, **_dump(model)}, separators=(",", ":")).encode())
    for digest, data in model.sections.items():
        writer.add(digest, read_section(data, digest))
    writer.finish()


def read_plans(path: Path) -> StoredModel:
    """Read a model's plans; raises BundleError if the file is damaged, OSError if it is unreadable."""
    container = Container.open(path, KIND)
    model = parse(bytes(container.section(_TEXT)))
    return model._replace(sections={name: container for name in container.sections if name != _TEXT})


def is_stale(model: StoredModel) -> bool:
    """Whether a file of the model has changed."""
    return any(identify_file(Path(path)) != stamp for path, stamp in model.files)


def read_section(data: Any, digest: str) -> Buffer:
    """The bytes of a weight in the plan file; raises BundleError if damaged."""
    return data.section(digest) if isinstance(data, Container) else data


# ---------------------------------------------------------------------- as text


def _dump(model: StoredModel) -> dict[str, Any]:
    return {
        "files": model.files,
        "inputs": dump_values(model.inputs),
        "outputs": dump_values(model.outputs),
        "plans": [dump_plan(plan) for plan in model.plans],
    }


def dump_plan(plan: StoredPlan) -> dict[str, Any]:
    """Serialize a plan to JSON values for `parse_plan`."""
    ends = {"inputs": dump_values(plan.inputs), "outputs": dump_values(plan.outputs)}
    return {"key": plan.key, **ends, "launches": [_dump_launch(launch) for launch in plan.launches]}


def _dump_launch(launch: StoredLaunch) -> list[Any]:
    return [*launch[:6], dump_values(launch.inputs), dump_values(launch.outputs), launch.computed, launch.weights]


def dump_values(values: Iterable[Value]) -> list[Any]:
    """Serialize names and tensor types to JSON values for `parse_values`; other types are dropped."""
    return [_dump_value(value) for value in values]


def _dump_value(value: Value) -> list[Any]:
    type_ = value.type
    if not isinstance(type_, TensorType):
        return [value.name, None, None]
    return [value.name, type_.dtype.text, type_.shape]


def parse(data: bytes) -> StoredModel:
    """Parse stored plans; raises BundleError if the text is invalid."""
    try:
        if len(data) > MOST_BYTES:
            raise ValueError(f"it has {len(data)} bytes")
        facts: Any = json.loads(data)
        if facts["format"] != FORMAT:
            raise ValueError(f"its format is {facts['format']!r}, and this version of XRT reads {FORMAT}")
        return _model(facts)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise BundleError(f"it holds no plans: {type(error).__name__}: {error}") from error


def _model(facts: Any) -> StoredModel:
    files = tuple((_text(path), tuple(_number(one) for one in stamp)) for path, stamp in _list(facts["files"]))
    plans = tuple(parse_plan(one, len(files)) for one in _list(facts["plans"]))
    if not files or len(plans) > MOST_PLANS:
        raise ValueError("it names no file, or has too many plans")
    model = StoredModel(files, parse_values(facts["inputs"]), parse_values(facts["outputs"]), plans)
    _check_ends(model)
    return model


def parse_plan(facts: Any, files: int) -> StoredPlan:
    """Parse a plan of `dump_plan`, for a model with `files` files.

    Raises ValueError, TypeError or KeyError if invalid.
    """
    launches = tuple(_launch(one, files) for one in _list(facts["launches"]))
    key = facts["key"]
    if key is not None:
        key = tuple(None if shape is None else tuple(_number(one) for one in shape) for shape in _list(key))
    plan = StoredPlan(key, parse_values(facts["inputs"]), parse_values(facts["outputs"]), launches)
    _check_order(plan)
    return plan


_SIZE = TensorType(DType.INT64, ())


def _check_ends(model: StoredModel) -> None:
    """Check that each plan has the model's inputs and outputs: names, element types and static extents.

    A plan of the padded form has additional size inputs. Raises ValueError.
    """
    for plan in model.plans:
        inputs, sizes = plan.inputs[: len(model.inputs)], plan.inputs[len(model.inputs) :]
        own, ends = (*inputs, None, *plan.outputs), (*model.inputs, None, *model.outputs)
        if len(own) != len(ends) or not all(map(_fits, own, ends)) or any(one.type != _SIZE for one in sizes):
            raise ValueError("a plan has other inputs or outputs than the model")
        if plan.key is not None and len(plan.key) != len(plan.inputs):
            raise ValueError("a plan is of another number of inputs")


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


def _check_order(plan: StoredPlan) -> None:
    """Check that each value is defined once and before it is read. Raises ValueError."""
    known = {value.name for value in plan.inputs}
    if len(known) != len(plan.inputs) or len({launch.name for launch in plan.launches}) != len(plan.launches):
        raise ValueError("a name occurs twice")
    names = {launch.name for launch in plan.launches}
    for launch in plan.launches:
        if not launch.nodes or not set(launch.control) <= names - {launch.name} or not launch.name:
            raise ValueError(f"launch {launch.name!r} has no nodes or no name, or waits for one that is not there")
        made = {value.name for value in launch.outputs}
        if not set(launch.computed) <= made:
            raise ValueError(f"launch {launch.name!r} computes what is no output of it")
        if not {value.name for value in launch.inputs} <= known or made & known or len(made) != len(launch.outputs):
            raise ValueError(f"launch {launch.name!r} does not fit the others")
        known |= made
    if not {value.name for value in plan.outputs} <= known:
        raise ValueError("an output is not computed")


def _launch(facts: Any, files: int) -> StoredLaunch:
    name, engine, nodes, control, function, fingerprint, inputs, outputs, computed, weights = _list(facts)
    found = tuple(_weight(one, files) for one in _list(weights))
    names = _texts(nodes), _texts(control), _text(function), _text(fingerprint)
    return StoredLaunch(_text(name), _text(engine), *names, parse_values(inputs), parse_values(outputs), _texts(computed), found)


def _weight(facts: Any, files: int) -> StoredWeight:
    digest, file, offset, size = _list(facts)
    if file != OWN and not 0 <= _number(file) < files:
        raise ValueError("a weight lies in no file")
    bytes.fromhex(_text(digest))
    return StoredWeight(digest, file, _number(offset), _number(size))


def parse_values(facts: Any) -> tuple[Value, ...]:
    """Parse values of `dump_values`; raises ValueError or TypeError if invalid."""
    return tuple(_value(*_list(one)) for one in _list(facts))


def _value(name: Any, dtype: Any, shape: Any) -> Value:
    if dtype is None:
        return Value(_text(name))
    found = next((one for one in DType if one.text == dtype), None)
    if found is None:
        raise ValueError(f"there is no element type {dtype!r}")
    return Value(_text(name), TensorType(found, None if shape is None else tuple(_dim(dim) for dim in _list(shape))))


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
