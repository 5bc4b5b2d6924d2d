"""``xrt bench --threads``: each budget once, and none above the cores."""

from __future__ import annotations

import pytest

from xrt.cli.bench import _budgets
from xrt.errors import BudgetWarning
from xrt.runtime import available_cores


def test_more_threads_than_cores_are_the_cores_and_stand_once() -> None:
    cores = available_cores()
    with pytest.warns(BudgetWarning, match=f"threads={cores + 1} is more than the {cores} cores"):
        assert _budgets([1, cores, cores + 1]) == list(dict.fromkeys([1, cores]))
