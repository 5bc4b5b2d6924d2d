"""A share of the tests of onnx in every way of `make conformance`, held against what it recorded; another share for each way.

It is one in 200 of the tests, and one in 20 in `make test-full`, but all tests of a way of one engine: what the record says of
an engine is part of what is proved of it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance.against import differences
from tools.conformance_record import WAYS, Way
from tools.known_failures import list_known_failures
from xrt.testing import conform

pytestmark = pytest.mark.slow

SEED = 0
"""Draws the shares. The whole is `make conformance`."""

SHARES, SHARES_IN_FULL = 200, 20


def list_ways() -> Iterator[Any]:
    """Yield the ways; those of one engine are among what proves it."""
    for way in WAYS:
        marks = [pytest.mark.proof(f"engine {way.name}", share=1)] if len(way.engines) == 1 else []
        yield pytest.param(way, id=way.name.replace(" ", "-"), marks=marks)


@pytest.mark.parametrize("way", list(list_ways()))
def test_a_share_comes_out_as_recorded(way: Way, pytestconfig: pytest.Config) -> None:
    engines = way.engines if len(way.engines) > 1 else way.engines[0]
    is_whole = len(way.engines) == 1 and (pytestconfig.option.full or pytestconfig.option.subject)
    shares = 1 if is_whole else SHARES_IN_FULL if pytestconfig.option.full else SHARES
    share = (zlib.crc32(f"{SEED}/{way.name}".encode()) % shares, shares)
    report = conform(engines, alternate=way.alternate, shard=share, gaps=list_known_failures(way.engines))
    assert report.ok, str(report)
    assert len(report.outcomes) >= 2000 // shares
    assert differences(way.name, report) == []
