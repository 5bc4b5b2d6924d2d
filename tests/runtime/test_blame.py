"""A region that is refused as a whole: the nodes to blame are found by few compiles, and the others stay with the engine."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import xrt
from tests.module.test_faults import X, chain
from xrt.cache import CompileCache
from xrt.errors import FallbackWarning
from xrt.partition.partitioner import map_nodes_to_engines
from xrt.runtime.compile import MOST, describe_patterns, to_blame
from xrt.testing.fault_injection import Choosy

pytestmark = pytest.mark.filterwarnings("ignore::xrt.errors.NativeWarning")

OPS = ("Abs", "Relu", "Exp", "Neg", "Tanh", "Cos", "Sqrt", "Sin")
RIGHT = np.sin(np.sqrt(np.cos(np.tanh(-np.exp(np.abs(X))))))


def placed(choosy: Choosy, ops: tuple[str, ...] = OPS, **options: Any) -> tuple[dict[str, str], list[str], np.ndarray[Any, Any]]:
    """Return where the nodes went, the warnings, and the result."""
    with pytest.warns(FallbackWarning) as caught, xrt.XRTModule(chain(*ops), engine=[choosy, "toy"], threads=1, **options) as m:
        result = m(X)
        return map_nodes_to_engines(m.plan), [str(one.message) for one in caught], result


def test_one_node_is_to_blame() -> None:
    engine = Choosy(refuses="Tanh")
    homes, told, result = placed(engine, cache=CompileCache())
    assert [name for name, spec in homes.items() if spec == "toy"] == ["n4"]
    assert told == ["the choosy engine is set to refuse Tanh; node 'n4' placed on another engine"]
    np.testing.assert_allclose(result, RIGHT, rtol=1e-5)


def test_of_two_that_must_not_meet_one_leaves() -> None:
    homes, _, result = placed(Choosy(refuses="Relu+Cos"), cache=CompileCache())
    assert [name for name, spec in homes.items() if spec == "toy"] == ["n5"]
    np.testing.assert_allclose(result, RIGHT, rtol=1e-5)


def test_the_explanation_says_what_was_left_out_and_why() -> None:
    with (
        pytest.warns(FallbackWarning),
        xrt.XRTModule(chain(*OPS), engine=[Choosy(refuses="Tanh"), "toy"], cache=CompileCache()) as m,
    ):
        m(X)
        line = "  n4 (Tanh) not on choosy{refuses=Tanh}: refused at compile: the choosy engine is set to refuse Tanh"
        assert [one for one in str(m.explain()).splitlines() if "not on choosy" in one] == [line]


def test_it_is_found_out_once(tmp_path: Path) -> None:
    first, second = Choosy(refuses="Relu+Cos"), Choosy(refuses="Relu+Cos")
    homes, _, _ = placed(first, cache=tmp_path)
    assert first.journal.count("compile") <= MOST + 3
    again, told, _ = placed(second, cache=tmp_path)
    assert again == homes
    assert second.journal.count("compile") <= 2  # the regions that were not refused
    assert told[0].startswith("the choosy engine is set to refuse Relu+Cos (as at an earlier compile")


def test_equal_regions_are_looked_into_once() -> None:
    """Eight blocks with a node between them that only toy takes: the regions of the engine are equal."""
    engine = Choosy(refuses="Tanh", takes="Exp|Tanh|Abs")
    homes, _, _ = placed(engine, ("Exp", "Tanh", "Abs", "Sin") * 8, cache=CompileCache())
    assert sum(spec == engine.spec for spec in homes.values()) == 16
    assert engine.journal.count("compile") <= 8 + MOST + 16


# ---------------------------------------------------------------------- the search


@pytest.mark.slow
@given(st.data())
def test_what_is_left_compiles_and_little_is_left_out(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 80))
    bad = data.draw(st.sets(st.frozensets(st.integers(0, count - 1), min_size=1, max_size=2), min_size=1, max_size=2))
    asked = 0

    def compiles(places: Any) -> bool:
        nonlocal asked
        asked += 1
        assert list(places) == sorted(set(places))
        return not any(some <= set(places) for some in bad)

    blamed = to_blame(list(range(count)), compiles)
    assert asked <= MOST
    kept = set(range(count)) - set(blamed)
    assert not any(some <= kept for some in bad)
    if len(bad) == 1:
        assert len(blamed) == 1


def test_equal_blocks_give_up_the_same_node() -> None:
    """Twelve blocks of five, each with a pair that must not meet: one by one they would take a hundred compiles."""
    patterns = [place % 5 for place in range(60)]
    asked = []

    def compiles(places: Any) -> bool:
        asked.append(places)
        return not any({5 * block + 1, 5 * block + 2} <= set(places) for block in range(12))

    assert to_blame(patterns, compiles) == tuple(range(2, 60, 5))
    assert len(asked) <= MOST


def test_where_too_many_are_to_blame_what_is_known_to_compile_stays() -> None:
    blamed = to_blame(list(range(64)), lambda places: not any(place >= 32 for place in places))
    assert set(range(32, 64)) <= set(blamed)
    assert len(blamed) < 64


def test_patterns_are_of_the_node_and_its_neighbours() -> None:
    from xrt.passes import infer_shapes

    patterns = describe_patterns(infer_shapes(chain("Abs", "Exp", "Cos", "Exp", "Cos", "Exp", "Sin")))
    equal = [(a, b) for a, b in combinations(range(7), 2) if patterns[a] == patterns[b]]
    assert equal == [(2, 4)]
