"""``xrt engines``, ``doctor`` and ``cache``: engines and settings of this machine, and the compiled regions on disk."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from xrt import __version__
from xrt.bench.report import get_processor_name
from xrt.cache import Records, Store, find_cache_directory, open_disk_tier
from xrt.cache.entries import ENTRIES, explain_misses, list_entries
from xrt.cli.inputs import load_with_sizes
from xrt.cli.options import SIZE, add_json, module_keywords, module_options
from xrt.cli.screen import out, print_facts, print_json, print_lines, show_status, show_table
from xrt.engines import GraphCompiler, create
from xrt.engines.contract.registry import engine_class, find_declaration, list_by_rank, names, probe_all
from xrt.engines.contract.spec import list_options
from xrt.engines.toolkit.blas import find_blas
from xrt.engines.toolkit.libraries import shorten
from xrt.errors import CacheError
from xrt.html.views import format_bytes
from xrt.module import XRTModule
from xrt.module.stored_plans import PLANS
from xrt.runtime import count_available_cores, get_default_budget

if TYPE_CHECKING:
    from xrt.partition import Launch


_STYLES = {"ready": "green", "missing": "yellow", "broken": "red"}


@click.command("engines")
@click.argument("engine", required=False)
@add_json
@click.option("-v", "--verbose", is_flag=True, help="Show all versions, and what each engine is and lacks")
def engines_command(engine: str | None, as_json: bool, verbose: bool) -> None:
    """List the engines: ready, missing (with the pip line) or broken (with the cause).

    With ENGINE, the name of one: list its options, which are written as ENGINE{option=value}.
    """
    if engine is not None:
        _show_options(engine, as_json)
        return
    with show_status("asking each engine in a process of its own"):
        states = probe_all()
    if as_json:
        print_json([{**asdict(state), "description": find_declaration(state.name).description} for state in states])
        return
    is_brief = out.is_terminal and not verbose
    rows = []
    for status in states:
        version = status.version or ""
        text = status.pip or status.cause or status.available or ", ".join(status.devices)
        if status.state == "ready":
            if status.lacks and not is_brief:
                text += f"; {status.lacks}"
            if status.precisions:
                text += f"; also in {status.precisions}"
        if is_brief:  # the first number of a longer text, so that the row fits one line
            number = re.search(r"\d+(?:\.\w+)+", version)
            version = number[0] if number else ""
        elif description := find_declaration(status.name).description:
            text = f"{description}: {text}"
        rows.append((status.name, Text(status.state, style=_STYLES[status.state]), version, text))
    show_table(("engine", "state", "version", "computes on" if is_brief else "what"), rows)


def _show_options(engine: str, as_json: bool) -> None:
    entries = list_options(engine_class(engine))
    if as_json:
        print_json([asdict(entry) for entry in entries])
    elif not entries:
        print_lines(f"engine '{engine}' has no options")
    else:
        rows = [(entry.name, entry.default, entry.type, entry.meaning) for entry in entries]
        show_table(("option", "default", "type", "meaning"), rows, whole=("option",))


_DISTRIBUTIONS = ("numpy", "onnx", "ml_dtypes", "protobuf", "torch")
"""Packages whose versions `xrt doctor` lists in addition to those that engines declare."""
# An allow list of environment variables, by prefix and by name: reports are pasted into public issues.
_PREFIXES = ("XRT_", "OMP_", "MKL_", "OPENBLAS_", "CUDA_")
_VARIABLES = ("PYTHONHASHSEED", "PYTHONPATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONWARNINGS", "NUMEXPR_NUM_THREADS")


@click.command("doctor")
@add_json
def doctor_command(as_json: bool) -> int:
    """Show versions, processor, memory, environment and engines, for a bug report. The exit code is 1 for a broken engine."""
    with show_status("asking each engine in a process of its own"):
        report = _examine()
    if as_json:
        print_json(report)
    else:
        show_table(("what", "value"), list(_flatten(report | {"cache": report["cache"] or "off"})))
        engines = [
            (e["name"], e["state"], e["distribution"], e["version"] or e["cause"], e["pip"], e["precisions"])
            for e in report["engines"]
        ]
        show_table(("engine", "state", "from", "version or cause", "install", "reduced precisions"), engines)
    return int(any(engine["state"] == "broken" for engine in report["engines"]))


def _examine() -> dict[str, Any]:
    import numpy as np

    libraries = (library for name in list_by_rank() for library in find_declaration(name).libraries)
    versions = {}
    for name in dict.fromkeys([*_DISTRIBUTIONS, *libraries]):
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    counters = {"total": "SC_PHYS_PAGES", "free": "SC_AVPHYS_PAGES"}
    pages = {word: os.sysconf(name) for word, name in counters.items() if name in os.sysconf_names}
    simd = np.show_config(mode="dicts")["SIMD Extensions"]
    features = [*simd.get("baseline", ()), *simd.get("found", ())]
    return {
        "python": f"{platform.python_version()} ({sys.executable})",
        "platform": platform.platform(),
        "versions": {"xrt": __version__, **versions},
        "processor": {"name": get_processor_name(), "architecture": platform.machine(), "features": features},
        "cores": {"this process": count_available_cores(), "machine": os.cpu_count()},
        "threads": {"budget": get_default_budget(), **{library.name: library.get() for library in find_blas().libraries}},
        "memory": {word: os.sysconf("SC_PAGE_SIZE") * count for word, count in pages.items()},
        "cache": _examine_cache(),
        "environment": read_engine_environment(os.environ),
        "engines": [asdict(status) for status in probe_all()],
    }


def _examine_cache() -> dict[str, Any]:
    tier = open_disk_tier()
    if tier is None:
        return {}
    items = tier.store.entries.items()
    facts = {"directory": str(tier.store.directory), "entries": len(items), "bytes": sum(item.size for item in items)}
    return {**facts, "limit": tier.limit, "unused": tier.store.why_not_trusted() or ""}


def read_engine_environment(variables: Mapping[str, str]) -> dict[str, str]:
    prefixes = list(_PREFIXES)
    for declaration in map(find_declaration, names()):
        prefixes += declaration.environment
    return {name: variables[name] for name in sorted(variables) if name.startswith(tuple(prefixes)) or name in _VARIABLES}


def _flatten(facts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the facts as (label, value) rows; labels begin with ``prefix``. Engines, which have another table, are left out."""
    for name, value in facts.items():
        label = f"{prefix} {name}".strip()
        if isinstance(value, dict):
            yield from _flatten(value, label)
        elif name in ("total", "free", "bytes", "limit"):
            yield label, format_bytes(value)
        elif name != "engines" and (name != "unused" or value):  # without a reason, the cache is used
            yield label, " ".join(value) if isinstance(value, list) else value


