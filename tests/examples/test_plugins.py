"""The two example distributions, built and installed in a folder of their own, and then used as a stranger would."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import xrt

pytestmark = [pytest.mark.slow, pytest.mark.sample(3)]

ROOT = Path(xrt.__file__).parents[1]
PLUGINS = {"custom_engine": "my_engine", "custom_kernels": "my_kernels"}


class Place:
    """An installed plug-in: its sources, and Python with it on the path."""

    def __init__(self, example: str, folder: Path) -> None:
        self.engine = PLUGINS[example]
        self.sources = folder / "sources"
        self.site = folder / "site"
        shutil.copytree(ROOT / "examples" / example, self.sources, ignore=shutil.ignore_patterns("build", "*.egg-info"))
        quiet = ["--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", "--no-build-isolation"]
        self.run("-m", "pip", "install", *quiet, "--target", str(self.site), str(self.sources))

    def run(self, *arguments: str) -> str:
        """Return what Python says on standard output; a failure shows all of it."""
        path = os.pathsep.join([str(self.site), str(ROOT)])
        completed = subprocess.run(
            [sys.executable, *arguments],
            env={**os.environ, "PYTHONPATH": path},
            cwd=self.sources,
            capture_output=True,
            text=True,
            timeout=1800,
            check=False,
        )
        assert completed.returncode == 0, f"{arguments}: {completed.stdout}\n{completed.stderr}"
        return completed.stdout


@pytest.fixture(scope="module", params=PLUGINS)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(request.param, tmp_path_factory.mktemp(request.param))


PROBE = """
import sys
from xrt.engines.contract.registry import probe_all
(status,) = probe_all(sys.argv[1:])
print(status.state, status.distribution)
"""


def test_it_is_listed(place: Place) -> None:
    """By what `xrt engines` asks, about this engine alone."""
    state, distribution = place.run("-c", PROBE, place.engine).split(maxsplit=1)
    assert state == "ready" and distribution.startswith("xrt-my-")


def test_conform_counts_it(place: Place) -> None:
    completed = place.run("-m", "xrt.cli", "conformance", place.engine, "--cases", "test_tanh*")
    assert f"{place.engine}: 2 passed, 0 declined, 0 failed" in completed


WHOLE = pytest.param((), 200, marks=pytest.mark.full, id="whole")
PART = pytest.param(("-k", "corpus_alone or fallback_law or cut_law or reason or buffers or threads"), 5, id="a part")


@pytest.mark.parametrize(("chosen", "least"), [PART, WHOLE])
def test_its_own_suite_passes(chosen: tuple[str, ...], least: int, place: Place) -> None:
    completed = place.run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", "-W", "error", *chosen)
    assert " passed" in completed
    assert int(completed.split(" passed")[0].split()[-1]) > least


def test_a_module_takes_it_before_others(place: Place) -> None:
    program = f"""
import numpy as np
from xrt import Graph, XRTModule, ops

class Net(Graph):
    def build(self, x):
        return ops.Softmax(ops.Tanh(x + 1), axis=-1)

x = np.ones((2, 3), "float32")
m = XRTModule(Net(), engine=["{place.engine}", "ort"], strict=True)
np.testing.assert_allclose(m(x), XRTModule(Net(), engine="toy")(x), rtol=1e-6)
print([launch.engine for launch in m.plan.launches][0])
"""
    assert place.run("-W", "error", "-c", program).strip() == place.engine
