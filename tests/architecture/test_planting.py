"""Each mistake that a check is there for, planted in a copy of the project, fails that check and is named by it.

The checks are run as `make check` and `make test` run them: by pytest, in a process of its own, over the copy.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.proof("checks", share=0)]

TOP = Path(__file__).parents[2]
FOLDERS = ("xrt", "tests", "docs", "proto", "examples", "tools")
FILES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "pyproject.toml", "mkdocs.yml")


class Planted(NamedTuple):
    """A mistake, the check that must see it, and what the check must say."""

    file: str
    text: Callable[[str], str]
    """What becomes of the file's text."""
    check: tuple[str, ...]
    """What of the tests is run."""
    said: str


def end(added: str) -> Callable[[str], str]:
    return lambda text: f"{text}\n{added}\n"


LONG = "def planted(x):\n" + "    x += 1\n" * 60 + "    return x"
HOUSE = "tests/architecture"
PLANTED = {
    "a wrong import": Planted(
        "xrt/graph/node.py",
        end("def planted():\n    from xrt.runtime import Program\n    return Program"),
        (f"{HOUSE}/test_layers.py", "-k", "laws_are_kept and graph.node"),
        "graph may not import runtime",
    ),
    "a function far over the size of its neighbours": Planted(
        "xrt/comparison.py",
        end(LONG),
        (f"{HOUSE}/test_budgets.py", "-k", "neighbours"),
        "planted (62 lines), more than",
    ),
    "an undocumented public name": Planted(
        "xrt/comparison.py",
        end("__all__ += ['planted']\ndef planted():\n    return 1"),
        (f"{HOUSE}/test_budgets.py", "-k", "documented and comparison"),
        "['planted'] == []",
    ),
    "stale stubs of the operators": Planted(
        "xrt/builder/ops/__init__.pyi",
        lambda text: text.replace("def Relu(", "def Rely("),
        ("tests/ops/test_ops.py", "-k", "stub_is_fresh"),
        "the schemas have changed; run `make stubs`",
    ),
    "a stale protobuf module": Planted(
        "proto/xrt.proto",
        end("message Planted {}"),
        ("tests/formats/test_proto.py", "-k", "module_is_fresh"),
        "proto/xrt.proto was changed; run `make proto`",
    ),
    "a guide that shows another engine than the example": Planted(
        "examples/custom_engine/my_engine.py",
        end("PLANTED = 1"),
        (f"{HOUSE}/test_docs.py", "-k", "example_as_it_is"),
        "PLANTED = 1",
    ),
    "a dead link": Planted(
        "docs/how-to/index.md",
        end("[planted](nowhere.md)"),
        (f"{HOUSE}/test_docs.py", "-k", "links_between"),
        "index.md: nowhere.md",
    ),
    "a dead anchor": Planted(
        "README.md",
        end("[planted](docs/reference/errors.md#nowhere)"),
        (f"{HOUSE}/test_docs.py", "-k", "links_between"),
        "README.md: docs/reference/errors.md#nowhere",
    ),
    "an error without a section": Planted(
        "docs/reference/errors.md",
        lambda text: text.replace("## BundleError", "## BundlingError"),
        (f"{HOUSE}/test_docs.py", "-k", "every_error_has"),
        "bundlingerror",
    ),
    "a block of the README that fails": Planted(
        "README.md",
        lambda text: text.replace('engine=["tvm", "ort"]', 'engine=["joy", "ort"]', 1),
        (f"{HOUSE}/test_docs.py", "-k", "examples_in_documents and README"),
        "no engine is named 'joy'",
    ),
    "a page that shows another output": Planted(
        "docs/how-to/bind-arrays.md",
        lambda text: text.replace("[[0. 0. 1.]", "[[0. 0. 9.]"),
        (f"{HOUSE}/test_docs.py", "-k", "examples_in_documents and bind-arrays"),
        "where the page shows",
    ),
    "a dead link of the site": Planted(
        "docs/how-to/bind-arrays.md",
        end("[planted](../index.md#nowhere)"),
        (f"{HOUSE}/test_docs.py", "-k", "site_asks"),
        "does not contain an anchor '#nowhere'",
    ),
    "a command of the README that is not understood": Planted(
        "README.md",
        end("    xrt run model.onnx --planted"),
        (f"{HOUSE}/test_docs.py", "-k", "commands_in_documents and README"),
        "No such option",
    ),
}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planted")
    for name in FOLDERS:
        shutil.copytree(TOP / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
    for name in FILES:
        shutil.copy(TOP / name, folder)
    return folder


def checked(copy: Path, check: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", *check]
    environment = {**os.environ, "PYTHONPATH": str(copy), "COLUMNS": "200"}
    return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=1800, check=False)


@pytest.mark.parametrize("mistake", PLANTED)
def test_it_is_caught(mistake: str, copy: Path) -> None:
    planted = PLANTED[mistake]
    file = copy / planted.file
    before = file.read_text(encoding="utf-8")
    file.write_text(planted.text(before), encoding="utf-8")
    try:
        done = checked(copy, planted.check)
    finally:
        file.write_text(before, encoding="utf-8")
    assert done.returncode == 1, done.stdout + done.stderr
    assert planted.said in done.stdout


def test_the_copy_without_a_mistake_passes(copy: Path) -> None:
    files = dict.fromkeys(planted.check[0] for planted in PLANTED.values())
    chosen = " or ".join(f"({planted.check[2]})" for planted in PLANTED.values())
    done = checked(copy, (*files, "-k", chosen))
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split(" passed")[0].split()[-1]) >= len(PLANTED)