_CELL_WIDTH = 60


@click.group("cache")
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="The directory [default: XRT_CACHE_DIR, or the user's cache]",
)
@click.pass_context
def cache_command(context: click.Context, directory: Path | None) -> None:
    """List, verify and remove the compiled regions on disk."""
    context.obj = Store(directory or find_cache_directory())


@cache_command.command("list")
@add_json
@click.pass_obj
def list_command(store: Store, as_json: bool) -> None:
    """List the entries, the most recently used first."""
    entries = list_entries(store)
    if as_json:
        print_json({"directory": str(store.directory), "entries": [asdict(entry) for entry in entries]})
        return
    headings = ["entry", "engine", "size", "last used", "inputs"]
    if not out.is_terminal:
        headings.append("note")
    rows = []
    for entry in entries:
        note = shorten(entry.damage or (f"fails: {entry.failure}" if entry.failure else ""), _CELL_WIDTH)
        used = datetime.fromtimestamp(entry.used).strftime("%Y-%m-%d %H:%M")
        size, inputs = format_bytes(entry.size), shorten(entry.entry, _CELL_WIDTH)
        if out.is_terminal:  # too narrow for the class before the spec, and for both the inputs and the note
            _, _, spec = entry.engine.partition(" ")
            rows.append([entry.key[:8], spec or entry.engine, size, used, note or inputs])
        else:
            rows.append([entry.key[:12], entry.engine, size, used, inputs, note])
    show_table(headings, rows, numbers=("size",))
    print_lines(f"{len(entries)} entries, {format_bytes(sum(entry.size for entry in entries))}, in {store.directory}")
    _print_unused(store)


def _print_unused(store: Store) -> bool:
    reason = store.why_not_trusted()
    if reason is not None:
        print_lines(f"it is not used: {reason}")
    return reason is not None


