"""From an engine's name to its class: what the installed distributions publish in the entry points of ``xrt.engines``.

XRT's own engines come by the same door as anyone's. Nothing is imported before an engine is asked for; a plug-in that
is missing its library, does not import, or clashes with another leaves the others untouched.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import inspect
import os
import re
import sys
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from typing import Literal, TypeAlias

from xrt.engines.contract.entry_points import EntryPoint, list_entry_points
from xrt.engines.contract.graph_compiler import GraphCompiler
from xrt.engines.contract.options import LOWER_PRECISIONS
from xrt.engines.contract.spec import NAMES_FILES, build, field_types, format_spec, is_bounded, parse_spec
from xrt.errors import EngineError, EngineUnavailable, OptionError, UnknownEngine, XRTError, did_you_mean
from xrt.processes.client import WorkerDied, WorkerFailure, WorkerProcess, WorkerTimedOut
from xrt.processes.server import serve

__all__ = [
    "GROUP",
    "EngineDeclaration",
    "EngineStatus",
    "check_registered",
    "create",
    "engine_class",
    "find_declaration",
    "find_entry_module",
    "free_options",
    "list_by_rank",
    "list_registered",
    "names",
    "pip_line",
    "probe",
    "probe_all",
    "read_declaration",
    "why_not_chosen",
]

GROUP = "xrt.engines"
"""The group of entry points; a line is ``name = "module:Class [extra]"``."""
Entries: TypeAlias = dict[str, tuple[EntryPoint, ...]]
State: TypeAlias = Literal["ready", "missing", "broken"]
_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """What is the case with one registered engine."""

    name: str
    state: State
    """``missing``: its library is not installed; ``broken``: it is, but does not serve."""
    distribution: str
    """Who registers it, with the version."""
    pip: str = ""
    """The command that installs what it lacks, where it is missing."""
    version: str = ""
    """Its own and its libraries' versions, where it is ready."""
    devices: tuple[str, ...] = ()
    """The kinds of device that its class names, where it is ready."""
    available: str = ""
    """Those of them that its installed build serves, with commas between, where these are others."""
    cause: str = ""
    """Why it is not ready."""
    lacks: str = ""
    """What it does without here though it is ready, and how to mend that."""
    precisions: str = ""
    """The lower precisions that it computes in on this processor, with commas between."""


def names() -> tuple[str, ...]:
    """Return the names of all registered engines, sorted, whether or not they are ready."""
    return tuple(sorted(_entries()))


def list_by_rank() -> tuple[str, ...]:
    """Return the names of all registered engines in the order in which they are tried where nothing is measured."""
    return tuple(_sort_by_rank(names()))


def _sort_by_rank(engines: Iterable[str]) -> list[str]:
    return sorted(engines, key=lambda name: (find_declaration(name).rank, name))


def find_declaration(name: str) -> EngineDeclaration:
    """Return what an engine declares; the defaults for one that declares nothing or is not registered. Nothing is imported."""
    claims = _entries().get(name, ())
    return _read_declaration(claims[0].module if claims else "", name, tuple(sys.path))


@lru_cache(maxsize=256)
def _read_declaration(module: str, name: str, path: tuple[str, ...]) -> EngineDeclaration:
    # DELETED-LINE  # a call of a named engine needs none

    return read_declaration(module, name)


def create(engine: str | GraphCompiler) -> GraphCompiler:
    """Return the engine that a spec (``"ort"``, ``"tvm{opt_level=2}"``) names; an instance is checked and returned.

    Raises UnknownEngine, EngineUnavailable, or OptionError for an option that is unknown or of the wrong type.
    """
    if isinstance(engine, GraphCompiler):
        return _checked(engine)
    if not isinstance(engine, str):
        raise OptionError(f"an engine is a name, a spec or an instance of a GraphCompiler; got {engine!r}")
    name, fields = parse_spec(engine)
    return build(engine_class(name), fields)


