"""Open libraries of native kernels, and read and check their tables of kernels."""

from __future__ import annotations

import ctypes
import hashlib
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xrt.engines.native import abi
from xrt.engines.native.marshalling import marshal_node, why_not_marshalled
from xrt.errors import EngineUnavailable, did_you_mean

if TYPE_CHECKING:
    from xrt.engines.contract.op_table import OpTable
    from xrt.graph import Function, Node

ENTRY_SYMBOL = "xrt_library_entry"


@dataclass(frozen=True, slots=True, eq=False)
class NativeKernel:
    """A kernel of a native library. An `OpTable` stores it as the ``code`` of a `Kernel`."""

    library: NativeLibrary = field(repr=False)
    structure: abi.KernelC = field(repr=False)
    """The kernel in the table of the library. Read-only."""
    name: str
    domain: str
    op_type: str
    since: int
    until: int | None
    priority: int
    device: str
    flags: int
    in_place: int
    """Bit k set: output 0 may alias input k."""

    def __str__(self) -> str:
        return f"kernel {self.name!r} of library {self.library.path}"

    def why_not(self, node: Node, function: Function) -> str | None:
        reason = why_not_marshalled(node, function)
        # A kernel without the function ``why_not`` supports every node.
        if reason is not None or not self.structure.why_not:
            return reason
        message = MessageBuffer()
        keep_alive: list[Any] = []
        status = self.structure.why_not(marshal_node(node, function, keep_alive), message.structure)
        return None if status == abi.STATUS_OK else f"{self.name}: {message.text}"


@dataclass(frozen=True, slots=True, eq=False)
class NativeLibrary:
    """An open library of native kernels. It stays open until the process ends."""

    path: Path
    name: str
    version: str
    digest: str
    kernels: tuple[NativeKernel, ...] = field(init=False, default=(), repr=False)
    handle: Any = field(repr=False, default=None)

    @property
    def signature(self) -> str:
        """Name, version and hash of the file, which identify the library in cache keys."""
        return f"{self.name} {self.version} ({self.digest[:16]})"

    def register(self, table: OpTable[Any]) -> None:
        """Add all kernels to the table. Kernels that are already there are tried before new ones of equal priority."""
        for kernel in self.kernels:
            table(
                kernel.op_type,
                domain=kernel.domain,
                since=kernel.since,
                until=kernel.until,
                devices=(kernel.device,),
                why_not=kernel.why_not,
                priority=kernel.priority,
                train=bool(kernel.flags & abi.FLAG_TRAINING),
                model_update=bool(kernel.flags & abi.FLAG_MODEL_UPDATE),
            )(kernel)

    def kernel(self, name: str) -> NativeKernel:
        """Get a kernel by name. Raises EngineUnavailable with the most similar name if there is none of that name."""
        for kernel in self.kernels:
            if kernel.name == name:
                return kernel
        suggestion = did_you_mean(name, [kernel.name for kernel in self.kernels])
        raise EngineUnavailable(f"native library {str(self.path)!r} has no kernel {name!r}.{suggestion}")


class MessageBuffer:
    """A buffer for the error message of a kernel (``xrt_text``)."""

    __slots__ = ("_buffer", "structure")

    def __init__(self, capacity: int = 1024) -> None:
        self._buffer = ctypes.create_string_buffer(capacity)
        self.structure = abi.TextC(ctypes.addressof(self._buffer), capacity)

    @property
    def text(self) -> str:
        # The kernel may have truncated the message within a character, and may not have written the zero byte at the end.
        raw = self._buffer.raw.split(b"\0", 1)[0]
        return " ".join(raw.decode("utf-8", "replace").split()) or "it gives no reason"


def load(path: str | Path) -> NativeLibrary:
    """Load the library at a path, or return it if it is already loaded.

    Raises EngineUnavailable if the file does not exist, is not a library of native kernels, or violates a rule of ``kernel.h``.
    """
    file = Path(path).expanduser().absolute()
    try:
        file_stat = file.stat()
        if not stat.S_ISREG(file_stat.st_mode):
            kind = "a directory; name the file in it" if file.is_dir() else "a pipe or a device, not a file"
            raise _make_error(file, f"it is {kind}")
        # The cache key includes these properties, so that a rebuilt file is loaded again.
        return _open_cached(file, file_stat.st_ino, file_stat.st_mtime_ns, file_stat.st_size)
    except FileNotFoundError:
        raise _make_error(file, f"there is no such file.{_suggest_file(file)}") from None
    except OSError as error:
        raise _make_error(file, f"it cannot be read: {error.strerror}") from error
    except ValueError as error:  # a NUL in the path
        raise _make_error(file, f"it is not a path: {error}") from error


