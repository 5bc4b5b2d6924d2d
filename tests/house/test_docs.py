"""What the documents and docstrings show is run."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

from tests.house.public import modules

TOP = Path(__file__).parents[2]
DOCUMENTS = [TOP / "README.md", *sorted((TOP / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(text: str) -> list[str]:
    return _BLOCK.findall(text)


@pytest.mark.parametrize("name", modules())
def test_examples_in_docstrings(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE).failed == 0


@pytest.mark.slow
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_examples_in_documents(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks(document.read_text(encoding="utf-8")):
        exec(compile(block, str(document), "exec"), names)


def test_blocks_of_python_are_found_and_no_others() -> None:
    assert blocks("```python\na = 1\n```\ntext\n```\nb\n```\n```python\nc\n```\n") == ["a = 1\n", "c\n"]
    assert blocks((TOP / "README.md").read_text(encoding="utf-8"))


def test_links_between_documents_lead_somewhere() -> None:
    lost = [
        f"{document.name}: {target}"
        for document in DOCUMENTS
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8"))
        if not (document.parent / target).exists()
    ]
    assert lost == []