def engine_class(name: str) -> type[GraphCompiler]:
    """Return the class registered under that name, importing it.

    Raises UnknownEngine naming the nearest; EngineUnavailable with the pip line where the library is missing, with the
    cause chained where the plug-in is broken; EngineError when two distributions claim the name.
    """
    entry = _entry(name)
    try:
        found = entry.load()
        return _named(_check_class(found), name)
    except (Exception, SystemExit) as error:  # an import runs a stranger's code
        if isinstance(error, ModuleNotFoundError) and _is_missing(error):
            raise EngineUnavailable(
                f"engine {name!r} needs {error.name}, which is not installed; install it: {pip_line(entry)}"
            ) from error
        raise _broken(entry, error) from error


def list_registered(name: str) -> EngineStatus:
    """Return what is known of an engine without importing it: who registers it. It counts as broken.

    Raises UnknownEngine.
    """
    return EngineStatus(name, "broken", " and ".join(map(_distribution, _claims(name))))


def probe(name: str) -> EngineStatus:
    """Return what is the case with a registered engine; imports it, and raises nothing but UnknownEngine.

    An import may crash the process; `xrt.engines.contract.registry.probe_all` probes each engine in a process of its own.
    """
    status = list_registered(name)
    kind = None
    try:
        kind = engine_class(name)
        engine = _checked(kind())
        served = tuple(engine.available_devices())
        available = "" if served == engine.devices else ", ".join(served)
        found = replace(status, state="ready", version=engine.version(), devices=engine.devices, available=available)
        lower = ", ".join(one for one in LOWER_PRECISIONS if engine.lower_precision(one) is not None)
        return replace(found, lacks=engine.missing_features(), precisions=lower)
    except Exception as error:  # noqa: BLE001  # whatever a stranger's constructor raises is its status
        says_so = kind is not None and isinstance(error, EngineUnavailable)  # the class itself knows what it lacks
        if says_so or _is_missing(error.__cause__):
            return replace(status, state="missing", pip=pip_line(_entry(name)), cause=_one_line(error))
        return replace(status, cause=_one_line(error))


def free_options(spec: str) -> tuple[str, ...]:
    """Return the options in a spec that may name files and code, without making the engine.

    An engine declares which do (`xrt.engines.option`); of the others those that are any text at all. Raises what `create`
    raises for the name.
    """
    name, given = parse_spec(spec)
    cls = engine_class(name)
    kinds = field_types(cls)
    declared = {one.name: one.metadata.get(NAMES_FILES) for one in dataclasses.fields(cls)}  # type: ignore[arg-type]  # one is a dataclass
    names = {key.partition(".")[0] for key in given}
    return tuple(sorted(one for one in names if _names_files(declared.get(one), kinds.get(one))))


def _names_files(declared: bool | None, kind: object) -> bool:
    return not is_bounded(kind) if declared is None else declared


def why_not_chosen(spec: str, file: str) -> str | None:
    """Return why a file of that kind, a lock or a bundle, may not choose an engine; None where it may.

    What an engine's options name is opened, written to or run, so only a person may ask for it. Raises what `create` raises
    for the name.
    """
    options = free_options(spec)
    if not options:
        return None
    what = f"whose {' and '.join(options)} may name files or code"
    return f"the {file} has engine {spec!r}, {what}, and a {file} does not choose what is run"


def find_entry_module(name: str) -> str:
    """Return the module that an engine's entry point names, which is not imported. Raises UnknownEngine as `create` does."""
    return _entry(name).module


def pip_line(entry: EntryPoint) -> str:
    """Return the command that installs an engine's distribution with the extras that its entry point names."""
    distribution = entry.dist.name if entry.dist else entry.module.partition(".")[0]
    extras = f"[{','.join(entry.extras)}]" if entry.extras else ""
    return f"pip install '{distribution}{extras}'"


