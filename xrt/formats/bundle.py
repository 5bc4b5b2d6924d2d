"""Bundle files: a container with a manifest, each large constant once, and compiled artifacts of engines.

The module package defines the meaning of the manifest; here it is plain values, with Functions for models.
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
"""Version of the manifest: the one written, and the only one read."""

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
    """Write a bundle atomically, replacing an existing file. Models and artifacts are keyed by section name.

    ``copied`` are sections of an existing bundle that is extended; ``suffix`` distinguishes the new manifest from those in it.
    Raises BundleError if the file cannot be written, and ModelError for a Function that ONNX cannot express.
    """
    from xrt.formats.onnx.messages import encode_data
    from xrt.formats.protobuf import write, write_model

    constants: dict[str, Constant] = {}

    def keep(constant: Constant) -> str:
        name = f"{_WEIGHT}{constant.digest.hex()}"
        # Sections are named by digest, so equal constants are stored once.
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
    """An open bundle: constants are mapped; the manifest and artifacts are read on access."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises BundleError with the path if the file is missing or corrupt."""
        self.path = Path(path)
        self.suffix = ""
        """Selects one of the manifests in the file."""
        self.unused: frozenset[str] = frozenset()
        """Sections that are not reachable from the selected manifest."""
        self.read_weights: set[str] = set()
        """Sections of constants that were read by models."""
        try:
            self._container = Container.open(self.path, KIND)
        except FileNotFoundError:
            raise BundleError(f"there is no bundle {os.fspath(path)!r}") from None
        except (BundleError, OSError) as error:
            raise self._unloadable(error) from error

    def select(self, suffix: str) -> BundleFile:
        """A view of the same file with another of its manifests."""
        found = copy(self)
        found.__dict__.pop("manifest", None)
        found.suffix, found.read_weights = suffix, set()
        return found

    @property
    def sections(self) -> Collection[str]:
        return self._container.sections

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The manifest; raises BundleError if it is corrupt or has an unsupported version."""
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
        """The contents of a section, or None if it does not exist. Raises BundleError if it is corrupt."""
        return self.read_compiled(name) if name in self._container.sections else None

    @property
    def stamp(self) -> FileIdentity | None:
        """Identity of the file when it was opened; None if it is small or was modified just before."""
        return self._container.stamp

    def trust(self) -> None:
        """Skip checksums of all used sections: another process has verified this file."""
        self._container.trust(self.unused)

    def check(self) -> None:
        """Verify the checksum of every used section; raises BundleError if one differs."""
        try:
            self._container.check(self.unused)
        except BundleError as error:
            raise self._unloadable(error) from error

    def read_weight(self, digest: str) -> memoryview:
        """The verified bytes of a constant; raises BundleError if they are corrupt or missing."""
        return self.read_compiled(f"{_WEIGHT}{digest}")

    def read_compiled(self, section: str) -> memoryview:
        """A verified artifact of an engine; raises BundleError if it is corrupt or missing."""
        try:
            return self._container.section(section)
        except BundleError as error:
            raise self._unloadable(error) from error

    def model(self, section: str) -> Function:
        """Read a model; raises BundleError if it is corrupt or missing."""
        from xrt.formats.protobuf import read_model

        try:
            return read_model(bytes(self._container.section(section)), self._held)
        except BundleError as error:
            raise self._unloadable(error) from error

    def _unloadable(self, error: Exception) -> BundleError:
        return BundleError(f"cannot load {os.fspath(self.path)!r}: {error}")

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes by section; all weights are summed under ``weights``."""
        sizes = {"weights": 0}
        for name, section in self._container.sections.items():
            kind = "weights" if name.startswith(_WEIGHT) else name
            sizes[kind] = sizes.get(kind, 0) + section.size
        return sizes


def load_model(path: str | os.PathLike[str]) -> Function:
    """Load the model that a bundle was created from, or the first trace of its graph, without any artifacts.

    Raises BundleError if the file is missing or corrupt, or contains no model.
    """
    file = BundleFile(path)
    sections = [file.manifest["model"], *(program["function"] for program in file.manifest["programs"])]
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
