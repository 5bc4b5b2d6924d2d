"""Signatures: everything that can change the result of a compile, and its hash, which is the key of the cache."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import platform
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from xrt import __version__
from xrt.graph.constants import is_borrowed

if TYPE_CHECKING:
    from xrt.engines import CompileContext, GraphCompiler
    from xrt.graph import Function


CODE_UNKNOWN = "unknown"
"""Ingredient ``code`` of an engine without a source file, such as a class defined at a prompt."""

_SHARED_FOLDERS = ("graph", "formats", "passes", "engines/toolkit", "engines/kernels")
"""Folders whose code runs for every engine. The files directly in ``engines`` and ``engines/contract`` are added to these."""


@dataclass(frozen=True)
class Signature:
    """Everything that can change the result of a compile, as (name, value) pairs in a fixed order."""

    ingredients: tuple[tuple[str, str], ...]
    memory: str = ""
    """Addresses of constants whose memory another library owns and may write to. An executable may read them in place, so that
    it can be reused only for constants at these addresses.
    """

    @cached_property
    def memory_key(self) -> str:
        """Key in memory. On disk the key has no addresses, because a loaded executable reads the constants of its new model."""
        return self.key + self.memory

    @cached_property
    def key(self) -> str:
        """SHA-256 of the length-prefixed ingredients, in hexadecimal."""
        hasher = hashlib.sha256()
        for name, value in self.ingredients:
            # With the lengths, no two lists of ingredients have the same text.
            hasher.update(f"{name}:{len(value)}:{value};".encode())
        return hasher.hexdigest()

    def list_differences(self, other: Signature) -> tuple[str, ...]:
        """List the names of the ingredients that differ."""
        first, second = dict(self.ingredients), dict(other.ingredients)
        return tuple(name for name in {**first, **second} if first.get(name) != second.get(name))

    def __str__(self) -> str:
        return "\n".join(f"{name}: {value}" for name, value in self.ingredients)


def make_signature(function: Function, engine: GraphCompiler, context: CompileContext, version: str | None = None) -> Signature:
    """Create the signature of compiling ``function`` with ``engine``; ``version`` is the engine's version, queried if None."""
    # Another order of ingredients would change the key of every stored file.
    xrt_version, *engine_ingredients = make_engine_key(engine, context, version).ingredients
    entry = ", ".join(str(value.type) for value in function.inputs)
    ingredients = (xrt_version, ("function", function.fingerprint), ("entry", entry), *engine_ingredients)
    return Signature(ingredients, _locate_constants(function))


def _locate_constants(function: Function) -> str:
    arrays = (constant.array for constant in function.loaded_constants())
    # An owned constant cannot change, so equal content is enough; a borrowed one may, after the compile.
    return " ".join(f"{array.ctypes.data:x}" for array in arrays if is_borrowed(array))


def make_engine_key(engine: GraphCompiler, context: CompileContext, version: str | None = None) -> Signature:
    """Create the part of a signature that does not depend on the function; ``version`` as in `make_signature`."""
    engine_class = engine.implementation
    return Signature(
        (
            ("xrt", __version__),
            ("engine", f"{engine_class.__module__}.{engine_class.__qualname__} {engine.spec}"),
            ("version", engine.version() if version is None else version),
            *make_context_key(context),
            ("code", hash_sources(engine_class.__module__)),
        )
    )


def make_context_key(context: CompileContext) -> tuple[tuple[str, str], ...]:
    """Create the ingredients that depend neither on the function nor on the engine."""
    # The thread budget is a separate ingredient, because some engines can load an executable with another budget.
    options = {f.name: getattr(context.options, f.name) for f in dataclasses.fields(context.options) if f.name != "threads"}
    return (
        ("options", repr(options)),
        ("device", context.device if context.accelerator is None else f"{context.device}: {context.accelerator.hardware}"),
        ("threads", str(context.threads)),
        ("machine", describe_machine()),
    )


