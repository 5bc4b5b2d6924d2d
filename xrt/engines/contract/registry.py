"""The registry of engines: entry points of the group ``xrt.engines``, declarations read without an import, and probes.

XRT's own engines are registered like any plug-in. An engine is imported when it is first used; a plug-in that is broken, clashes
or lacks its library does not affect the others.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import inspect
import os
import pkgutil
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from xrt.engines.contract.graph_compiler import GraphCompiler
from xrt.engines.contract.options import NAMES_FILES, REDUCED_PRECISIONS
from xrt.engines.contract.spec import build, field_types, is_bounded, parse_spec
from xrt.errors import EngineError, EngineUnavailable, OptionError, UnknownEngine, XRTError, did_you_mean

if TYPE_CHECKING:
    from importlib import metadata

GROUP = "xrt.engines"
"""The group of entry points; a line is ``name = "module:Class [extra]"``."""
State: TypeAlias = Literal["ready", "missing", "broken"]
_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """Whether a registered engine works on this machine, and why not."""

    name: str
    state: State
    """``missing``: its library is not installed; ``broken``: it is installed but fails."""
    distribution: str
    """The distribution that registers it, with its version."""
    pip: str = ""
    """The command that installs the missing library."""
    version: str = ""
    """Versions of the engine and its libraries, if it is ready."""
    devices: tuple[str, ...] = ()
    """The kinds of device in `GraphCompiler.devices`, if it is ready."""
    available: str = ""
    """The devices that the installed build supports, comma-separated, if they differ from `devices`."""
    cause: str = ""
    """Why it is not ready."""
    lacks: str = ""
    """Missing optional features of a ready engine, and how to enable them."""
    precisions: str = ""
    """Reduced precisions that it supports on this processor, comma-separated."""


def names() -> tuple[str, ...]:
    """The names of all registered engines, sorted, ready or not."""
    return tuple(sorted(_list_entries()))


def list_by_rank() -> tuple[str, ...]:
    """The names of all registered engines by rank, the order to try them in when there are no measurements."""
    return tuple(_sort_by_rank(names()))


def _sort_by_rank(engines: Iterable[str]) -> list[str]:
    return sorted(engines, key=lambda name: (find_declaration(name).rank, name))


def find_declaration(name: str) -> EngineDeclaration:
    """Read the declaration of an engine, without importing it. Defaults if it declares nothing or is not registered."""
    claims = _list_entries().get(name, ())
    return _read_declaration(claims[0].module if claims else "", name, tuple(sys.path))


def create(engine: str | GraphCompiler) -> GraphCompiler:
    """Create the engine for a spec (``"ort"``, ``"tvm{opt_level=2}"``); an instance is checked and returned.

    Raises UnknownEngine, EngineUnavailable, or OptionError for an option that is unknown or of the wrong type.
    """
    if isinstance(engine, GraphCompiler):
        return _check_engine(engine)
    if not isinstance(engine, str):
        raise OptionError(f"an engine is a name, a spec or an instance of a GraphCompiler; got {engine!r}")
    name, fields = parse_spec(engine)
    return build(engine_class(name), fields)


def engine_class(name: str) -> type[GraphCompiler]:
    """Import the class registered under a name.

    Raises UnknownEngine with the nearest name, EngineUnavailable if the library is missing (with the pip command) or the plug-in
    is broken (with its cause), and EngineError if two distributions register the name.
    """
    entry = _find_entry(name)
    try:
        cls = _check_class(entry.load())
        if cls.name != name:
            raise EngineError(
                f"class {cls.__qualname__} has the name {cls.name!r}, and is registered as {name!r}; the names must be equal"
            )
        return cls
    except (Exception, SystemExit) as error:  # an import runs third-party code
        # A missing library is the user's choice of extras; anything else is a broken plug-in.
        if isinstance(error, ModuleNotFoundError) and _is_distribution_missing(error):
            raise EngineUnavailable(
                f"engine {name!r} needs {error.name}, which is not installed; install it: {pip_line(entry)}"
            ) from error
        cause = _join_lines(error)
        raise EngineUnavailable(
            f"engine {entry.name!r} of {_format_distribution(entry)} ({entry.value}) is broken: {cause}"
        ) from error


def _make_unprobed_status(name: str) -> EngineStatus:
    """Make the status of an engine that was not imported yet: ``broken``, with its distributions. Raises UnknownEngine."""
    return EngineStatus(name, "broken", " and ".join(map(_format_distribution, _list_claims(name))))


def probe(name: str) -> EngineStatus:
    """Import a registered engine and report its status; raises only UnknownEngine.

    The import may crash the process; `probe_all` runs each probe in a separate process.
    """
    status = _make_unprobed_status(name)
    kind = None
    try:
        kind = engine_class(name)
        engine = _check_engine(kind())
        devices = tuple(engine.available_devices())
        available = "" if devices == engine.devices else ", ".join(devices)
        ready = replace(status, state="ready", version=engine.version(), devices=engine.devices, available=available)
        precisions = ", ".join(word for word in REDUCED_PRECISIONS if engine.lower_precision(word) is not None)
        return replace(ready, lacks=engine.missing_features(), precisions=precisions)
    except Exception as error:  # noqa: BLE001  # any error of a third-party constructor becomes its status
        is_reported = kind is not None and isinstance(error, EngineUnavailable)  # the class itself reports a missing dependency
        if is_reported or _is_distribution_missing(error.__cause__):
            return replace(status, state="missing", pip=pip_line(_find_entry(name)), cause=_join_lines(error))
        return replace(status, cause=_join_lines(error))


def free_options(spec: str) -> tuple[str, ...]:
    """List the options set in a spec that may name files or code, without creating the engine.

    An engine declares this with `xrt.engines.option`. Without a declaration, an option may if its type allows arbitrary text.
    Raises the errors of `engine_class` for an unknown or broken engine.
    """
    name, texts = parse_spec(spec)
    cls = engine_class(name)
    kinds = field_types(cls)
    declared = {field.name: field.metadata.get(NAMES_FILES) for field in dataclasses.fields(cls)}  # type: ignore[arg-type]  # every engine is a dataclass

    def may_name_files(option: str) -> bool:
        is_declared = declared.get(option)
        return not is_bounded(kinds.get(option)) if is_declared is None else is_declared

    # A key with a dot is an entry of a mapping.
    return tuple(sorted(filter(may_name_files, {key.partition(".")[0] for key in texts})))


def why_not_chosen(spec: str, file: str) -> str | None:
    """Explain why a lockfile or a bundle, as named by ``file``, may not select this engine; None if it may.

    An engine opens, writes to or runs the files that its options name, so only the user may set such options. Raises the errors
    of `engine_class`.
    """
    options = free_options(spec)
    if not options:
        return None
    reason = f"whose {' and '.join(options)} may name files or code"
    return f"the {file} has engine {spec!r}, {reason}, and a {file} does not choose what is run"


def find_entry_module(name: str) -> str:
    """Find the name of the module of an engine's entry point, without importing it. Raises UnknownEngine or EngineError."""
    return _find_entry(name).module


