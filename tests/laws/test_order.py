"""Law 3: hash seed and process change neither the plan nor the signature; tests/partition and the suites have the rest."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.laws.laws import doubles
from xrt.engines import GraphCompiler
from xrt.testing.fault_injection import RecordingEngine

pytestmark = pytest.mark.slow


def takers() -> list[GraphCompiler]:
    """Return two engines that take different operators, and one that takes all."""
    return [RecordingEngine(takes="A*|S*|C*|I*|Re*"), RecordingEngine(takes="T*|M*|Add|L*"), *doubles(1)]


SCRIPT = """
from tests.laws.test_order import takers
from xrt.cache import make_signature
from xrt.engines import CompileContext
from xrt.partition import partition
from xrt.passes import infer_shapes
from xrt.testing.generate import make_seeded_function
for seed in range(40):
    function = infer_shapes(make_seeded_function(seed))
    plan = partition(function, takers(), strict=True)
    print(plan)
    print([launch.function.fingerprint for launch in plan.launches])
    print(make_signature(function, takers()[0], CompileContext()))
"""


def test_the_hash_seed_and_the_process_change_nothing():
    printed = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "4242")
    ]
    assert "xrt_recording_0" in printed[0]
    assert printed[0] == printed[1] == printed[2]
