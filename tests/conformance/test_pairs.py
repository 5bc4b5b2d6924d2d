"""Each pair of engines in alternation, on models that cover all operators; in `make test` on fewer where a compile is slow."""

from __future__ import annotations

from itertools import combinations

import pytest

from tests.conformance.sample import list_models, run_alternating
from tools.conformance_record import ENGINES
from xrt.engines.contract import registry

QUICK = ("toy", "ort", "torch")
PAIRS = tuple(combinations(ENGINES, 2))
SHARES = len(ENGINES)
"""The pairs of one engine have a seventh of the operators each, and all of them different ones."""


@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS, ids="/".join)
def test_neighbours_on_different_engines_agree(pair: tuple[str, str], pytestconfig: pytest.Config) -> None:
    a, b = map(registry.create, pair)
    share, firsts = (sum(map(ENGINES.index, pair)) % SHARES, SHARES), [0, 1]
    if set(pair) <= set(QUICK) or (pytestconfig.option.full and "iree" not in pair):  # which starts a process for each compile
        share = (0, 1)
    if not set(pair) <= set(QUICK):
        firsts = [int(pair[1] in QUICK)]  # it transposes, and the operators are on the other engine, whose compiles are slow
    models = list(list_models((a, b), share))
    wrong = [line for cases in models for first in firsts for line in run_alternating((a, b), cases, first)]
    assert wrong == []
    assert sum(map(len, models)) >= 120 // share[1]
