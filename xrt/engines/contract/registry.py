"""The registry of engines: finds the entry points of the group ``xrt.engines``, reads declarations, and probes engines.

The engines of XRT are registered like those of plug-ins. An engine is imported on first use. A plug-in that is broken, lacks its
library or has the name of another one does not affect other engines.
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
from collections.abc import Iterator, Sequence
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
"""The group of entry points. An entry is ``name = "module:Class [extra]"``."""
State: TypeAlias = Literal["ready", "missing", "broken"]
_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """The result of probing a registered engine: whether it works on this machine, or why not."""

    name: str
    state: State
    """``missing`` if its library is not installed, ``broken`` if the import fails for another reason."""
    distribution: str
    """The distribution that registers the engine, with its version."""
    pip: str = ""
    """The command that installs the missing library."""
    version: str = ""
    """Versions of the engine and its libraries; empty if it is not ready."""
    devices: tuple[str, ...] = ()
    """`GraphCompiler.devices`; empty if it is not ready."""
    available: str = ""
    """The devices that the installed build supports, comma-separated; empty if these are `devices`."""
    cause: str = ""
    lacks: str = ""
    """Missing optional features of a ready engine, and how to enable them."""
    precisions: str = ""
    """Reduced precisions that it supports on this processor, comma-separated."""


def names() -> tuple[str, ...]:
    """List the names of all registered engines, including those that are not ready, in alphabetical order."""
    return tuple(sorted(_list_entries()))


def list_by_rank() -> tuple[str, ...]:
    """List the names of all registered engines by rank: the order in which to try them without measurements."""
    return tuple(sorted(names(), key=lambda name: (find_declaration(name).rank, name)))


def find_declaration(name: str) -> EngineDeclaration:
    """Read the declaration of an engine without importing it. If there is none, the result has default values."""
    claims = _list_entries().get(name)
    if not claims:
        return EngineDeclaration(name)
    return _read_declaration(claims[0].module, name, tuple(sys.path))


def create(engine: str | GraphCompiler) -> GraphCompiler:
    """Create the engine for a spec (``"ort"``, ``"tvm{opt_level=2}"``), or check and return an instance.

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

    Raises UnknownEngine with the most similar name; EngineUnavailable with the pip command if the library is missing, or with the
    cause if the plug-in is broken; and EngineError if two distributions register the name.
    """
    entry = find_entry(name)
    try:
        cls = _check_class(entry.load())
        if cls.name != name:
            raise EngineError(
                f"class {cls.__qualname__} has the name {cls.name!r}, and is registered as {name!r}; the names must be equal"
            )
        return cls
    except (Exception, SystemExit) as error:  # an import runs third-party code
        # A missing library is normal if the user did not install the extra. Any other error is a broken plug-in.
        if isinstance(error, ModuleNotFoundError) and _is_distribution_missing(error):
            raise EngineUnavailable(
                f"engine {name!r} needs {error.name}, which is not installed; install it: {format_pip_command(entry)}"
            ) from error
        origin = f"{_format_distribution(entry)} ({entry.value})"
        raise EngineUnavailable(f"engine {entry.name!r} of {origin} is broken: {_join_lines(error)}") from error


def _make_unprobed_status(name: str) -> EngineStatus:
    """Make a status that is ``broken`` until the engine has been imported. Raises UnknownEngine."""
    return EngineStatus(name, "broken", " and ".join(map(_format_distribution, _list_claims(name))))


def probe(name: str) -> EngineStatus:
    """Import a registered engine and return its status. Raises only UnknownEngine.

    The import may crash the process, so `probe_all` runs each probe in a separate process.
    """
    status = _make_unprobed_status(name)
    cls = None
    try:
        cls = engine_class(name)
        engine = _check_engine(cls())
        devices = tuple(engine.available_devices())
        return replace(
            status,
            state="ready",
            version=engine.version(),
            devices=engine.devices,
            available="" if devices == engine.devices else ", ".join(devices),
            lacks=engine.missing_features(),
            precisions=", ".join(name for name in REDUCED_PRECISIONS if engine.with_precision(name) is not None),
        )
    except Exception as error:  # noqa: BLE001  # any error of a third-party constructor becomes its status
        # The constructor of an imported class raises EngineUnavailable if a dependency is missing.
        is_unavailable = cls is not None and isinstance(error, EngineUnavailable)
        if is_unavailable or _is_distribution_missing(error.__cause__):
            return replace(status, state="missing", pip=format_pip_command(find_entry(name)), cause=_join_lines(error))
        return replace(status, cause=_join_lines(error))


def list_file_options(spec: str) -> tuple[str, ...]:
    """List the options in a spec that may name files or code, without creating the engine.

    These are the options that the engine declares so (see `xrt.engines.option`), and those without a declaration whose type
    allows arbitrary text. Raises the errors of `engine_class` for an unknown or broken engine.
    """
    name, texts = parse_spec(spec)
    cls = engine_class(name)
    types = field_types(cls)
    # A key with a dot is an entry of a mapping.
    options = {key.partition(".")[0] for key in texts}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]  # every engine is a dataclass
        if not field.metadata.get(NAMES_FILES, not is_bounded(types.get(field.name))):
            options.discard(field.name)
    return tuple(sorted(options))


def why_forbidden(spec: str, file: str) -> str | None:
    """Explain why a file may not select this engine; None if it may. ``file`` is "lock" or "bundle".

    An engine opens, writes to or runs the files that its options name, so only the user may set such options. Raises the errors
    of `engine_class`.
    """
    options = list_file_options(spec)
    if not options:
        return None
    reason = f"whose {' and '.join(options)} may name files or code"
    return f"the {file} has engine {spec!r}, {reason}, and a {file} does not choose what is run"


def format_pip_command(entry: EntryPoint) -> str:
    """Format the command that installs the distribution of an engine with the extras that its entry point names."""
    distribution = entry.dist.name if entry.dist else entry.module.partition(".")[0]
    extras = f"[{','.join(entry.extras)}]" if entry.extras else ""
    return f"pip install '{distribution}{extras}'"


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
        # Entry points may have spaces around the colon, which `resolve_name` does not accept.
        return "".join(self.value.partition("[")[0].split())

    @property
    def dist(self) -> metadata.Distribution:
        """The distribution that declares the entry point."""
        from importlib import metadata

        return metadata.Distribution.at(self.folder)

    def load(self) -> Any:
        """Import the module and return its attribute. Raises any error of the import."""
        return pkgutil.resolve_name(self._target)


Entries: TypeAlias = dict[str, tuple[EntryPoint, ...]]


def _iter_entry_points(path: Sequence[str]) -> Iterator[Any]:
    """Yield the entry points of the group. If a distribution is on the path twice, the first one is used, as for imports.

    `importlib.metadata` does the same, but importing it takes 25 ms. Therefore it is used only if a distribution may be in an
    archive or come from the import finder of a plug-in.
    """
    folders = dict.fromkeys(folder or "." for folder in path)
    if any(Path(folder).is_file() for folder in folders) or any(map(_is_foreign, sys.meta_path)):
        from importlib import metadata

        yield from metadata.entry_points(group=GROUP)
        return
    seen: set[str] = set()
    for folder in folders:
        for info in _list_distributions(folder):
            # Names of distributions are normalized: ``My.Package-1.0.dist-info`` is of ``my-package``.
            name = Path(info).stem.partition("-")[0].lower().replace("_", "-").replace(".", "-")
            if name not in seen:
                seen.add(name)
                yield from _read_entry_points(info)


def _is_foreign(finder: Any) -> bool:
    """Whether an import finder may provide distributions that are not in the folders of the path, because it is not Python's."""
    kind = finder if isinstance(finder, type) else type(finder)
    return hasattr(finder, "find_distributions") and kind.__module__ not in ("_frozen_importlib_external", "importlib.machinery")


