"""The examples of documents and docstrings are run, their commands, links and paths are checked, and the site is built."""

from __future__ import annotations

import doctest
import importlib
import os
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from operator import attrgetter
from pathlib import Path

import click
import pytest

from tests.architecture import test_layers
from tests.architecture.public import files, modules, read
from tools.documents import WrongOutput, check_page, list_examples
from tools.site_hooks import PACKAGES, list_names
from tools.write_errors import list_errors
from xrt.bench import BenchCandidate
from xrt.cli.app import cli
from xrt.engines import EngineDeclaration, Executable, GraphCompiler
from xrt.errors import XRTError, XRTWarning
from xrt.partition import Pin

name = attrgetter("name")
TOP = Path(__file__).parents[2]
DOCS = TOP / "docs"
DOCUMENTS = [TOP / "README.md", TOP / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
GENERATED = ["conformance.md", "performance.md", "zoo.md", "commands.md", "errors.md", "gradients.md", "options.md"]
"""Pages that tools write; their sources are checked, not their prose."""
WRITTEN = [path for path in DOCUMENTS if path.name not in GENERATED and path.parent.name != "design"]


@pytest.mark.parametrize("name", [name for name in modules() if ">>> " in read(files()[name])])
def test_examples_in_docstrings(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE).failed == 0


@pytest.mark.slow
@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize("document", [path for path in DOCUMENTS if list_examples(path.read_text(encoding="utf-8"))], ids=name)
def test_examples_in_documents(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m tools.documents PAGE --write` replaces the outputs of a page that differ."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)  # as in an environment that is activated
    check_page(document)


PLANTED_PAGES = {
    "a block that fails": ("```python\na = 1\n```\n\n```python\nprint(b)\n```\n", NameError, "name 'b' is not defined"),
    "a block that prints something else": ("```python\nprint(1)\n```\n\n```text\n2\n```\n", WrongOutput, "printed\n1\n"),
    "a command that prints something else": (
        "```console\n$ xrt --version\nxrt 9\n```\n",
        WrongOutput,
        "where the page shows\nxrt 9",
    ),
    "another program": ("```console\n$ ls\n```\n", WrongOutput, "only the command xrt"),
}


@pytest.mark.parametrize("planted", PLANTED_PAGES)
def test_a_broken_example_is_caught(planted: str, tmp_path: Path) -> None:
    text, error, message = PLANTED_PAGES[planted]
    page = tmp_path / "planted.md"
    page.write_text(text, encoding="utf-8")
    with pytest.raises(error, match=re.escape(message)):
        check_page(page)


def test_examples_are_found_and_other_blocks_are_not() -> None:
    text = "```python\na = 1\n```\ntext\n```\nb\n```\n```console\n$ xrt engines\nx\n$ xrt doctor\n```\n```text\nfree\n```\n"
    assert [(item.kind, item.source, item.expected) for item in list_examples(text)] == [
        ("python", "a = 1\n", None),
        ("console", "xrt engines", "x\n"),
        ("console", "xrt doctor", ""),
    ]


_COMMAND = re.compile(r"^(?:    |\$ )?(xrt \S.*?)(?:  +.*)?$", re.MULTILINE)
_USAGE = re.compile(r"^```text\n.*?^```", re.DOTALL | re.MULTILINE)
"""Output, and the usage lines of the reference."""


def list_commands(text: str) -> list[str]:
    """Return the lines that begin with the command, without a remark after two spaces."""
    return _COMMAND.findall(_USAGE.sub("", text))


def find_fault(line: str) -> str | None:
    """Return why the command does not understand a line of a document; None where it does."""
    name, *rest = shlex.split(line)[1:]
    try:
        command = cli.get_command(click.Context(cli), name)
        completed = command.make_context(name, rest).params
        for pin in completed.get("pins", ()):
            Pin.parse(pin)
        for candidate in completed["engine"] if name == "bench" else ():
            BenchCandidate.parse(candidate)
    except click.ClickException as error:
        return f"{line}: {error.format_message()}"
    except XRTError as error:
        return f"{line}: {error}"
    return None


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_commands_in_documents_are_understood(document: Path) -> None:
    assert [fault for line in list_commands(document.read_text(encoding="utf-8")) if (fault := find_fault(line))] == []


def test_a_command_that_is_not_understood_is_caught() -> None:
    assert list_commands("    xrt engines      which\nxrt run m.onnx --dim a=1\nthe xrt command") == [
        "xrt engines",
        "xrt run m.onnx --dim a=1",
    ]
    assert find_fault("xrt rum m.onnx") is not None
    assert find_fault("xrt run m.onnx --bogus") is not None
    assert find_fault("xrt run m.onnx --pin '!Conv=tvm'") is not None
    assert find_fault("xrt bench m.onnx -e 'ort,tvm with LRN=toy'") is not None
    assert find_fault("xrt run m.onnx") is None


_FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
"""Code, in which a bracket may be followed by a parenthesis."""
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^):]+)?\)")


def lost_links(document: Path) -> list[str]:
    """Return the relative links of a document that lead to no file; the build of the site checks those to headings."""
    targets = _LINK.findall(_FENCED.sub("", document.read_text(encoding="utf-8")))
    return [f"{document.name}: {target}" for target in targets if not (document.parent / target).exists()]


def test_links_between_documents_lead_somewhere() -> None:
    assert [lost for document in [*DOCUMENTS, TOP / "CHANGELOG.md"] for lost in lost_links(document)] == []


def test_a_link_that_leads_nowhere_is_caught(tmp_path: Path) -> None:
    planted = tmp_path / "planted.md"
    planted.write_text("[a](planted.md#one-head) [b](#two) [c](none.md) [d](https://e.org/x#y)\n", encoding="utf-8")
    assert lost_links(planted) == ["planted.md: none.md"]


def test_every_error_says_the_remedy() -> None:
    assert {error for error in list_errors() if "Remedy: " not in (error.__doc__ or "")} == {XRTError, XRTWarning}


@pytest.mark.parametrize("contract", [GraphCompiler, Executable])
def test_the_guide_has_one_row_for_each_member_of_the_contract(contract: type) -> None:
    guide = (DOCS / "reference" / "engine-contract.md").read_text(encoding="utf-8")
    rows = guide.split(f"\n## {contract.__name__}\n\n")[1].split("\n\n")[0]
    cells = re.findall(r"^\| ([^|]*) \|", rows, re.MULTILINE)
    results = [name for cell in cells for name in re.findall(r"`(\w+)(?:\([^`]*\))?`", cell)]
    assert sorted(results) == sorted(name for name in {*vars(contract), *contract.__annotations__} if not name.startswith("_"))


def test_the_guide_has_one_row_for_each_field_of_the_declaration() -> None:
    guide = (DOCS / "reference" / "engine-contract.md").read_text(encoding="utf-8")
    rows = guide.split("\n## The declaration\n")[1].split("\n## ")[0]
    results = re.findall(r"^\| `(\w+)` \|", rows, re.MULTILINE)
    assert results == [field.name for field in fields(EngineDeclaration)]


def test_the_guide_shows_the_example_as_it_is() -> None:
    output = list_examples((DOCS / "tutorials" / "write-an-engine.md").read_text(encoding="utf-8"))[0].source
    assert output == (TOP / "examples" / "custom_engine" / "my_engine.py").read_text(encoding="utf-8")


def test_the_guide_shows_the_native_example_as_it_is() -> None:
    guide = (DOCS / "tutorials" / "write-a-kernel.md").read_text(encoding="utf-8")
    for name, fence in (("my_native_kernels.cc", "cpp"), ("CMakeLists.txt", "cmake"), ("my_native_kernels.py", "")):
        text = (TOP / "examples" / "native_kernels" / name).read_text(encoding="utf-8")
        assert f"```{fence}\n{text}```\n" in guide, f"{name} differs from what the guide shows"


def test_the_page_of_architecture_has_the_layers_of_the_code() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    output = text.split("```text\n")[1].split("```")[0]
    assert [tuple(part.strip() for part in line.split(",")) for line in output.split("<-")] == list(test_layers.LINE)


def test_modules_on_the_page_of_architecture_exist() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    paths = re.findall(r"`((?:\w+/)*\w+\.(?:py|cc|h)|(?:\w+/)+)`", text)
    assert [path for path in paths if not (TOP / path).exists() and not any((TOP / "xrt").rglob(path))] == []


_PATH = re.compile(r"`((?:xrt|tests|tools|docs|examples|benchmarks)/[\w./-]+)`")


@pytest.mark.parametrize("document", WRITTEN, ids=name)
def test_paths_in_documents_exist(document: Path) -> None:
    paths = _PATH.findall(document.read_text(encoding="utf-8"))
    assert [path for path in paths if not (TOP / path).exists()] == []


def test_the_gain_that_pages_state_is_the_measured_one() -> None:
    """The page of measurements has the generated figure; two pages repeat it in words."""
    measured = (DOCS / "performance.md").read_text(encoding="utf-8")
    ((gain, count),) = re.findall(r"over `ort` alone ([\d.]+) \([^)]*\) x \((\d+) models\)", measured)
    for page in ("index.md", "concepts/placement.md"):
        stated = re.findall(r"Over (\d+) models[^.]*?([\d.]+) times", (DOCS / page).read_text(encoding="utf-8"))
        assert stated == [(count, f"{float(gain):.2f}")], page


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(target)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(TOP)}
    completed = subprocess.run(command, cwd=TOP, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert completed.returncode == 0, completed.stderr
    return target


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_the_site_has_every_public_name(site: Path, package: str) -> None:
    page = (site / "reference" / "python" / f"{package}.html").read_text(encoding="utf-8")
    assert [item for item in list_names(package) if f'id="{package}.{item}"' not in page] == []


@pytest.mark.slow
def test_the_site_asks_no_other_host(site: Path) -> None:
    loads = re.compile(r'<(?:script|link|img)[^>]*(?:src|href)="?(https?:)?//')
    assert [page.name for page in site.rglob("*.html") if loads.search(page.read_text(encoding="utf-8"))] == []
