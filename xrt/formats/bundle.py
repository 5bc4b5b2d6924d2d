"""Bundle files: the manifest, each large constant once, and engines' compiled forms, in one container.

What the manifest means is the module's; here it is plain values, with Functions where the message has models.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO

from xrt.errors import BundleError
from xrt.formats.container import MAGIC, Buffer, Container, ContainerWriter
from xrt.formats.output import replace_file

if TYPE_CHECKING:
    from xrt.graph import Constant, Function
    from xrt.graph.constants import FileIdentity

__all__ = ["FORMAT", "BundleFile", "is_bundle", "load_model", "make_working_directory", "write_bundle"]

KIND = "bundle"
FORMAT = 1
"""The version of the manifest that is written, and the only one that is read."""

_MANIFEST = "manifest"
_WEIGHT = "weight:"


def write_bundle(
    path: str | os.PathLike[str],
    manifest: Mapping[str, Any],
    models: Mapping[str, Function],
    compiled: Mapping[str, Buffer],
    *,
    suffix: str = "",
    copied: Mapping[str, Buffer] = MappingProxyType({}),
) -> None:
    """Write a bundle, whole or not at all; whatever stood there is replaced. Models and compiled forms are by section name.

    ``copied`` are sections of the bundle that is extended, and ``suffix`` then tells this manifest from those in it. Raises
    BundleError where the file cannot be written, ModelError for a Function that ONNX cannot say.
    """
    from xrt.formats.onnx.tensors import encode_data
    from xrt.formats.protobuf import write, write_model

    constants: dict[str, Constant] = {}

    def keep(constant: Constant) -> str:
        name = f"{_WEIGHT}{constant.digest.hex()}"
        constants.setdefault(name, constant)
        return name

    parts: dict[str, Buffer] = {**copied, f"{_MANIFEST}{suffix}": write("Bundle", {**manifest, "format": FORMAT}, keep)}
    parts.update({name: write_model(function, keep) for name, function in models.items()})
    parts.update(compiled)

    def fill(file: BinaryIO) -> None:
        writer = ContainerWriter(file, KIND)
        for name, data in parts.items():
            writer.add(name, data)
        for name, constant in constants.items():
            if name not in copied:
                writer.add(name, encode_data(constant))
        writer.finish()

    try:
        replace_file(Path(path), fill)
    except OSError as error:
        raise BundleError(f"cannot write {os.fspath(path)!r}: {error.strerror}") from error


class BundleFile:
    """A bundle that has been opened: its constants are mapped; its manifest and compiled forms are read when asked for."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises BundleError, which names the file, for one that is missing or damaged."""
        self.path = Path(path)
        self.suffix = ""
        """What tells the manifest that is read from others of the file."""
        self.unused: frozenset[str] = frozenset()
        """Sections that the manifest which is read does not name, nor what it names."""
        self.read_weights: set[str] = set()
        """Sections of the constants that models have referred to."""
        try:
            self._container = Container.open(self.path, KIND)
        except FileNotFoundError:
            raise BundleError(f"there is no bundle {os.fspath(path)!r}") from None
        except (BundleError, OSError) as error:
            raise self._unloadable(error) from error

    def select(self, suffix: str) -> BundleFile:
        """Return the same file, read by another of its manifests."""
        found = copy(self)
        found.__dict__.pop("manifest", None)
        found.suffix, found.read_weights = suffix, set()
        return found

    @property
    def sections(self) -> Collection[str]:
        """The names of all sections."""
        return self._container.sections

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The manifest; raises BundleError where it is damaged, or of an unknown version."""
        try:
            return self._read()
        except (BundleError, OSError) as error:
            raise self._unloadable(error) from error

    def _read(self) -> dict[str, Any]:
        from xrt.formats.protobuf import read

        data = bytes(self._container.section(f"{_MANIFEST}{self.suffix}"))
        manifest = read("Bundle", data, self._held)
        if manifest["format"] != FORMAT:
            said = f"it has bundle format {manifest['format']}, and this version of XRT reads {FORMAT}"
            raise BundleError(f"{said}; read it with the version that wrote it, xrt {manifest['writer']}")
        return manifest

    def _held(self, name: str) -> memoryview | None:
        if not name.startswith(_WEIGHT):
            return None
        self.read_weights.add(name)
        return self._container.section(name)

    def find_section(self, name: str) -> memoryview | None:
        """Return a section, checked; None where there is none. Raises BundleError where it is damaged."""
        return self.read_compiled(name) if name in self._container.sections else None

    @property
    def stamp(self) -> FileIdentity | None:
        """The file as it was when it was opened; None for a small one, and for one that had changed just before."""
        return self._container.stamp

    def trust(self) -> None:
        """Take all that is used for checked: another process has read the same file."""
        self._container.trust(self.unused)

    def check(self) -> None:
        """Check every section that is used; raises BundleError where one is damaged."""
        try:
            self._container.check(self.unused)
        except BundleError as error:
            raise self._unloadable(error) from error

    def read_weight(self, digest: str) -> memoryview:
        """Return the bytes of a constant, checked; raises BundleError where they are damaged or missing."""
        return self.read_compiled(f"{_WEIGHT}{digest}")

    def read_compiled(self, section: str) -> memoryview:
        """Return an engine's compiled form, checked; raises BundleError where it is damaged or missing."""
        try:
            return self._container.section(section)
        except BundleError as error:
            raise self._unloadable(error) from error

    def model(self, section: str) -> Function:
        """Return a model; raises BundleError where it is damaged or missing."""
        from xrt.formats.protobuf import read_model

        try:
            return read_model(bytes(self._container.section(section)), self._held)
        except BundleError as error:
            raise self._unloadable(error) from error

    def _unloadable(self, error: Exception) -> BundleError:
        return BundleError(f"cannot load {os.fspath(self.path)!r}: {error}")

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of the weights and of everything else, by section."""
        sizes = {"weights": 0}
        for name, section in self._container.sections.items():
            kind = "weights" if name.startswith(_WEIGHT) else name
            sizes[kind] = sizes.get(kind, 0) + section.size
        return sizes


def load_model(path: str | os.PathLike[str]) -> Function:
    """Return the model that a bundle was made of, or the first trace of its graph; no compiled form is read.

    Raises BundleError for a file that is missing or damaged, or one that holds no model.
    """
    file = BundleFile(path)
    sections = [file.manifest["model"], *(program["function"] for program in file.manifest["programs"])]
    for section in filter(None, sections):
        return file.model(section)
    raise BundleError(f"{os.fspath(path)!r} holds no model")


@contextmanager
def make_working_directory() -> Iterator[Path]:
    """Make a folder for an engine to save or load by way of files, and remove it in the end."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="xrt-")
    except OSError:  # a system whose disks are read-only: Linux has memory in the form of a folder
        folder = tempfile.TemporaryDirectory(prefix="xrt-", dir="/dev/shm")
    with folder as path:
        yield Path(path)


def is_bundle(path: str | os.PathLike[str]) -> bool:
    """Whether the file begins as a bundle does; False where it cannot be read, and for a pipe, of which nothing is taken."""
    try:
        if not Path(path).is_file():
            return False
        with Path(path).open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):  # the latter for a NUL in the path
        return False