def _list_distributions(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.path for entry in entries if entry.name.endswith((".dist-info", ".egg-info"))]
    except OSError:
        return []


def _read_entry_points(info: str) -> Iterator[EntryPoint]:
    """Yield the entry points of the group from a distribution's ``entry_points.txt``, an INI file with a section per group."""
    try:
        data = Path(info, "entry_points.txt").read_bytes()
    except OSError:
        return
    if GROUP.encode() not in data:  # almost all distributions
        return
    is_in_section = False
    for line in data.decode("utf-8", "replace").splitlines():
        text = line.strip()
        if text.startswith("["):
            is_in_section = text == f"[{GROUP}]"
        elif is_in_section and "=" in text and not text.startswith(("#", ";")):
            name, _, value = text.partition("=")
            yield EntryPoint(name.strip(), value.strip(), info)


def _list_entries() -> Entries:
    return _read_entries(tuple(sys.path))


@lru_cache(maxsize=8)
def _read_entries(path: tuple[str, ...]) -> Entries:
    """Read the entry points by name. Installed distributions are assumed not to change while the process runs."""
    registered: dict[str, list[EntryPoint]] = {}
    for entry in _iter_entry_points(path):
        claims = registered.setdefault(entry.name, [])
        if all(entry.value != claim.value for claim in claims):  # a renamed distribution may be installed twice
            claims.append(entry)
    return {name: tuple(entries) for name, entries in registered.items()}


