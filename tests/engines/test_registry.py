"""From a name to an engine: plug-ins that are well, missing, broken, or two of a name. The plug-ins are real distributions."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.exact_errors import raises_exactly
from xrt.engines import EngineDeclaration, EngineStatus, create, engine_class, names, probe
from xrt.engines.contract.registry import find_declaration, list_by_rank, probe_all
from xrt.engines.toy import Toy
from xrt.errors import EngineError, EngineUnavailable, OptionError, UnknownEngine

GOOD = """
from dataclasses import dataclass
from typing import ClassVar
from xrt.engines import GraphCompiler

@dataclass(frozen=True)
class Chip(GraphCompiler):
    name: ClassVar[str] = "chip"
    cores: int = 1
    def why_not(self, node, function): return None
    def compile(self, function, context): raise NotImplementedError
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install distributions whose entry point is ``chip = MODULE:Chip``, for the length of one test."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    def write(distribution: str, code: str, *, module: str | None = None, entry: str = "", name: str = "chip") -> None:
        module = module or distribution.replace("-", "_")
        monkeypatch.delitem(sys.modules, module, raising=False)
        (tmp_path / f"{module}.py").write_text(code)
        info = tmp_path / f"{distribution.replace('-', '_')}-1.5.dist-info"
        info.mkdir()
        (info / "RECORD").write_text(f"{module}.py,,\n")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.5\n")
        (info / "entry_points.txt").write_text(f"[xrt.engines]\n{name} = {entry or f'{module}:Chip'}\n")

    return write


def said(call: Callable[[], object]) -> tuple[type[BaseException], str]:
    with pytest.raises(EngineError) as caught:
        call()
    return caught.type, str(caught.value)


def test_our_own_engines_come_by_the_same_door() -> None:
    assert {"ort", "toy", "tvm"} <= set(names())
    assert engine_class("toy") is Toy
    engine = Toy()
    assert create("toy") == engine and create(engine) is engine
    with raises_exactly(OptionError, f"an engine is a name, a spec or an instance of a GraphCompiler; got {Toy!r}"):
        create(Toy)  # type: ignore[arg-type]  # the mistake under test


@pytest.mark.slow
def test_a_plug_in_is_found_made_and_probed(install: Install) -> None:
    install("xrt-chip-good", GOOD)
    assert "chip" in names()
    assert create("chip{cores=4}").spec == "chip{cores=4}"
    assert probe("chip") == EngineStatus("chip", "ready", "xrt-chip-good 1.5", version="xrt-chip-good 1.5", devices=("cpu",))


@pytest.mark.parametrize("entry", ["xrt_chip_spaced : Chip", "xrt_chip_spaced: Chip [extra]"])
def test_an_entry_point_may_have_blanks_around_its_colon(install: Install, entry: str) -> None:
    install("xrt-chip-spaced", GOOD, entry=entry)
    assert create("chip{cores=4}").spec == "chip{cores=4}"


def test_an_unknown_name_gets_the_nearest() -> None:
    kind, message = said(lambda: create("chisel"))
    assert kind is UnknownEngine
    assert message == (
        f"no engine is named 'chisel'. Registered: {', '.join(names())}; "
        "a distribution adds one by an entry point of group 'xrt.engines'"
    )
    assert "Did you mean 'ort'?" in said(lambda: probe("orrt"))[1]
    libraries = {"onnxruntime": "ort", "jax": "xla", "jaxlib": "xla", "apache_tvm": "tvm", "trt": "tensorrt"}
    for mistaken, meant in libraries.items():
        assert f"no engine is named {mistaken!r}. Did you mean {meant!r}? " in said(partial(create, mistaken))[1]


def test_engines_are_ranked_as_they_declare() -> None:
    ranked = list_by_rank()
    assert sorted(ranked) == list(names())
    assert [name for name in ranked if name in SHIPPED] == SHIPPED


SHIPPED = ["ort", "openvino", "xla", "tvm", "iree", "tensorrt", "toy"]
DECLARED = """
import a_library_that_is_not_installed
from xrt.engines import EngineDeclaration
DECLARATION = EngineDeclaration("chip", rank=5, color="yellow", libraries=("chip-toolkit",), aliases=("chippy",))
OTHER: EngineDeclaration = EngineDeclaration("other", rank=2000)
"""


def test_a_plug_in_declares_its_engines_in_its_file_which_is_not_imported(install: Install) -> None:
    install("xrt-chip-declares", DECLARED)
    install("xrt-chip-second", DECLARED, name="other")
    expected = EngineDeclaration("chip", rank=5, color="yellow", libraries=("chip-toolkit",), aliases=("chippy",))
    assert find_declaration("chip") == expected
    assert find_declaration("other").rank == 2000
    assert (list_by_rank()[0], list_by_rank()[-1]) == ("chip", "other")
    assert "Did you mean 'chip'?" in said(lambda: create("chippy"))[1]
    assert "xrt_chip_declares" not in sys.modules


@pytest.mark.parametrize(
    "code",
    [
        GOOD,
        "this is no Python",
        "X = EngineDeclaration('chip', rank=min(1, 2))",
        "X = EngineDeclaration('chip', ranks=1)",
        "X = EngineDeclaration('chip', rank='1')",
        "X = EngineDeclaration('chip', rank=1, libraries='numpy')",
        "X = EngineDeclaration('chip', rank=1, aliases=('chippy', 2))",
        "raise SystemExit(1)",
    ],
)
def test_a_plug_in_without_a_declaration_has_the_defaults(install: Install, code: str) -> None:
    install("xrt-chip-silent", code)
    assert find_declaration("chip") == EngineDeclaration("chip")
    ranked = list_by_rank()
    assert ranked.index("iree") < ranked.index("chip") < ranked.index("toy")


