"""Bundle files: one container with the sections below.

manifest            the program record (see `xrt.formats.program_record`), as JSON
model, function:0   the model, and the Functions that were planned, as ONNX models
plan:0              a Plan with its nodes and reasons, as a message of proto/xrt.proto
compiled:...        a region as its engine saved it, named by its signature
weight:...          a large constant of these models and plans, named by its digest
self-test           example inputs with the expected outputs
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from xrt.errors import BundleError
from xrt.formats import program_record
from xrt.formats.container import MAGIC, Buffer, Container, ContainerWriter
from xrt.formats.output import replace_file

if TYPE_CHECKING:
    from xrt.formats.program_record import ProgramRecord
    from xrt.graph import Constant, Function


KIND = "bundle"
_MANIFEST = "manifest"
_WEIGHT = "weight:"


def write_bundle(
    path: str | os.PathLike[str],
    record: ProgramRecord,
    models: Mapping[str, Function],
    plans: Mapping[str, Mapping[str, Any]],
    compiled: Mapping[str, Buffer],
) -> None:
    """Write a bundle atomically, replacing an existing file. The keys of the three mappings are section names.

    Raises BundleError if the file cannot be written, and ModelError for a Function that ONNX cannot express.
    """
    from xrt.formats.onnx.messages import encode_data
    from xrt.formats.protobuf import write_model, write_plan

    constants: dict[str, Constant] = {}

    def store(constant: Constant) -> str:
        name = f"{_WEIGHT}{constant.digest.hex()}"
        # Sections are named by digest, so equal constants are stored once.
        constants.setdefault(name, constant)
        return name

    parts: dict[str, Buffer] = {_MANIFEST: program_record.dump(record)}
    parts.update({name: write_model(function, store) for name, function in models.items()})
    parts.update({name: write_plan(values, store) for name, values in plans.items()})
    parts.update(compiled)

    def fill(file: BinaryIO) -> None:
        writer = ContainerWriter(file, KIND)
        for name, data in parts.items():
            writer.add(name, data)
        for name, constant in constants.items():
            writer.add(name, encode_data(constant))
        writer.finish()

    try:
        replace_file(Path(path), fill)
    except OSError as error:
        raise BundleError(f"cannot write {os.fspath(path)!r}: {error.strerror}") from error


class BundleFile:
    """An open bundle. Constants are memory-mapped; the record, models and compiled regions are read on access."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises BundleError with the path if the file is missing or corrupt."""
        self.path = Path(path)
        try:
            with self._reading():
                self._container = Container.open(self.path, KIND)
        except FileNotFoundError:
            raise BundleError(f"there is no bundle {os.fspath(path)!r}") from None

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Add the path of the file to errors."""
        try:
            yield
        except FileNotFoundError:
            raise  # the constructor has a shorter text for it
        except (BundleError, OSError) as error:
            raise BundleError(f"cannot load {os.fspath(self.path)!r}: {error}") from error

    @property
    def sections(self) -> Collection[str]:
        return self._container.sections

    @cached_property
    def record(self) -> ProgramRecord:
        """The program record; raises BundleError if it is corrupt."""
        with self._reading():
            record = program_record.parse(bytes(self._container.section(_MANIFEST)))
            # Records in the compile cache have the same form but lack the options that create a module.
            if not record.facts:
                raise BundleError("it has no options of a module")
            return record

    def _find_weight(self, name: str) -> memoryview | None:
        # Other sections are not tensors: a forged model must not read them as weights.
        return self._container.section(name) if name.startswith(_WEIGHT) else None

    def find_section(self, name: str) -> memoryview | None:
        """The contents of a section, or None if it does not exist. Raises BundleError if it is corrupt."""
        return self.read_compiled(name) if name in self._container.sections else None

    def check(self) -> None:
        """Verify the checksum of every section; raises BundleError if one differs."""
        with self._reading():
            self._container.check()

    def read_weight(self, digest: str) -> memoryview:
        """The verified bytes of a constant; raises BundleError if they are corrupt or missing."""
        return self.read_compiled(f"{_WEIGHT}{digest}")

    def read_compiled(self, section: str) -> memoryview:
        """The verified bytes of a compiled region; raises BundleError if they are corrupt or missing."""
        with self._reading():
            return self._container.section(section)

    def model(self, section: str) -> Function:
        """Read a model; raises BundleError if it is corrupt or missing."""
        from xrt.formats.protobuf import read_model

        with self._reading():
            return read_model(bytes(self._container.section(section)), self._find_weight)

    def read_plan(self, section: str) -> dict[str, Any]:
        """Read the fields of a Plan, by name; raises BundleError if it is corrupt or missing."""
        from xrt.formats.protobuf import read_plan

        with self._reading():
            return read_plan(bytes(self._container.section(section)), self._find_weight)

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each section in bytes; all weights together are under ``weights``."""
        sizes = {"weights": 0}
        for name, section in self._container.sections.items():
            kind = "weights" if name.startswith(_WEIGHT) else name
            sizes[kind] = sizes.get(kind, 0) + section.size
        return sizes


def load_model(path: str | os.PathLike[str]) -> Function:
    """Load the model that a bundle was created from, without compiled regions. For a graph, load its first trace.

    Raises BundleError if the file is missing or corrupt, or contains no model.
    """
    file = BundleFile(path)
    sections = [file.record.facts["model"], *(program.function for program in file.record.programs)]
    for section in filter(None, sections):
        return file.model(section)
    raise BundleError(f"{os.fspath(path)!r} holds no model")


@contextmanager
def make_working_directory() -> Iterator[Path]:
    """Create a temporary directory for engines that save or load through files."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="xrt-")
    except OSError:  # all disks are read-only: use Linux's in-memory file system
        folder = tempfile.TemporaryDirectory(prefix="xrt-", dir="/dev/shm")
    with folder as path:
        yield Path(path)


def is_bundle(path: str | os.PathLike[str]) -> bool:
    """Whether the file starts like a bundle; False if it cannot be read, and for a pipe, which is not consumed."""
    try:
        if not Path(path).is_file():
            return False
        with Path(path).open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):  # ValueError: NUL in the path
        return False