@cache_command.command("verify")
@click.pass_obj
def verify_command(store: Store) -> int:
    """Verify the checksums and the owner of every entry; exit code 1 when one cannot be used (`xrt cache gc` removes it)."""
    damaged = store.find_damaged()
    print_lines(*damaged.values())
    print_lines(f"{len(store.entries.items())} entries, {len(damaged)} of them damaged, in {store.directory}")
    return int(_print_unused(store) or bool(damaged))


@cache_command.command("gc")
@click.option(
    "--size", type=SIZE, help="Remove the least recently used beyond this size, such as 2GB [default: XRT_CACHE_SIZE, or 5GB]"
)
@click.option("--failures", is_flag=True, help="Forget the compiles that are stored as failed")
@click.pass_obj
def gc_command(store: Store, size: int | None, failures: bool) -> None:
    """Remove damaged, unfinished and outdated entries, and the least recently used ones over the size limit."""
    tier = open_disk_tier(directory=store.directory)
    default_limit = tier.limit if tier else 0
    limit = default_limit if size is None else size
    # Damaged entries are removed first: their sizes must not evict good ones.
    damaged = store.find_damaged()
    forgotten = [item for item in store.entries.items() if failures and item not in damaged and _is_failure(item.path)]
    for item in (*damaged, *forgotten):
        item.path.unlink(missing_ok=True)
    evicted, unfinished = store.shrink(limit), store.sweep()
    old = Records(store, PLANS).sweep()
    print_lines(
        f"removed {len(damaged)} damaged entries, {len(forgotten)} remembered failures, {len(evicted)} entries over the limit of "
        f"{format_bytes(limit)}, {unfinished} unfinished writes, and the plans of {old} changed files"
    )


def _is_failure(path: Path) -> bool:
    try:
        return ENTRIES.read(path).failure is not None
    except (CacheError, OSError):
        return False


@cache_command.command("clear")
@click.pass_obj
def clear_command(store: Store) -> None:
    """Remove everything that XRT stores in the directory."""
    sizes = [item.size for item in store.entries.items()]
    store.clear()
    print_lines(f"removed {len(sizes)} entries, {format_bytes(sum(sizes))}, from {store.directory}")


@cache_command.command("explain-miss")
@module_options
@add_json
@click.pass_obj
def explain_miss_command(store: Store, /, model: str, as_json: bool, **params: Any) -> int:
    """Explain why regions of MODEL are not in the cache, by comparison with the nearest entry; exit code 1 when one is missing.

    Regions that an engine cannot save are never stored, and never missing.
    """
    function = load_with_sizes(model, params)
    with XRTModule(function, **module_keywords(params)) as module:
        signatures = module.signatures()
        unsaved = {launch.name: why for launch in module.plan.launches if (why := _explain_not_saved(launch))}
    missed = explain_misses(store, [signature for name, signature in signatures.items() if name not in unsaved])
    misses = {miss.signature.key: miss for miss in missed}
    facts = {}
    lines = []
    for name, signature in signatures.items():
        miss = misses.get(signature.key)
        columns = ("ingredient", "asked", "entry")
        differences = [dict(zip(columns, row, strict=True)) for row in miss.differences] if miss else []
        facts[name] = {"saves": name not in unsaved, "key": signature.key, "hit": miss is None, "differs": differences}
        if name in unsaved:
            lines.append(f"{name}: {unsaved[name]}, so it is compiled in each process")
        elif miss is None:
            lines.append(f"{name}: in the cache")
        elif miss.nearest is None:
            lines += [f"{name}: not in the cache", "  the cache is empty"]
        else:
            lines += [f"{name}: not in the cache", f"  the nearest entry, {miss.nearest.key[:12]}, differs in:"]
            for ingredient, requested, stored in miss.differences:
                lines.append(f"    {ingredient}: {shorten(requested, _CELL_WIDTH)}; the entry has {shorten(stored, _CELL_WIDTH)}")
    print_facts(as_json, facts, *lines)
    return int(bool(missed))


def _explain_not_saved(launch: Launch) -> str:
    engine = create(launch.engine)
    if type(engine).save is GraphCompiler.save:
        return f"engine {launch.engine!r} cannot save an executable"
    if not engine.is_worth_saving(launch.function):
        return f"engine {launch.engine!r} compiles so small a region in less time than it takes to load one"
    return ""
