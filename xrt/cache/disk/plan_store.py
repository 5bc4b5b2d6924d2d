"""Plans of model files: what a later process needs of a plan whose regions the cache has in compiled form.

A plan is found by the model file and all other inputs of the decision. Stored are the inputs and outputs of the model and of each
region, the regions' fingerprints, and the places of their weights: in the model's own files, or in the plan file. Nodes are not
stored; a process that needs them reads the model. A file that is damaged, or of another model, is ignored.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from xrt.cache.disk.weight_hashes import identify_file
from xrt.errors import BundleError, CacheError
from xrt.formats.container import Buffer, Container
from xrt.graph.constants import Stamp
from xrt.graph.types import DType, TensorType, Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from xrt.cache.disk.store import Store
    from xrt.cache.signature import Signature

__all__ = [
    "OWN",
    "PlanStore",
    "StoredLaunch",
    "StoredModel",
    "StoredPlan",
    "StoredWeight",
    "dump_plan",
    "dump_values",
    "merge",
    "parse",
    "parse_plan",
    "parse_values",
]

KIND = "model plans"
FORMAT = 1
MOST = 256
"""Files that are kept; the oldest go first."""
MOST_PLANS = 16
MOST_BYTES = 1 << 24
"""Bytes of text from which a file is not read."""
MOST_SECTIONS = 16_000_000
"""Bytes of weights that are in no file of the model, and are stored with its plans."""

_TEXT = "plans"
OWN = -1
"""The place of a weight that the plan file itself contains."""


class StoredWeight(NamedTuple):
    """Where the bytes of a constant lie."""

    digest: str
    """Of the constant, in hexadecimal digits."""
    file: int
    """Which of `StoredModel.files`; `OWN` for a section of the store's file that the digest names."""
    offset: int
    size: int


class StoredLaunch(NamedTuple):
    """A region without its nodes."""

    name: str
    engine: str
    nodes: tuple[str, ...]
    control: tuple[str, ...]
    function: str
    """The Function's own name."""
    fingerprint: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    computed: tuple[str, ...]
    """The outputs that nodes define."""
    weights: tuple[StoredWeight, ...]


class StoredPlan(NamedTuple):
    """The plan of one signature."""

    key: Any
    """What of the inputs it depends on: None, or the shape of each."""
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    launches: tuple[StoredLaunch, ...]


class StoredModel(NamedTuple):
    """A model file with its plans."""

    files: tuple[tuple[str, Stamp], ...]
    """The model's file, and those that it names, with what tells each from itself after a change."""
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    plans: tuple[StoredPlan, ...]
    sections: Mapping[str, Any] = {}
    """Weights in the plan file, by digest: what reads them, or their bytes."""


def merge(before: StoredModel | None, model: StoredModel) -> StoredModel | None:
    """Return a model with its plans and those already stored; the oldest are left out where there are too many.

    None if the weights stored with its own plans are over the limit alone. Raises BundleError for damaged weights.
    """
    plans = list(model.plans)
    known: dict[str, Any] = {}
    if before is not None and before[:3] == model[:3]:  # of the same files, inputs and outputs
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


