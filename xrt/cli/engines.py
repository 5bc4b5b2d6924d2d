"""``xrt engines``: what is installed, what is missing and what is broken; and the options of one engine."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from xrt import __version__
from xrt.cache import open_disk_tier
from xrt.cli.screen import WorkStatus, human_bytes, out, show_table
from xrt.engines.contract.registry import EngineStatus, engine_class, find_declaration, list_by_rank, names, probe_all
from xrt.engines.contract.spec import list_options
from xrt.engines.toolkit.blas import find_blas
from xrt.runtime import available_cores, default_budget

__all__ = ["command", "doctor_command", "facts", "read_engine_environment"]

_STYLES = {"ready": "green", "missing": "yellow", "broken": "red"}


@click.command("engines")
@click.argument("engine", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON")
@click.option("-v", "--verbose", is_flag=True, help="Show all versions, and what each engine is and lacks")
def command(engine: str | None, as_json: bool, verbose: bool) -> None:
    """List the engines: ready, missing (with the pip line) or broken (with the cause).

    With ENGINE, the name of one: list its options, which are written as ENGINE{option=value}.
    """
    if engine is not None:
        _show_options(engine, as_json)
        return
    with WorkStatus("asking each engine in a process of its own"):
        states = probe_all()
    if as_json:
        out.print_json(
            json.dumps([{**asdict(state), "description": find_declaration(state.name).description} for state in states])
        )
        return
    if verbose or not out.is_terminal:
        rows = [(s.name, Text(s.state, style=_STYLES[s.state]), s.version or "", _what(s)) for s in states]
        show_table(("engine", "state", "version", "what"), rows)
        return
    brief = [(s.name, Text(s.state, style=_STYLES[s.state]), _number(s.version), _brief(s)) for s in states]
    show_table(("engine", "state", "version", "computes on"), brief)


def _number(version: str) -> str:
    """Return the first version number of a text such as ``onnxruntime 1.31.1 (...)``."""
    found = re.search(r"\d+(?:\.\w+)+", version or "")
    return found[0] if found else ""


def _brief(status: EngineStatus) -> str:
    if status.state != "ready":
        return status.pip or status.cause
    devices = status.available or ", ".join(status.devices)
    return f"{devices}; also in {status.precisions}" if status.precisions else devices


def _show_options(engine: str, as_json: bool) -> None:
    entries = list_options(engine_class(engine))
    if as_json:
        out.print_json(json.dumps([asdict(entry) for entry in entries]))
    elif not entries:
        out.print(f"engine '{engine}' has no options")
    else:
        rows = [(entry.name, entry.default, entry.type, entry.meaning) for entry in entries]
        show_table(("option", "default", "type", "meaning"), rows, whole=("option",))


def _what(status: EngineStatus) -> str:
    devices = status.available or ", ".join(status.devices)
    state = status.pip or status.cause or (f"{devices}; {status.lacks}" if status.lacks else devices)
    state += f"; also computes in {status.precisions}" if status.precisions else ""
    return f"{description}: {state}" if (description := find_declaration(status.name).description) else state


_DISTRIBUTIONS = ("numpy", "onnx", "ml_dtypes", "protobuf", "torch")
"""Those that any engine may meet; each engine declares its own."""
_PREFIXES = ("XRT_", "OMP_", "MKL_", "OPENBLAS_", "CUDA_")
_VARIABLES = ("PYTHONHASHSEED", "PYTHONPATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONWARNINGS", "NUMEXPR_NUM_THREADS")


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print JSON")
def doctor_command(as_json: bool) -> int:
    """Show versions, processor, memory, environment and engines, for a bug report. The exit code is 1 for a broken engine."""
    with WorkStatus("asking each engine in a process of its own"):
        found = facts()
    if as_json:
        out.print_json(json.dumps(found))
    else:
        _show(found)
    return int(any(engine["state"] == "broken" for engine in found["engines"]))


def facts() -> dict[str, Any]:
    """Return all that the command shows, as plain data."""
    return {
        "python": f"{platform.python_version()} ({sys.executable})",
        "platform": platform.platform(),
        "versions": {"xrt": __version__} | {name: version for name in _list_distributions() if (version := _version(name))},
        "processor": _processor(),
        "cores": {"this process": available_cores(), "machine": os.cpu_count()},
        "threads": {"budget": default_budget(), **_blas()},
        "memory": _memory(),
        "cache": _cache(),
        "environment": read_engine_environment(os.environ),
        "engines": [asdict(status) for status in probe_all()],
    }


def _cache() -> dict[str, Any]:
    """Return where compiles are kept on disk, and how much of it there is; nothing where the cache is switched off."""
    tier = open_disk_tier()
    if tier is None:
        return {}
    items = tier.store.items()
    return {
        "directory": str(tier.store.directory),
        "entries": len(items),
        "bytes": sum(item.size for item in items),
        "limit": tier.limit,
        "unused": tier.store.why_not_trusted() or "",
    }


def read_engine_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return those variables that may change what XRT or an engine does, sorted; no others leave the machine."""
    prefixes = (*_PREFIXES, *(prefix for one in map(find_declaration, names()) for prefix in one.environment))
    return {name: variables[name] for name in sorted(variables) if name.startswith(prefixes) or name in _VARIABLES}


