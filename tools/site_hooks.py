"""Hooks of the documentation site: pages of public names, and the list of design records.

MkDocs calls the functions whose names begin with ``on_``. Each package in `PACKAGES` gets a page, which mkdocstrings fills from
the source.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

PACKAGES = (
    "xrt",
    "xrt.errors",
    "xrt.graph",
    "xrt.builder",
    "xrt.formats.onnx",
    "xrt.formats.text",
    "xrt.formats.placement_file",
    "xrt.formats.calibration_table",
    "xrt.passes",
    "xrt.passes.quantize",
    "xrt.engines",
    "xrt.engines.native",
    "xrt.engines.toy",
    "xrt.partition",
    "xrt.cache",
    "xrt.runtime",
    "xrt.verify",
    "xrt.placement",
    "xrt.module",
    "xrt.models",
    "xrt.training",
    "xrt.bench",
    "xrt.testing",
    "xrt.testing.suite",
    "xrt.testing.strategies",
    "xrt.testing.fault_injection",
    "xrt.testing.simulated",
    "xrt.comparison",
)
"""Packages and modules whose names are public, as the site lists them."""
_NOT_DOCUMENTED = frozenset({"__version__", "errors", "ops", "training"})
"""Names of `xrt` that the reference of `xrt` omits: they have a separate page or need none."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill in the lists of Python names and design records in the navigation."""
    names = {
        "Python names": [{package: f"reference/python/{package}.md"} for package in PACKAGES],
        "Design records": sorted(f"design/{path.name}" for path in Path(config.docs_dir, "design").glob("*.md")),
    }
    _fill(config.nav, names)
    return config


def _fill(entries: Any, names: dict[str, list[Any]]) -> None:
    for entry in entries:
        if isinstance(entry, dict):
            for title, children in entry.items():
                if title in names:
                    entry[title] = names[title]
                elif isinstance(children, list):
                    _fill(children, names)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each public package."""
    for package in PACKAGES:
        files.append(File.generated(config, f"reference/python/{package}.md", content=make_page(package)))
    return files


_CODE = re.compile(r"`[^`]+`")


def on_page_markdown(markdown: str, **more: Any) -> str:
    """Unescape vertical bars in the code of tables: GitHub needs the backslash, and the site would show it."""
    lines = (_unescape(line) if line.startswith("|") else line for line in markdown.split("\n"))
    return "\n".join(lines)


def _unescape(row: str) -> str:
    return _CODE.sub(lambda code: code[0].replace(r"\|", "|"), row)


def make_page(package: str) -> str:
    """Make the page of a package: its docstring, and a reference to each public name for mkdocstrings."""
    module = importlib.import_module(package)
    lines = [f"# {package}", "", (module.__doc__ or "").strip(), ""]
    for name in list_names(package):
        lines += [f"::: {package}.{name}", ""]
    return "\n".join(lines)


def list_names(package: str) -> list[str]:
    """List the public names of a package that its page documents, in alphabetical order."""
    return sorted(set(importlib.import_module(package).__all__) - _NOT_DOCUMENTED)
