"""Law 3: listing, names, hash seed and process change neither the regions nor the signature."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given, strategies as st

from tests.laws.laws import bounded, doubles
from xrt.cache import make_signature
from xrt.engines import CompileContext, GraphCompiler
from xrt.graph import Function
from xrt.partition import Plan, partition
from xrt.passes import drop_dead_nodes, infer_shapes
from xrt.testing.fault_injection import RecordingEngine
from xrt.testing.generate import rename_values
from xrt.testing.strategies import functions

pytestmark = pytest.mark.slow


def takers() -> list[GraphCompiler]:
    """Return two engines that take different operators, and one that takes all."""
    return [RecordingEngine(takes="A*|S*|C*|I*|Re*"), RecordingEngine(takes="T*|M*|Add|L*"), *doubles(1)]


def regions(function: Function) -> list[tuple[str, str]]:
    plan: Plan = partition(function, takers(), strict=True)
    return [(launch.engine, launch.function.fingerprint) for launch in plan.launches]


@bounded
@given(data=st.data())
def test_the_listing_of_nodes_changes_nothing(data):
    function = infer_shapes(drop_dead_nodes(data.draw(functions())))
    listed = data.draw(st.permutations(function.nodes))
    other = function.replace(nodes=tuple(listed))
    assert other == function
    assert regions(other) == regions(function)


@bounded
@given(data=st.data())
def test_names_change_nothing(data):
    function = infer_shapes(data.draw(functions()))
    other = rename_values(function, {"v1": "zz", "v3": "a"})
    assert other.fingerprint == function.fingerprint
    assert regions(other) == regions(function)
    engine = RecordingEngine()
    assert make_signature(other, engine, CompileContext()).key == make_signature(function, engine, CompileContext()).key


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