@lru_cache(maxsize=1)
def describe_machine() -> str:
    """Describe the CPU and its instruction sets, on which compiled code depends."""
    # NumPy detects the instruction sets on every platform.
    extensions = np.show_config(mode="dicts")["SIMD Extensions"]
    sets = " ".join([*extensions.get("baseline", ()), *extensions.get("found", ())])
    return f"{platform.system()} {platform.machine()} {sets}; {_describe_cpu()}"


_CPU_INFO = Path("/proc/cpuinfo")
_CPU_NAME_KEYS = ("model name", "CPU implementer", "CPU part")
_CPU_FEATURE_KEYS = ("flags", "Features")


def _describe_cpu() -> str:
    """Describe the model of the first CPU and hash its features; empty if the system does not report them."""
    facts: dict[str, str] = {}
    try:
        with _CPU_INFO.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                key, _, value = line.partition(":")
                if not value.strip() and facts:
                    break  # the next processor
                facts[key.strip()] = value.strip()
    except OSError:
        return ""
    # x86 processors report a model name, ARM processors an implementer and a part number.
    name = " ".join(facts[key] for key in _CPU_NAME_KEYS if key in facts)
    flags = sorted(flag for key in _CPU_FEATURE_KEYS for flag in facts.get(key, "").split())
    return f"{name} {hashlib.sha256(' '.join(flags).encode()).hexdigest()[:12]}".strip()


@lru_cache(maxsize=64)
def hash_sources(module: str) -> str:
    """Hash path, size and mtime of an engine's source files, so that a code change invalidates its executables.

    ``module`` is the name of the engine's module. If the module is in a package, all files of the package count.
    """
    file, is_packaged = _find_source(module)
    if file is None or not Path(file).exists():
        return CODE_UNKNOWN
    return _hash_stamps(_stamp_tree(Path(file).parent) if is_packaged else [_stamp(file, Path(file).stat())])


def _find_source(module: str) -> tuple[str | None, bool]:
    """Find the file of a module, or None if it has none, and whether the module belongs to a package."""
    # `find_spec` fails for modules without a spec, such as ``__main__``.
    if (loaded := sys.modules.get(module)) is not None:
        return getattr(loaded, "__file__", None), bool(getattr(loaded, "__package__", ""))
    spec = find_spec(module)
    return (None, False) if spec is None else (spec.origin, bool(spec.parent))


@lru_cache(maxsize=1)
def hash_planner() -> str:
    """Hash path, size and mtime of the source files that determine a plan, except those of the engines."""
    root = Path(__file__).parents[1]
    folders = ("cache", "module", "partition", "placement", "runtime")
    return _hash_stamps(line for name in folders for line in _stamp_tree(root / name))


def _hash_stamps(lines: Iterable[str]) -> str:
    """Hash the stamps (path, size and mtime) of files, together with the stamps of the sources that all engines share."""
    content = "".join(sorted({*lines, *_stamp_shared()}))
    return hashlib.sha256(content.encode("utf-8", "surrogateescape")).hexdigest()[:16]


@lru_cache(maxsize=1)
def _stamp_shared() -> tuple[str, ...]:
    root = Path(__file__).parents[1]
    stamps = [line for name in _SHARED_FOLDERS for line in _stamp_tree(root / name)]
    return (*stamps, *_stamp_tree(root / "engines", 0), *_stamp_tree(root / "engines" / "contract", 0))


def _stamp_tree(folder: Path | str, levels: int = 32) -> list[str]:
    """Compute the stamps of the source files in a folder, and in its subfolders to a depth of ``levels``."""
    stamps = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                stamps.append(_stamp(entry.path, entry.stat()))
            elif levels and entry.name != "__pycache__" and entry.is_dir():
                stamps += _stamp_tree(entry.path, levels - 1)
    return stamps


def _stamp(path: str, status: os.stat_result) -> str:
    return f"{path} {status.st_size} {status.st_mtime_ns}\n"
