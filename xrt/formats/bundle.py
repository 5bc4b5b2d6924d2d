"""Bundle files: a container with these sections:

manifest            the program record (see `xrt.formats.program_record`), as JSON
model, function:0   the model, and the Functions that were planned, as ONNX models
plan:0              a Plan with its nodes and reasons, as a message of proto/xrt.proto
compiled:...        a compiled region in the form that its engine saves, named by its cache signature
weight:...          a large constant of the models and plans, named by its digest
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
    """Write a bundle atomically. The keys of ``models``, ``plans`` and ``compiled`` are section names.

    Raises BundleError if the file cannot be written, and ModelError for a Function that ONNX cannot express.
    """
    from xrt.formats.onnx.messages import encode_data
    from xrt.formats.protobuf import write_model, write_plan

    constants: dict[str, Constant] = {}

    def store_constant(constant: Constant) -> str:
        name = f"{_WEIGHT}{constant.digest.hex()}"
        # Sections are named by digest, so equal constants are stored once.
        constants.setdefault(name, constant)
        return name

    sections: dict[str, Buffer] = {_MANIFEST: program_record.dump(record)}
    sections.update({name: write_model(function, store_constant) for name, function in models.items()})
    sections.update({name: write_plan(values, store_constant) for name, values in plans.items()})
    sections.update(compiled)

    def write_sections(file: BinaryIO) -> None:
        writer = ContainerWriter(file, KIND)
        for name, data in sections.items():
            writer.add(name, data)
        for name, constant in constants.items():
            writer.add(name, encode_data(constant))
        writer.finish()

    try:
        replace_file(Path(path), write_sections)
    except OSError as error:
        raise BundleError(f"cannot write {os.fspath(path)!r}: {error.strerror}") from error


class BundleFile:
    """An open bundle. Constants are memory-mapped; the record, models and compiled regions are read on access.

    All methods raise BundleError with the path if what they read is missing or corrupt.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            with self._add_path_to_errors():
                self._container = Container.open(self.path, KIND)
        except FileNotFoundError:
            raise BundleError(f"there is no bundle {os.fspath(path)!r}") from None

    @contextmanager
    def _add_path_to_errors(self) -> Iterator[None]:
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
        with self._add_path_to_errors():
            record = program_record.parse(bytes(self._container.section(_MANIFEST)))
            # Only a record in the compile cache may lack the options of the module.
            if not record.facts:
                raise BundleError("it has no options of a module")
            return record

    def _find_weight(self, name: str) -> memoryview | None:
        # A forged model must not read sections of another kind as weights.
        return self._container.section(name) if name.startswith(_WEIGHT) else None

    def check(self) -> None:
        with self._add_path_to_errors():
            self._container.check()

    def read_section(self, name: str) -> memoryview:
        with self._add_path_to_errors():
            return self._container.section(name)

    def read_weight(self, digest: str) -> memoryview:
        """Verify a constant and return its bytes in ONNX's encoding."""
        return self.read_section(f"{_WEIGHT}{digest}")

    def read_model(self, section: str) -> Function:
        from xrt.formats.protobuf import read_model

        with self._add_path_to_errors():
            return read_model(bytes(self._container.section(section)), self._find_weight)

    def read_plan(self, section: str) -> dict[str, Any]:
        from xrt.formats.protobuf import read_plan

        with self._add_path_to_errors():
            return read_plan(bytes(self._container.section(section)), self._find_weight)

    @property
    def section_bytes(self) -> dict[str, int]:
        """Bytes of each section; the key ``weights`` has the sum of all constants."""
        totals = {"weights": 0}
        for name, section in self._container.sections.items():
            key = "weights" if name.startswith(_WEIGHT) else name
            totals[key] = totals.get(key, 0) + section.size
        return totals


def load_model(path: str | os.PathLike[str]) -> Function:
    """Load the model that a bundle was created from, or the first trace if it was created from an `xrt.Graph`.

    Compiled regions are not read. Raises BundleError if the file is missing or corrupt, or contains no model.
    """
    file = BundleFile(path)
    sections = [file.record.facts["model"], *(program.function for program in file.record.programs)]
    section = next(filter(None, sections), None)
    if section is None:
        raise BundleError(f"{os.fspath(path)!r} holds no model")
    return file.read_model(section)


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
    """Whether the file begins like a bundle. False if the file cannot be read; nothing is read from a pipe."""
    try:
        if not Path(path).is_file():
            return False
        with Path(path).open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):  # ValueError: NUL in the path
        return False