def test_a_package_around_a_declaration_is_not_imported_either(install: Install, tmp_path: Path) -> None:
    install("xrt-chip-deep", "", entry="chips.deep:Chip")
    (tmp_path / "chips").mkdir()
    (tmp_path / "chips" / "__init__.py").write_text("raise SystemExit(3)")
    (tmp_path / "chips" / "deep.py").write_text("D = EngineDeclaration('chip', rank=3)")
    assert find_declaration("chip").rank == 3
    assert find_declaration("nobody") == EngineDeclaration("nobody")


def test_a_missing_library_names_the_pip_line(install: Install) -> None:
    install("xrt-chip-lacking", "import chip_toolkit\n", entry="xrt_chip_lacking:Chip [cpu,gpu]")
    kind, message = said(lambda: create("chip"))
    mend = "pip install 'xrt-chip-lacking[cpu,gpu]'"
    assert kind is EngineUnavailable
    assert message == f"engine 'chip' needs chip_toolkit, which is not installed; install it: {mend}"
    assert probe("chip") == EngineStatus("chip", "missing", "xrt-chip-lacking 1.5", pip=mend, cause=message)


BROKEN = "engine 'chip' of xrt-chip-{tag} 1.5 (xrt_chip_{tag}:Chip) is broken: {cause}"
METHOD = "    def compile(self, function, context): raise NotImplementedError\n"
CAUSES = [
    ("raises", "raise OSError('libchip.so: cannot open')", "OSError: libchip.so: cannot open"),
    ("exits", "raise SystemExit('no licence')", "SystemExit: no licence"),
    ("part", "import json.nothing", "ModuleNotFoundError: No module named 'json.nothing'"),
    ("empty", "", "AttributeError: module 'xrt_chip_empty' has no attribute 'Chip'"),
    ("other", "Chip = 3", "3 is not a class that derives from xrt.engines.GraphCompiler"),
    ("half", GOOD.replace(METHOD, ""), "class Chip lacks compile"),
    ("thawed", GOOD.replace("@dataclass(frozen=True)", ""),
     "class Chip must be decorated with @dataclass(frozen=True): its fields are the engine's options"),
    ("shouting", GOOD.replace('"chip"', '"CHIP"'),
     "class Chip must have a name of lower-case letters, digits and underscores"),
    ("misnamed", GOOD.replace('"chip"', '"chop"'),
     "class Chip has the name 'chop', and is registered as 'chip'; the names must be equal"),
]  # fmt: skip


@pytest.mark.parametrize(("tag", "code", "cause"), CAUSES)
def test_a_broken_plug_in_says_what_is_broken_and_leaves_the_others_alone(
    install: Install, tag: str, code: str, cause: str
) -> None:
    install(f"xrt-chip-{tag}", code)
    message = BROKEN.format(tag=tag, cause=cause)
    with pytest.raises(EngineUnavailable, match=f"^{re.escape(message)}$") as caught:
        create("chip")
    assert tag != "raises" or isinstance(caught.value.__cause__, OSError)
    assert (probe("chip").state, probe("chip").cause) == ("broken", message)
    assert create("toy") == Toy()


def test_an_engine_that_cannot_be_made_is_broken(install: Install) -> None:
    install("xrt-chip-needy", GOOD.replace("cores: int = 1", "cores: int = 1\n    def __post_init__(self): 1 / 0"))
    assert (probe("chip").state, probe("chip").cause) == ("broken", "ZeroDivisionError: division by zero")


def test_two_distributions_of_one_name_are_both_named(install: Install) -> None:
    install("xrt-chip-one", GOOD)
    install("xrt-chip-two", GOOD)
    kind, message = said(lambda: create("chip"))
    assert kind is EngineError
    assert "xrt-chip-one 1.5 (xrt_chip_one:Chip)" in message
    assert "xrt-chip-two 1.5 (xrt_chip_two:Chip)" in message
    assert message.endswith("; uninstall one of them, or pass an instance of the class that is meant")
    assert probe("chip").cause == message
    assert create("toy") == Toy()


@pytest.mark.slow
def test_each_engine_is_probed_in_a_process_of_its_own(install: Install) -> None:
    install("xrt-chip-crash", "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)")
    install("xrt-chip-noisy", "print('hello from the import')\n" + GOOD.replace('"chip"', '"noisy"'), name="noisy")
    install("xrt-chip-hangs", "import time\ntime.sleep(3600)", name="hangs")
    install("xrt-chip-quits", "import os, sys\nprint('giving up', file=sys.stderr, flush=True)\nos._exit(3)", name="quits")
    probed = (*probe_all(["toy", "chip", "noisy", "quits"], timeout=600), *probe_all(["hangs"], timeout=2))
    results = {s.name: (s.state, s.cause) for s in probed}
    assert results == {
        "toy": ("ready", ""),
        "chip": ("broken", "its import ended the process (SIGSEGV): it said nothing"),
        "noisy": ("ready", ""),
        "hangs": ("broken", "its import did not end within 2 s"),
        "quits": ("broken", "its import ended the process (exit status 3): giving up"),
    }


@pytest.mark.slow
def test_listing_the_engines_imports_none() -> None:
    code = "import sys, xrt.engines as e; e.names(); print(sorted({'onnxruntime', 'tvm', 'xrt.engines.toy'} & set(sys.modules)))"
    completed = subprocess.run([sys.executable, "-c", code], env=os.environ, capture_output=True, text=True, check=True)
    assert completed.stdout.strip() == "[]"