# ---------------------------------------------------------------------- the entry points


def _entries() -> Entries:
    return _scan(tuple(sys.path))


@lru_cache(maxsize=8)
def _scan(path: tuple[str, ...]) -> Entries:
    """Read the entry points once per import path: what is installed on it does not change under a running process."""
    found: dict[str, list[EntryPoint]] = {}
    for entry in list_entry_points(GROUP, path):
        claims = found.setdefault(entry.name, [])
        if all(entry.value != one.value for one in claims):  # one class may be installed under two names, as after a renaming
            claims.append(entry)
    return {name: tuple(entries) for name, entries in found.items()}


def check_registered(name: str) -> None:
    """Raise UnknownEngine or EngineError unless one distribution registers the name; nothing is loaded."""
    _entry(name)


def _claims(name: str) -> tuple[EntryPoint, ...]:
    entries = _entries()
    if name not in entries:
        near = _suggest(name, entries) or did_you_mean(name.lower(), entries)
        raise UnknownEngine(
            f"no engine is named {name!r}.{near} Registered: {', '.join(sorted(entries)) or 'none'}; "
            f"a distribution adds one by an entry point of group {GROUP!r}"
        )
    return entries[name]


def _suggest(word: str, entries: Entries) -> str:
    """Return `` Did you mean 'x'?`` for the engine that declares a library or an alias of that name; empty where none does."""
    plain = _normalize(word)
    for name in _sort_by_rank(entries):
        found = find_declaration(name)
        if plain in map(_normalize, (*found.libraries, *found.aliases)):
            return f" Did you mean {name!r}?"
    return ""