def _list_claims(name: str) -> tuple[EntryPoint, ...]:
    entries = _list_entries()
    if name not in entries:
        suggestion = _suggest(name) or did_you_mean(name.lower(), entries)
        raise UnknownEngine(
            f"no engine is named {name!r}.{suggestion} Registered: {', '.join(sorted(entries)) or 'none'}; "
            f"a distribution adds one by an entry point of group {GROUP!r}"
        )
    return entries[name]


def _suggest(word: str) -> str:
    """Return a suggestion for the error message if an engine declares a library or an alias of this name, else an empty text."""
    normalized = _normalize(word)
    for name in list_by_rank():
        declaration = find_declaration(name)
        if normalized in map(_normalize, (*declaration.libraries, *declaration.aliases)):
            return f" Did you mean {name!r}?"
    return ""


def _normalize(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def find_entry(name: str) -> EntryPoint:
    """Find the entry point that registers an engine. Raises UnknownEngine if there is none, EngineError if there are several."""
    claims = _list_claims(name)
    if len(claims) > 1:
        claimants = " and ".join(f"{_format_distribution(e)} ({e.value})" for e in claims)
        raise EngineError(
            f"engine {name!r} is registered by {claimants}; uninstall one of them, or pass an instance of the class that is meant"
        )
    return claims[0]


def _format_distribution(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.module


def _is_distribution_missing(error: BaseException | None) -> bool:
    """Whether an import failed because a distribution is not installed. False if only a module of the distribution is missing."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return False
    return importlib.util.find_spec(error.name.partition(".")[0]) is None


def _join_lines(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, XRTError) else f"{type(error).__name__}: {text}"


def _check_engine(engine: GraphCompiler) -> GraphCompiler:
    """Raise EngineError if the class violates the contract, or OptionError if a field has no text form; return the engine."""
    _check_class(engine.implementation)
    _ = engine.spec  # raises the OptionError
    return engine


def _check_class(cls: object) -> type[GraphCompiler]:
    """Raise EngineError if a class violates the contract for engines; otherwise return it."""
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
    """Properties of an engine that XRT reads from its source code, without importing it."""

    name: str
    rank: int = 100
    """Without measurements, engines are tried in order of rank, those of equal rank by name."""
    color: str = ""
    """Color of its regions in drawings, one of `xrt.html.views.PALETTE`; empty for a color that no engine declares."""
    description: str = ""
    """A short description for `xrt engines`."""
    libraries: tuple[str, ...] = ()
    """Distributions that the engine uses. ``xrt doctor`` shows their versions, and an error about an unknown engine of such a
    name suggests this engine."""
    aliases: tuple[str, ...] = ()
    """Other names for which the error about an unknown engine suggests this one."""
    environment: tuple[str, ...] = ()
    """Prefixes of environment variables that affect its libraries; ``xrt doctor`` shows those that are set."""
    thread_variables: tuple[str, ...] = ()
    """Environment variables from which its libraries read the number of threads on load; ``xrt bench`` sets them."""


@lru_cache(maxsize=256)
def _read_declaration(module: str, name: str, path: tuple[str, ...]) -> EngineDeclaration:
    """Read an engine's declaration from the source code of its module; defaults if there is none or it is invalid.

    A declaration is a statement at the top level of the module, such as ``X = EngineDeclaration("name", rank=1)``, with literals
    only. ``path`` is only part of the cache key, because with another import path the name may refer to another module.
    """
    from xrt.formats.documents import convert  # not needed for a start from the cache

    with suppress(Exception):  # an import of the module will report the mistake
        for statement in ast.parse(_read_source(module)).body:
            call = getattr(statement, "value", None)
            if isinstance(call, ast.Call) and ast.unparse(call.func).endswith(EngineDeclaration.__name__):
                arguments = [ast.literal_eval(argument) for argument in call.args]
                keywords = {keyword.arg or "": ast.literal_eval(keyword.value) for keyword in call.keywords}
                declaration = EngineDeclaration(*arguments, **keywords)
                if declaration.name == name:
                    return convert(dataclasses.asdict(declaration), EngineDeclaration)  # raises if a field has the wrong type
    return EngineDeclaration(name)


def _read_source(module: str) -> str:
    """Read the source code of a module without importing it or its parent packages. Empty if there is none."""
    package, *inner_names = module.split(".")
    spec: ModuleSpec | None = importlib.util.find_spec(package)
    for part in inner_names:
        # `importlib.util.find_spec` would import the parent packages.
        spec = PathFinder.find_spec(f"{spec.name}.{part}", spec.submodule_search_locations) if spec else None
    loader: Any = None if spec is None else spec.loader
    if spec is None or not hasattr(loader, "get_source"):
        return ""
    return str(loader.get_source(spec.name) or "")


def probe_all(engines: Sequence[str] | None = None, timeout: float = 60) -> tuple[EngineStatus, ...]:
    """Probe engines, by default all registered ones. Each probe runs in a separate process, at most one per core at a time.

    The results are in the order of ``engines``. If a probe crashes or takes longer than ``timeout`` seconds, the engine is
    ``broken``. Raises UnknownEngine for an unregistered name.
    """
    from xrt.processes.client import WorkerDied, WorkerFailure, WorkerProcess, WorkerTimedOut  # not needed for a warm start

    statuses = [_make_unprobed_status(name) for name in (names() if engines is None else engines)]
    running: list[WorkerProcess] = []
    interrupted = threading.Event()

    def probe_one(unprobed: EngineStatus) -> EngineStatus:
        worker = WorkerProcess("xrt.engines.contract.registry:main")
        running.append(worker)
        # An interrupt may have ended the workers before this one was in the list.
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

    # The threads only wait for the processes.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            return tuple(pool.map(probe_one, statuses))
        except BaseException:  # after an interrupt do not wait for the other probes
            interrupted.set()
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in running:
                worker.end()
            raise


def main(handle: str) -> None:
    """Entry point of a probe process: answer requests for `probe` on the socket with this handle."""
    from xrt.processes.ipc import serve

    serve(handle, lambda request: dataclasses.asdict(probe(request.message["engine"])))
