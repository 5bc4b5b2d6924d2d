"""``xrt engines``: what is installed, what is missing and what is broken; and the options of one engine."""

from __future__ import annotations

import json
import re
from dataclasses import asdict

import click
from rich.text import Text

from xrt.cli.screen import WorkStatus, out, show_table
from xrt.engines.contract.discovery import probe_all
from xrt.engines.contract.option_list import list_options
from xrt.engines.contract.registry import EngineStatus, engine_class, find_declaration

__all__ = ["command"]

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
