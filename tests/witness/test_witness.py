"""Every operator of the reference, held against somebody else's code."""

from __future__ import annotations

import pytest

from tests.witness.judging import held
from tests.witness.proved import WITHOUT, by_operator, operators


@pytest.mark.parametrize("op", by_operator())
def test_the_reference_agrees_with_its_witness(op: str) -> None:
    wrong = [(number, case.name, found) for number, case in enumerate(by_operator()[op]) if (found := held(case).message)]
    assert wrong == []


def test_every_operator_has_a_witness_or_a_reason() -> None:
    proved = set(by_operator())
    assert proved | set(WITHOUT) == set(operators())
    assert proved.isdisjoint(WITHOUT)