def pip_line(entry: EntryPoint) -> str:
    """Format the command that installs an engine's distribution with the extras that its entry point names."""
    distribution = entry.dist.name if entry.dist else entry.module.partition(".")[0]
    extras = f"[{','.join(entry.extras)}]" if entry.extras else ""
    return f"pip install '{distribution}{extras}'"


# ---------------------------------------------------------------------- the entry points


class EntryPoint(NamedTuple):
    """A line ``name = module:attribute [extra, ...]`` of a distribution, with the interface of `importlib.metadata`."""

    name: str
    value: str
    folder: str
    """The ``.dist-info`` or ``.egg-info`` folder."""

    @property
    def module(self) -> str:
        return self._target.partition(":")[0]

    @property
    def extras(self) -> list[str]:
        extras = self.value.partition("[")[2].partition("]")[0]
        return [extra.strip() for extra in extras.split(",") if extra.strip()]

    @property
    def _target(self) -> str:
        # The specification of entry points allows blanks around the colon, `resolve_name` does not.
        return "".join(self.value.partition("[")[0].split())

    @property
    def dist(self) -> metadata.Distribution:
        """The distribution that declares the entry point."""
        from importlib import metadata

        return metadata.Distribution.at(self.folder)

    def load(self) -> Any:
        """Import the module and get the attribute; errors of the import pass through."""
        return pkgutil.resolve_name(self._target)


Entries: TypeAlias = dict[str, tuple[EntryPoint, ...]]


def _iter_entry_points(path: Sequence[str]) -> Iterator[Any]:
    """Yield the entry points of our group. If a distribution is on the path twice, the first one counts, as for imports.

    `importlib.metadata` does the same but takes 30 ms to import, so it is used for archives and foreign finders only.
    """
    folders = dict.fromkeys(folder or "." for folder in path)
    if any(Path(folder).is_file() for folder in folders) or any(map(_is_foreign, sys.meta_path)):
        from importlib import metadata

        yield from metadata.entry_points(group=GROUP)
        return
    seen: set[str] = set()
    for folder in folders:
        for info in _list_distributions(folder):
            # ``My.Package-1.0`` is ``my-package``.
            name = Path(info).stem.partition("-")[0].lower().replace("_", "-").replace(".", "-")
            if name not in seen:
                seen.add(name)
                yield from _read_entry_points(info)