@cache
def _open_cached(file: Path, *file_stat: int) -> NativeLibrary:
    """Open a library. ``file_stat`` is only part of the cache key."""
    with file.open("rb") as stream:
        # The hash is part of the signature, because a rebuilt library may have the same version.
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    try:
        handle = ctypes.CDLL(str(file))
    except OSError as error:
        raise _make_error(file, f"the system does not open it as a shared library: {error}") from error
    library_c = _read_library(file, handle)
    library = NativeLibrary(
        file, _read_string(library_c.name, file, "its name"), _read_string(library_c.version, file, "its version"), digest, handle
    )
    # Set afterwards, because the kernels have a reference to the library.
    object.__setattr__(library, "kernels", tuple(_iter_kernels(library, library_c)))
    _check_unambiguous(library)
    return library


def _read_library(file: Path, handle: ctypes.CDLL) -> abi.LibraryC:
    """Call the entry point of a library. Raises EngineUnavailable if there is none, or the version of the interface differs."""
    entry = getattr(handle, ENTRY_SYMBOL, None)
    if entry is None:
        raise _make_error(
            file, f"it does not export {ENTRY_SYMBOL!r}, which kernel.h describes; is it a library of XRT's kernels?"
        )
    entry.restype = ctypes.POINTER(abi.LibraryC)
    entry.argtypes = [ctypes.c_uint32]
    library_c = entry(abi.ABI_VERSION)
    if not library_c:
        raise _make_error(
            file, f"it does not support version {abi.ABI_VERSION} of the kernel interface, which this XRT has; {_REBUILD}"
        )
    if library_c.contents.abi != abi.ABI_VERSION:
        versions = f"it has version {library_c.contents.abi} of the kernel interface, this XRT version {abi.ABI_VERSION}"
        raise _make_error(file, f"{versions}; {_REBUILD}")
    return library_c.contents  # type: ignore[no-any-return]  # ctypes has no types


_REBUILD = "rebuild it with the kernel.h of xrt.engines.native.include_dir()"


def _iter_kernels(library: NativeLibrary, library_c: abi.LibraryC) -> Iterator[NativeKernel]:
    for index in range(library_c.n_kernels):
        row = library_c.kernels[index].contents
        label = f"kernel {index}"
        name = _read_string(row.name, library.path, f"the name of {label}")
        if not (row.prepare and row.run):
            raise _make_error(library.path, f"kernel {name!r} lacks {'run' if row.prepare else 'prepare'}, which is not optional")
        if row.device_type not in abi.DEVICES:
            raise _make_error(
                library.path, f"kernel {name!r} is for a device of type {row.device_type}, which XRT does not support"
            )
        yield NativeKernel(
            library=library,
            structure=row,
            name=name,
            domain=_read_string(row.domain, library.path, f"the domain of kernel {name!r}", may_be_empty=True),
            op_type=_read_string(row.op_type, library.path, f"the operator of kernel {name!r}"),
            since=row.since,
            until=row.until or None,
            priority=row.priority,
            device=abi.DEVICES[row.device_type],
            flags=row.flags,
            in_place=row.in_place,
        )


def _read_string(raw: bytes | None, file: Path, field: str, *, may_be_empty: bool = False) -> str:
    """Decode a string in the table of a library. Raises EngineUnavailable if it is missing, empty or not UTF-8."""
    if raw is None or not (raw or may_be_empty):
        raise _make_error(file, f"{field} is {'missing' if raw is None else 'empty'}")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise _make_error(file, f"{field} is not UTF-8: {raw!r}") from None


def _check_unambiguous(library: NativeLibrary) -> None:
    """Raise EngineUnavailable if two kernels with equal priority support the same nodes."""
    seen: dict[Any, NativeKernel] = {}
    for kernel in library.kernels:
        # Kernels with a ``why_not`` may support different nodes.
        if kernel.structure.why_not:
            continue
        old = seen.setdefault((kernel.domain, kernel.op_type, kernel.priority, kernel.since, kernel.device), kernel)
        if old is not kernel:
            conflict = (
                f"kernels {old.name!r} and {kernel.name!r} both support every {kernel.op_type} at priority {kernel.priority}"
            )
            raise _make_error(library.path, f"{conflict}; change the priority or the version range of one, or add a why_not")


def _make_error(file: Path, reason: str) -> EngineUnavailable:
    return EngineUnavailable(f"native library {str(file)!r} cannot be used: {reason}")


def _suggest_file(file: Path) -> str:
    try:
        return did_you_mean(file.name, sorted(other.name for other in file.parent.iterdir()))
    except OSError:
        return f" There is no directory {str(file.parent)!r} to look in either."
