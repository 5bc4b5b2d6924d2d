"""A stranger's path, from the documents alone: XRT from its sources into a fresh environment, an engine of one's own beside it.

Every text comes out of ``docs/tutorials/write-an-engine.md``: the engine's file, its ``pyproject.toml``, its test file and the
commands. Only its name is another, so that nothing here can lean on the example in the repository. The example of kernels for
an engine that exists is installed next to it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.sample(10)]

TOP = Path(__file__).parents[2]
GUIDE = (TOP / "docs" / "tutorials" / "write-an-engine.md").read_text(encoding="utf-8")
INSTALL = ("--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", "--no-build-isolation")

MODEL = """
import numpy as np
import xrt
from xrt.formats import onnx

class Net(xrt.Graph):
    def build(self, x):
        return xrt.ops.Softmax(xrt.ops.Tanh(x + x))

onnx.save(Net().trace(np.zeros((2, 3), "float32")), "model.onnx")
"""

USE = """
import sys
import numpy as np
import xrt

m = xrt.XRTModule("model.onnx", engine=[sys.argv[1], "ort"], strict=True)
x = np.linspace(-1, 1, 6, dtype="float32").reshape(2, 3)
np.testing.assert_allclose(m(x), xrt.XRTModule("model.onnx", engine="toy")(x), rtol=1e-6)
print([launch.engine for launch in m.plan.launches][0])
"""


def blocks(language: str) -> list[str]:
    """Return the guide's blocks of a language, with the engine called otherwise."""
    results = re.findall(rf"^```{language}\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)
    return [
        text.replace("my_engine", "stranger").replace("MyEngine", "Stranger").replace("my-engine", "stranger") for text in results
    ]


class Stranger:
    """An environment that nobody has used, and a folder of one's own outside of the repository."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.python = folder / "env" / "bin" / "python"
        self.home.mkdir()
        venv.create(folder / "env", symlinks=True)
        site = next((folder / "env" / "lib").glob("python*/site-packages"))
        (site / "dependencies.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n")  # what pip would fetch, had it a network
        clone = folder / "XRT"
        shutil.copytree(TOP / "xrt", clone / "xrt", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "CMakeLists.txt"):
            shutil.copy(TOP / name, clone)
        self.install(clone, CXX="/bin/false")
        built = Path("xrt", "engines", "native", "lib")  # test_wheel.py builds it from sources
        if (TOP / built).exists():
            shutil.copytree(TOP / built, site / built)

    def install(self, folder: Path, **more: str) -> None:
        self.run(sys.executable, "-m", "pip", "--python", str(self.python), "install", *INSTALL, str(folder), **more)

    def run(self, *command: str, **more: str) -> str:
        """Run a command at home and return what it says; a failure shows all of it."""
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV"))}
        environment = variables | {"PATH": f"{self.python.parent}{os.pathsep}{variables.get('PATH', '')}"} | more
        completed = subprocess.run(
            command, cwd=self.home, env=environment, capture_output=True, text=True, timeout=3600, check=False
        )
        assert completed.returncode == 0, f"{shlex.join(command)}: {completed.stdout}\n{completed.stderr}"
        return completed.stdout


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Stranger:
    first = Stranger(tmp_path_factory.mktemp("stranger"))
    engine, suite = (next(text for text in blocks("python") if word in text) for word in ("(GraphCompiler)", "(EngineSuite)"))
    (first.home / "stranger.py").write_text(engine)
    (first.home / "pyproject.toml").write_text(blocks("toml")[0])
    (first.home / "test_stranger.py").write_text(suite)
    first.install(first.home)
    shutil.copytree(
        TOP / "examples" / "custom_kernels", first.home.parent / "kernels", ignore=shutil.ignore_patterns("build", "*.egg-info")
    )
    first.install(first.home.parent / "kernels")
    first.run(str(first.python), "-c", MODEL)
    return first


def test_xrt_is_the_installed_one(stranger: Stranger) -> None:
    assert stranger.run(str(stranger.python), "-c", "import xrt; print(xrt.__file__)").startswith(str(stranger.python.parents[1]))


def test_the_engines_are_listed(stranger: Stranger) -> None:
    states = {state["name"]: state for state in json.loads(stranger.run("xrt", "engines", "--json"))}
    assert states["stranger"]["state"] == states["my_kernels"]["state"] == "ready"
    assert states["stranger"]["distribution"] == "xrt-stranger 0.1.0"


WHOLE = pytest.param((), 200, marks=pytest.mark.full, id="whole")
PART = pytest.param(("-k", "corpus_alone or fallback_law or cut_law or reason or buffers or threads"), 5, id="a part")


@pytest.mark.parametrize("folder", [".", "../kernels"], ids=["engine", "kernels"])
@pytest.mark.parametrize(("chosen", "least"), [PART, WHOLE])
def test_its_suite_passes(chosen: tuple[str, ...], least: int, folder: str, stranger: Stranger) -> None:
    output = stranger.run(str(stranger.python), "-m", "pytest", folder, "-q", "-W", "error", "-m", "not slow", *chosen)
    assert int(output.split(" passed")[0].split()[-1]) > least


@pytest.mark.parametrize("engine", ["stranger", "my_kernels"])
def test_a_module_takes_it_before_others(engine: str, stranger: Stranger) -> None:
    assert stranger.run(str(stranger.python), "-c", USE, engine).strip() == engine


COMMANDS = [line for text in blocks("sh") for line in text.splitlines()]
BRIEFLY = {"fuzz": ("--count", "20"), "bench": ("--rounds", "2", "--threads", "1"), "conformance": ("--cases", "test_*tanh*")}


@pytest.mark.parametrize("line", COMMANDS)
def test_the_commands_of_the_guide_succeed(line: str, stranger: Stranger) -> None:
    words = shlex.split(line)
    if "light" in words:
        words += ["--cases", "*squeezenet*"]
    elif "--cases" not in words:
        words += BRIEFLY.get(words[1], ())
    assert stranger.run(*words)


def test_the_guide_has_commands_for_proof_and_comparison() -> None:
    assert {shlex.split(line)[1] for line in COMMANDS} >= {"engines", "conformance", "explain", "run", "fuzz", "bench"}
