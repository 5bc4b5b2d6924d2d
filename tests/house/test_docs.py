"""What the documents and docstrings show is run."""

from __future__ import annotations

import doctest
import importlib
import re
import shlex
import sys
import types
from pathlib import Path

import click
import pytest

from tests.house.public import modules
from xrt import errors
from xrt.bench import Candidate
from xrt.cli.app import cli
from xrt.engines import Executable, GraphCompiler
from xrt.errors import XRTError, XRTWarning
from xrt.partition import Pin

TOP = Path(__file__).parents[2]
DOCUMENTS = [TOP / "README.md", TOP / "CONTRIBUTING.md", *sorted((TOP / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(text: str) -> list[str]:
    return _BLOCK.findall(text)


@pytest.mark.parametrize("name", modules())
def test_examples_in_docstrings(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE).failed == 0


def run_blocks(document: Path) -> None:
    """Run a document's blocks of Python one after the other, in one namespace; warnings are errors, as in every test."""
    module = types.ModuleType("document")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "document", module)  # where dataclasses look up what their annotations name
        for block in blocks(document.read_text(encoding="utf-8")):
            exec(compile(block, str(document), "exec"), module.__dict__)


@pytest.mark.slow
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_examples_in_documents(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_blocks(document)


def test_a_block_that_fails_is_caught(tmp_path: Path) -> None:
    planted = tmp_path / "planted.md"
    planted.write_text("```python\na = 1\n```\n\n```python\nassert a == 2\n```\n", encoding="utf-8")
    with pytest.raises(AssertionError):
        run_blocks(planted)


def test_blocks_of_python_are_found_and_no_others() -> None:
    assert blocks("```python\na = 1\n```\ntext\n```\nb\n```\n```python\nc\n```\n") == ["a = 1\n", "c\n"]
    assert blocks((TOP / "README.md").read_text(encoding="utf-8"))


_COMMAND = re.compile(r"^(?:    )?(xrt \S.*?)(?:  +.*)?$", re.MULTILINE)


def commands(text: str) -> list[str]:
    """Return the lines that begin with the command, without the remark that may stand after two spaces."""
    return _COMMAND.findall(text)


def fault_of(line: str) -> str | None:
    """Return why the command would not understand a line of a document; None when it would."""
    name, *rest = shlex.split(line)[1:]
    try:
        command = cli.get_command(click.Context(cli), name)
        given = command.make_context(name, rest).params
        for pin in given.get("pins", ()):
            Pin.parse(pin)
        for candidate in given.get("candidates", ()):
            Candidate.parse(candidate)
    except click.ClickException as error:
        return f"{line}: {error.format_message()}"
    except XRTError as error:
        return f"{line}: {error}"
    return None


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_in_documents_are_understood(document: Path) -> None:
    assert [fault for line in commands(document.read_text(encoding="utf-8")) if (fault := fault_of(line))] == []


def test_a_command_that_is_not_understood_is_caught() -> None:
    assert commands("    xrt engines      which\nxrt run m.onnx --dim a=1\nthe xrt command") == [
        "xrt engines",
        "xrt run m.onnx --dim a=1",
    ]
    assert fault_of("xrt rum m.onnx") is not None
    assert fault_of("xrt run m.onnx --bogus") is not None
    assert fault_of("xrt run m.onnx --pin '!Conv=tvm'") is not None
    assert fault_of("xrt bench m.onnx -e 'ort,tvm with LRN=toy'") is not None
    assert fault_of("xrt run m.onnx") is None


_FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
"""Code, in which a bracket may be followed by a parenthesis."""
_LINK = re.compile(r"\]\(([^)#:]*)(?:#([^):]+))?\)")


def lost_links(document: Path) -> list[str]:
    """Return the relative links of a document that lead to no file, or to no heading of it."""
    lost = []
    for target, anchor in _LINK.findall(_FENCED.sub("", document.read_text(encoding="utf-8"))):
        path = document.parent / target if target else document
        if not path.exists() or (anchor and anchor not in anchors(path)):
            lost.append(f"{document.name}: {target}#{anchor}" if anchor else f"{document.name}: {target}")
    return lost


def anchors(document: Path) -> set[str]:
    """Return the names of a document's headings as links spell them."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def test_links_between_documents_lead_somewhere() -> None:
    assert [lost for document in [*DOCUMENTS, TOP / "CHANGELOG.md"] for lost in lost_links(document)] == []


def test_a_link_that_leads_nowhere_is_caught(tmp_path: Path) -> None:
    planted = tmp_path / "planted.md"
    planted.write_text("# One head\n[a](planted.md#one-head) [b](#two) [c](none.md) [d](https://e.org/x#y)\n", encoding="utf-8")
    assert lost_links(planted) == ["planted.md: #two", "planted.md: none.md"]


def test_every_error_has_a_section() -> None:
    tree = {
        word
        for word in errors.__all__
        if isinstance(found := getattr(errors, word), type) and issubclass(found, XRTError | XRTWarning)
    }
    assert {heading.lower() for heading in tree} | {"errors-and-warnings"} == anchors(TOP / "docs" / "errors.md")


@pytest.mark.parametrize("contract", [GraphCompiler, Executable])
def test_the_guide_has_one_row_for_each_member_of_the_contract(contract: type) -> None:
    guide = (TOP / "docs" / "write-an-engine.md").read_text(encoding="utf-8")
    rows = guide.split(f"\n`{contract.__name__}`:\n\n")[1].split("\n\n")[0]
    cells = re.findall(r"^\| ([^|]*) \|", rows, re.MULTILINE)
    told = [name for cell in cells for name in re.findall(r"`(\w+)(?:\([^`]*\))?`", cell)]
    assert sorted(told) == sorted(name for name in {*vars(contract), *contract.__annotations__} if not name.startswith("_"))


def test_design_records_are_numbered_one_after_the_other() -> None:
    records = sorted((TOP / "docs" / "design").glob("*.md"))
    assert [record.name[:5] for record in records] == [f"{number:04d}-" for number in range(1, len(records) + 1)]


def test_the_guide_shows_the_example_as_it_is() -> None:
    shown = blocks((TOP / "docs" / "write-an-engine.md").read_text(encoding="utf-8"))[0]
    assert shown == (TOP / "examples" / "custom_engine" / "my_engine.py").read_text(encoding="utf-8")


def test_the_guide_shows_the_native_example_as_it_is() -> None:
    guide = (TOP / "docs" / "write-a-kernel.md").read_text(encoding="utf-8")
    for name, fence in (("my_native_kernels.cc", "cpp"), ("CMakeLists.txt", "cmake"), ("my_native_kernels.py", "")):
        shown = (TOP / "examples" / "native_kernels" / name).read_text(encoding="utf-8")
        assert f"```{fence}\n{shown}```\n" in guide, f"{name} differs from what the guide shows"