def _is_foreign(finder: Any) -> bool:
    """Whether an import finder, such as a plug-in's, may provide distributions that are not in the folders of the path."""
    kind = finder if isinstance(finder, type) else type(finder)
    return hasattr(finder, "find_distributions") and kind.__module__ not in ("_frozen_importlib_external", "importlib.machinery")


def _list_distributions(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.path for entry in entries if entry.name.endswith((".dist-info", ".egg-info"))]
    except OSError:
        return []


def _read_entry_points(info: str) -> Iterator[EntryPoint]:
    """Yield the entry points of our group in a distribution's ``entry_points.txt``, an INI file with a section per group."""
    try:
        data = Path(info, "entry_points.txt").read_bytes()
    except OSError:
        return
    is_inside = False
    for line in data.decode("utf-8", "replace").splitlines() if GROUP.encode() in data else ():
        text = line.strip()
        if text.startswith("["):
            is_inside = text == f"[{GROUP}]"
        elif is_inside and "=" in text and not text.startswith(("#", ";")):
            name, _, value = text.partition("=")
            yield EntryPoint(name.strip(), value.strip(), info)


def _list_entries() -> Entries:
    return _read_entries(tuple(sys.path))


@lru_cache(maxsize=8)
def _read_entries(path: tuple[str, ...]) -> Entries:
    """Read the entry points, cached per import path: installed distributions are assumed not to change while a process runs."""
    registered: dict[str, list[EntryPoint]] = {}
    for entry in _iter_entry_points(path):
        claims = registered.setdefault(entry.name, [])
        if all(entry.value != claim.value for claim in claims):  # a renamed distribution may be installed twice
            claims.append(entry)
    return {name: tuple(entries) for name, entries in registered.items()}


def _list_claims(name: str) -> tuple[EntryPoint, ...]:
    entries = _list_entries()
    if name not in entries:
        suggestion = _suggest(name, entries) or did_you_mean(name.lower(), entries)
        raise UnknownEngine(
            f"no engine is named {name!r}.{suggestion} Registered: {', '.join(sorted(entries)) or 'none'}; "
            f"a distribution adds one by an entry point of group {GROUP!r}"
        )
    return entries[name]


def _suggest(word: str, entries: Entries) -> str:
    """Return `` Did you mean 'x'?`` for the engine that declares a library or an alias of this name, or an empty string."""
    normalized = _normalize(word)
    for name in _sort_by_rank(entries):
        declaration = find_declaration(name)
        if normalized in map(_normalize, (*declaration.libraries, *declaration.aliases)):
            return f" Did you mean {name!r}?"
    return ""