class PlanStore:
    """The plans in a cache directory."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def read(self, signature: Signature) -> StoredModel | None:
        """Return what is kept for that signature; None where there is nothing, or a file of the model has changed.

        Raises CacheError for a file that is damaged, OSError for one that cannot be read.
        """
        file = self._file(signature)
        if not self._store.is_trusted() or not file.exists():
            return None
        self._store.check(file)
        try:
            container = Container.open(file, KIND)
            found = parse(bytes(container.section(_TEXT)), [list(pair) for pair in signature.ingredients])
        except BundleError as error:
            raise CacheError(f"plans {file.name} cannot be used: {error}") from error
        if found is None or any(identify_file(Path(path)) != stamp for path, stamp in found.files):
            return None
        with suppress(OSError):  # a directory that may only be read
            os.utime(file)
        return found._replace(sections={name: container for name in container.sections if name != _TEXT})

    def write(self, signature: Signature, model: StoredModel) -> int:
        """Keep a model's plans in place of those that are there, and return their size in bytes; raises OSError."""
        from xrt.formats.container import ContainerWriter

        if not self._store.is_trusted():
            return 0
        text = json.dumps({"format": FORMAT, "ingredients": signature.ingredients, **_dump(model)}, separators=(",", ":"))

        def fill(file: BinaryIO) -> None:
            writer = ContainerWriter(file, KIND)
            writer.add(_TEXT, text.encode())
            for digest, data in model.sections.items():
                writer.add(digest, read_section(data, digest))
            writer.finish()

        path = self._file(signature)
        self._store.place(path, fill)
        self._make_room(path.parent)
        return path.stat().st_size

    def _file(self, signature: Signature) -> Path:
        return self._store.root / "plans" / f"{signature.key[:40]}.xrt"

    @staticmethod
    def _make_room(folder: Path) -> None:
        if folder.is_symlink():
            return  # nothing outside of the directory is removed
        kept: list[tuple[float, Path]] = []
        for path in folder.iterdir():
            with suppress(FileNotFoundError):
                kept.append((path.lstat().st_mtime, path))
        for _, path in sorted(kept)[: max(len(kept) - MOST, 0)]:
            path.unlink(missing_ok=True)

    def sweep(self) -> int:
        """Remove the plans of files that are gone or have changed; return how many there were."""
        return sum(map(self._sweep, self._store.list_folder("plans")))

    def _sweep(self, file: Path) -> int:
        try:
            found = parse(bytes(Container.open(file, KIND).section(_TEXT)), None)
            stale = found is None or any(identify_file(Path(path)) != stamp for path, stamp in found.files)
        except (BundleError, OSError):
            stale = True
        if stale:
            file.unlink(missing_ok=True)
        return int(stale)


def read_section(data: Any, digest: str) -> Buffer:
    """Return the bytes of a weight in the plan file; raises BundleError if they are damaged."""
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
    """Return the plan as values of JSON, which `parse_plan` reads."""
    ends = {"inputs": dump_values(plan.inputs), "outputs": dump_values(plan.outputs)}
    return {"key": plan.key, **ends, "launches": [_dump_launch(launch) for launch in plan.launches]}


def _dump_launch(launch: StoredLaunch) -> list[Any]:
    return [*launch[:6], dump_values(launch.inputs), dump_values(launch.outputs), launch.computed, launch.weights]


def dump_values(values: Iterable[Value]) -> list[Any]:
    """Return names and types as values of JSON, which `parse_values` reads; what is no tensor has no type there."""
    return [_dump_value(value) for value in values]


def _dump_value(value: Value) -> list[Any]:
    type_ = value.type
    if not isinstance(type_, TensorType):
        return [value.name, None, None]
    return [value.name, type_.dtype.text, type_.shape]


def parse(data: bytes, ingredients: list[list[str]] | None) -> StoredModel | None:
    """Return the plans in a text, None where they are of other ingredients (if those are given).

    Raises BundleError for what is no such text.
    """
    try:
        if len(data) > MOST_BYTES:
            raise ValueError(f"it has {len(data)} bytes")
        facts: Any = json.loads(data)
        if facts["format"] != FORMAT:
            raise ValueError(f"its format is {facts['format']!r}, and this version of XRT reads {FORMAT}")
        if ingredients is not None and facts["ingredients"] != ingredients:
            return None
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
    """Return the plan that `dump_plan` wrote, of a model in so many files.

    Raises ValueError, TypeError or KeyError for something else.
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
    """Raise ValueError unless each plan has the model's inputs and outputs, by their names, element types and fixed extents.

    A plan of the padded form of the model has sizes as further inputs.
    """
    for plan in model.plans:
        inputs, sizes = plan.inputs[: len(model.inputs)], plan.inputs[len(model.inputs) :]
        own, ends = (*inputs, None, *plan.outputs), (*model.inputs, None, *model.outputs)
        if len(own) != len(ends) or not all(map(_fits, own, ends)) or any(one.type != _SIZE for one in sizes):
            raise ValueError("a plan has other inputs or outputs than the model")
        if plan.key is not None and len(plan.key) != len(plan.inputs):
            raise ValueError("a plan is of another number of inputs")


def _fits(own: Value | None, end: Value | None) -> bool:
    """Whether a plan's input or output can be that of the model; None separates inputs from outputs."""
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
    """Raise ValueError unless each value is defined once, before it is read."""
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
    """Return the values that `dump_values` wrote; raises ValueError or TypeError for something else."""
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
    value.encode()  # half of a surrogate pair is no text
    return value


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise TypeError(f"a number is expected, not {value!r}")
    return value