def _list_distributions() -> list[str]:
    declared = (library for name in list_by_rank() for library in find_declaration(name).libraries)
    return list(dict.fromkeys([*_DISTRIBUTIONS, *declared]))


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _blas() -> dict[str, int]:
    """Return the threads that NumPy's BLAS takes by itself, under its name."""
    return {library.name: library.get() for library in find_blas().libraries}


def _processor() -> dict[str, Any]:
    """Return the processor's name, and the instruction sets that NumPy found and uses."""
    import numpy as np

    simd = np.show_config(mode="dicts")["SIMD Extensions"]
    features = [*simd.get("baseline", ()), *simd.get("found", ())]
    return {"name": _processor_name(), "architecture": platform.machine(), "features": features}


def _processor_name() -> str:
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown")


def _memory() -> dict[str, int]:
    """Return bytes in all and free, where the system tells."""
    if "SC_PHYS_PAGES" not in os.sysconf_names:
        return {}
    page = os.sysconf("SC_PAGE_SIZE")
    asked = {"total": "SC_PHYS_PAGES", "free": "SC_AVPHYS_PAGES"}
    return {word: page * os.sysconf(name) for word, name in asked.items() if name in os.sysconf_names}


def _describe_cache(cache: Mapping[str, Any]) -> str:
    if not cache:
        return "off"
    said = f"{cache['entries']} entries, {human_bytes(cache['bytes'])} of {human_bytes(cache['limit'])}, in {cache['directory']}"
    return f"{said}; not used: {cache['unused']}" if cache["unused"] else said


def _show(found: Mapping[str, Any]) -> None:
    processor = found["processor"]
    rows = [
        ("python", found["python"]),
        ("platform", found["platform"]),
        ("processor", f"{processor['name']} ({processor['architecture']})"),
        ("features", " ".join(processor["features"])),
        *((f"cores of {whose}", count) for whose, count in found["cores"].items()),
        *((f"threads, {whose}", count) for whose, count in found["threads"].items()),
        *((f"memory, {word}", human_bytes(count)) for word, count in found["memory"].items()),
        ("cache", _describe_cache(found["cache"])),
        *found["versions"].items(),
        *found["environment"].items(),
    ]
    show_table(("what", "value"), rows)
    names = ("name", "state", "distribution")
    engines = [(*(e[name] for name in names), e["version"] or e["cause"], e["pip"], e["precisions"]) for e in found["engines"]]
    show_table(("engine", "state", "from", "version or cause", "install", "lower precisions"), engines)