def _normalize(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _find_entry(name: str) -> EntryPoint:
    claims = _list_claims(name)
    if len(claims) > 1:
        claimants = " and ".join(f"{_format_distribution(e)} ({e.value})" for e in claims)
        raise EngineError(
            f"engine {name!r} is registered by {claimants}; uninstall one of them, or pass an instance of the class that is meant"
        )
    return claims[0]


def _format_distribution(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.module


# ---------------------------------------------------------------------- checks and errors


def _is_distribution_missing(error: BaseException | None) -> bool:
    """Whether an import failed because a distribution is not installed at all; a partial installation counts as broken."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return False
    return importlib.util.find_spec(error.name.partition(".")[0]) is None


def _join_lines(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, XRTError) else f"{type(error).__name__}: {text}"


def _check_engine(engine: GraphCompiler) -> GraphCompiler:
    """Check that the class and the field values of an engine follow the contract; raises EngineError or OptionError."""
    _check_class(engine.implementation)
    _ = engine.spec  # raises OptionError for a value that has no text form
    return engine


def _check_class(cls: object) -> type[GraphCompiler]:
    """Check that a class follows the contract; raises EngineError with the rule that it breaks."""
    if not (isinstance(cls, type) and issubclass(cls, GraphCompiler)):
        raise EngineError(f"{cls!r} is not a class that derives from xrt.engines.GraphCompiler")
    if inspect.isabstract(cls):
        raise EngineError(f"class {cls.__qualname__} lacks {', '.join(sorted(cls.__abstractmethods__))}")
    if not dataclasses.is_dataclass(cls) or not cls.__dataclass_params__.frozen:
        raise EngineError(
            f"class {cls.__qualname__} must be decorated with @dataclass(frozen=True): its fields are the engine's options"
        )
    if not _NAME.fullmatch(getattr(cls, "name", "")):
        raise EngineError(f"class {cls.__qualname__} must have a name of lower-case letters, digits and underscores")
    return cls


@dataclass(frozen=True, slots=True)
class EngineDeclaration:
    """Static properties of an engine, readable without importing it. The defaults apply to an engine without a declaration."""

    name: str
    """The registered name."""
    rank: int = 100
    """Without measurements, engines are tried from the lowest rank to the highest; equal ranks by name."""
    color: str = ""
    """Color of its regions in drawings, one of `xrt.html.views.PALETTE`; empty for any unused one."""
    description: str = ""
    """A short description for `xrt engines`."""
    libraries: tuple[str, ...] = ()
    """Distributions that it computes with: ``xrt doctor`` shows their versions, and an unknown engine of that name gets a
    suggestion."""
    aliases: tuple[str, ...] = ()
    """Other words for which an error suggests this engine."""
    environment: tuple[str, ...] = ()
    """Prefixes of environment variables that affect its libraries; ``xrt doctor`` shows those that are set."""
    thread_variables: tuple[str, ...] = ()
    """Environment variables with the number of threads that its libraries read on load; ``xrt bench`` sets them."""


@lru_cache(maxsize=256)
def _read_declaration(module: str, name: str, path: tuple[str, ...]) -> EngineDeclaration:
    """Read an engine's declaration from the source of its module; defaults if there is none or it is malformed.

    A declaration is a constant at the top level of the module, ``X = EngineDeclaration("name", rank=1)``, made of literals only.
    ``path`` is part of the cache key only: with another import path, the same name may be another module.
    """
    from xrt.formats.documents import convert  # not needed for a start from the cache

    with suppress(Exception):  # importing the module will report the mistake
        for statement in ast.parse(_read_source(module)).body:
            call = getattr(statement, "value", None)
            if isinstance(call, ast.Call) and ast.unparse(call.func).endswith(EngineDeclaration.__name__):
                values = [ast.literal_eval(argument) for argument in call.args]
                declaration = EngineDeclaration(*values, **{kw.arg or "": ast.literal_eval(kw.value) for kw in call.keywords})
                if declaration.name == name:
                    return convert(dataclasses.asdict(declaration), EngineDeclaration)  # raises for a field of another type
    return EngineDeclaration(name)


def _read_source(module: str) -> str:
    """Read the source of a module without importing it or its parent packages. Empty if there is no source."""
    top, *rest = module.split(".")
    spec: ModuleSpec | None = importlib.util.find_spec(top)
    for part in rest:
        # `importlib.util.find_spec` would import the parent packages.
        spec = PathFinder.find_spec(f"{spec.name}.{part}", spec.submodule_search_locations) if spec else None
    read = getattr(spec.loader if spec else None, "get_source", None)
    return (read(spec.name) if read and spec else None) or ""


def probe_all(engines: Sequence[str] | None = None, timeout: float = 60) -> tuple[EngineStatus, ...]:
    """Probe these engines, by default all registered ones, each in its own process, at most one per core at a time.

    The results are in the order of ``engines``. An engine whose probe crashes or takes longer than ``timeout`` seconds is
    ``broken``. Raises UnknownEngine for an unregistered name.
    """
    from xrt.processes.client import WorkerDied, WorkerFailure, WorkerProcess, WorkerTimedOut  # not needed for a warm start

    statuses = [_make_unprobed_status(name) for name in (names() if engines is None else engines)]
    running: list[WorkerProcess] = []
    interrupted = threading.Event()

    def probe_one(unprobed: EngineStatus) -> EngineStatus:
        worker = WorkerProcess("xrt.engines.contract.registry:main")
        running.append(worker)
        # An interrupt may have closed the other workers before this one was in the list.
        if interrupted.is_set():
            worker.end()
        try:
            response, _ = worker.ask({"engine": unprobed.name}, seconds=timeout)
        except WorkerTimedOut:
            return replace(unprobed, cause=f"its import did not end within {timeout:g} s")
        except WorkerDied as error:
            last_line = error.last_line or "it said nothing"
            return replace(unprobed, cause=f"its import ended the process ({error.ended_by}): {last_line}")
        except WorkerFailure as error:
            return replace(unprobed, cause=f"its import failed: {error}")
        finally:
            worker.end()
        return EngineStatus(**{**response, "devices": tuple(response["devices"])})

    # A thread per probe only waits for its process.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            return tuple(pool.map(probe_one, statuses))
        except BaseException:  # do not wait for all probes after an interrupt
            interrupted.set()
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in running:
                worker.end()
            raise


def main(handle: str) -> None:
    """Entry point of a probing process: serve `probe` on the socket with this handle."""
    from xrt.processes.ipc import serve

    serve(handle, lambda request: dataclasses.asdict(probe(request.message["engine"])))