def _normalize(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _entry(name: str) -> EntryPoint:
    claims = _claims(name)
    if len(claims) > 1:
        both = " and ".join(f"{_distribution(e)} ({e.value})" for e in claims)
        raise EngineError(
            f"engine {name!r} is registered by {both}; uninstall one of them, or pass an instance of the class that is meant"
        )
    return claims[0]


def _distribution(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.module


# ---------------------------------------------------------------------- what may be wrong


def _is_missing(error: BaseException | None) -> bool:
    """Whether an import failed because a distribution is not there at all; one that is there in part is broken."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return False
    return importlib.util.find_spec(error.name.partition(".")[0]) is None


def _broken(entry: EntryPoint, cause: BaseException) -> EngineUnavailable:
    return EngineUnavailable(f"engine {entry.name!r} of {_distribution(entry)} ({entry.value}) is broken: {_one_line(cause)}")


def _one_line(error: BaseException) -> str:
    said = " ".join(str(error).split())
    return said if isinstance(error, XRTError) else f"{type(error).__name__}: {said}"


def _checked(engine: GraphCompiler) -> GraphCompiler:
    """Return the engine; raises EngineError or OptionError when its class or a field's value breaks the contract."""
    _check_class(type(engine))
    format_spec(engine)
    return engine


def _check_class(cls: object) -> type[GraphCompiler]:
    """Return the class; raises EngineError saying which part of the contract it does not keep."""
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


def _named(cls: type[GraphCompiler], name: str) -> type[GraphCompiler]:
    if cls.name != name:
        raise EngineError(
            f"class {cls.__qualname__} calls itself {cls.name!r}, and is registered as {name!r}; the names must be equal"
        )
    return cls


@dataclass(frozen=True, slots=True)
class EngineDeclaration:
    """Facts about an engine. Each default is that of an engine which declares nothing."""

    name: str
    """The name by which the engine is registered."""
    rank: int = 100
    """Engines of low rank are tried first where nothing is measured; of equal rank, by name."""
    color: str = ""
    """The color of its regions in drawings: one of `xrt.html.drawing.PALETTE`; empty: one that no other engine there has."""
    description: str = ""
    """What the engine is, for a person who does not know it."""
    libraries: tuple[str, ...] = ()
    """Distributions that it computes with: ``xrt doctor`` shows their versions, and their names suggest the engine."""
    aliases: tuple[str, ...] = ()
    """Other words that suggest the engine to a person who mistakes its name."""
    environment: tuple[str, ...] = ()
    """Beginnings of the names of variables that change what its libraries do; ``xrt doctor`` shows those that are set."""
    thread_variables: tuple[str, ...] = ()
    """Variables from which its libraries take a number of threads when they load; ``xrt bench`` sets them."""

    def is_valid(self) -> bool:
        """Whether each field has the type that it should have: what a file says is checked nowhere else."""
        standard = EngineDeclaration("")
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) is not type(getattr(standard, field.name)):
                return False
            if isinstance(value, tuple) and not all(isinstance(one, str) for one in value):
                return False
        return True


def read_declaration(module: str, name: str) -> EngineDeclaration:
    """Return what a module declares of an engine; one without a declaration that can be read gets the defaults.

    A declaration is a constant at the top level of the module, ``X = EngineDeclaration("name", rank=1)``, all of literals.
    """
    try:
        for statement in ast.parse(_read_source(module)).body:
            call = getattr(statement, "value", None)
            if isinstance(call, ast.Call) and ast.unparse(call.func).endswith(EngineDeclaration.__name__):
                given = [ast.literal_eval(one) for one in call.args]
                found = EngineDeclaration(*given, **{one.arg or "": ast.literal_eval(one.value) for one in call.keywords})
                if found.name == name and found.is_valid():
                    return found
    except Exception:  # noqa: BLE001  # an import of the module says what is wrong with it; nothing here needs it to be right
        return EngineDeclaration(name)
    return EngineDeclaration(name)


def _read_source(module: str) -> str:
    """Return the source of a module, which is not imported, nor are the packages around it; empty where there is none."""
    top, *rest = module.split(".")
    spec: ModuleSpec | None = importlib.util.find_spec(top)
    for part in rest:
        spec = PathFinder.find_spec(f"{spec.name}.{part}", spec.submodule_search_locations) if spec else None
    read = getattr(spec.loader if spec else None, "get_source", None)
    return (read(spec.name) if read and spec else None) or ""


def probe_all(engines: Sequence[str] | None = None, timeout: float = 60) -> tuple[EngineStatus, ...]:
    """Return the state of those engines, of all registered ones by default, in the order of their names.

    The processes run side by side, one per core. One that crashes, or does not answer in that many seconds, is a
    broken engine. Raises UnknownEngine.
    """
    known = [list_registered(name) for name in (names() if engines is None else engines)]
    running: list[WorkerProcess] = []
    interrupted = threading.Event()

    def probe_one(status: EngineStatus) -> EngineStatus:
        worker = WorkerProcess("xrt.engines.contract.registry:main")
        running.append(worker)
        if interrupted.is_set():
            worker.end()
        return _probe_in(worker, status, timeout)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            return tuple(pool.map(probe_one, known))
        except BaseException:  # an interrupt does not wait until all have answered
            interrupted.set()
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in running:
                worker.end()
            raise


def _probe_in(worker: WorkerProcess, unknown: EngineStatus, timeout: float) -> EngineStatus:
    try:
        answer, _ = worker.ask({"engine": unknown.name}, seconds=timeout)
    except WorkerTimedOut:
        return replace(unknown, cause=f"its import did not end within {timeout:g} s")
    except WorkerDied as error:
        return replace(unknown, cause=f"its import ended the process ({error.how}): {error.last_line or 'it said nothing'}")
    except WorkerFailure as error:
        return replace(unknown, cause=f"its import failed: {error}")
    finally:
        worker.end()
    return EngineStatus(**{**answer, "devices": tuple(answer["devices"])})


def main(handle: str) -> None:
    """Serve the socket of that number: the state of the engine that is named."""
    serve(handle, lambda request: dataclasses.asdict(probe(request.message["engine"])))
