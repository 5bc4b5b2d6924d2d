"""The signature: everything that can change the result of a compile, ingredient by ingredient, and their hash."""

from __future__ import annotations

import dataclasses
import hashlib
import platform
import sys
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from xrt import __version__
from xrt.engines import CompileContext, GraphCompiler
from xrt.graph import Function

__all__ = ["CODE_UNKNOWN", "FORMAT_VERSION", "Signature", "circumstances_of", "code_of", "conditions_of", "signature_of"]

FORMAT_VERSION = 1
"""Raised whenever XRT itself changes what it hands to engines for the same Function."""


CODE_UNKNOWN = "unknown"
"""What the ingredient ``code`` is for an engine whose source is in no file: a class typed at a prompt."""

_SHARED = ("graph/**/*.py", "formats/**/*.py", "passes/**/*.py", "engines/*.py")
"""What of XRT's own source decides what an engine is handed."""


@dataclass(frozen=True)
class Signature:
    """Named ingredients in a fixed order; two signatures are equal when every ingredient is."""

    ingredients: tuple[tuple[str, str], ...]

    @cached_property
    def key(self) -> str:
        """SHA-256 (hex) over the ingredients, each with its length before it."""
        hasher = hashlib.sha256()
        for name, value in self.ingredients:
            hasher.update(f"{name}:{len(value)}:{value};".encode())
        return hasher.hexdigest()

    def difference(self, other: Signature) -> tuple[str, ...]:
        """Return the names of the ingredients that differ."""
        mine, theirs = dict(self.ingredients), dict(other.ingredients)
        return tuple(name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name))

    def __str__(self) -> str:
        return "\n".join(f"{name}: {value}" for name, value in self.ingredients)


def signature_of(function: Function, engine: GraphCompiler, context: CompileContext, version: str | None = None) -> Signature:
    """Return the signature of compiling the function with that engine in that context.

    ``version`` is the engine's, for who has asked it already. Linear in the constants' bytes, once.
    """
    form, *others = circumstances_of(engine, context, version).ingredients
    entry = ", ".join(str(value.type) for value in function.inputs)
    return Signature((form, ("function", function.fingerprint), ("entry", entry), *others))


def circumstances_of(engine: GraphCompiler, context: CompileContext, version: str | None = None) -> Signature:
    """Return what of a signature is not the function's: all that decides, beside it, what a compile gives."""
    kind = engine.implementation
    return Signature(
        (
            ("format", f"{FORMAT_VERSION} of xrt {__version__}"),
            ("engine", f"{kind.__module__}.{kind.__qualname__} {engine.spec}"),
            ("version", engine.version() if version is None else version),
            *conditions_of(context),
            ("code", code_of(kind.__module__)),
        )
    )


def conditions_of(context: CompileContext) -> tuple[tuple[str, str], ...]:
    """Return what of a signature is neither the function's nor the engine's."""
    options = {f.name: getattr(context.options, f.name) for f in dataclasses.fields(context.options) if f.name != "threads"}
    return (
        ("options", repr(options)),
        ("device", context.device if context.accelerator is None else f"{context.device}: {context.accelerator.hardware}"),
        ("threads", str(context.threads)),
        ("machine", _machine()),
    )


@lru_cache(maxsize=1)
def _machine() -> str:
    """Name the processor and its instruction sets: what an executable compiled for it needs of another."""
    from xrt.cache.disk.processor import processor  # the room that touches files, which knows signatures

    found = np.show_config(mode="dicts")["SIMD Extensions"]
    sets = " ".join([*found.get("baseline", ()), *found.get("found", ())])
    return f"{platform.system()} {platform.machine()} {sets}; {processor()}"


@lru_cache(maxsize=64)
def code_of(module: str) -> str:
    """Hash names, sizes and times of the source files behind an engine, so that who changes them need change no version.

    The engine is told by its module, which need not have been imported.
    """
    file, is_packaged = _source(module)
    if file is None or not Path(file).exists():
        return CODE_UNKNOWN
    own = Path(file).parent.rglob("*.py") if is_packaged else iter([Path(file)])
    hasher = hashlib.sha256()
    for line in sorted({*map(_stamp, own), *_shared_stamps()}):
        hasher.update(line.encode("utf-8", "surrogateescape"))
    return hasher.hexdigest()[:16]


def _source(module: str) -> tuple[str | None, bool]:
    """Return a module's file, and whether it is of a package."""
    if (loaded := sys.modules.get(module)) is not None:
        return getattr(loaded, "__file__", None), bool(getattr(loaded, "__package__", ""))
    spec = find_spec(module)
    return (None, False) if spec is None else (spec.origin, bool(spec.parent))


@lru_cache(maxsize=1)
def _shared_stamps() -> tuple[str, ...]:
    return tuple(_stamp(path) for pattern in _SHARED for path in Path(__file__).parents[1].glob(pattern))


def _stamp(path: Path) -> str:
    status = path.stat()
    return f"{path} {status.st_size} {status.st_mtime_ns}\n"
