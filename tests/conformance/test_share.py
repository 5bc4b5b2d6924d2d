"""A share of the tests of onnx in each way of `make conformance`; another share for each way."""

from __future__ import annotations

import zlib

import pytest

from tools.conformance_record import WAYS, Way
from tools.known_failures import list_known_failures
from xrt.testing import conform

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name.replace(" ", "-"))
def test_a_share_passes(way: Way, pytestconfig: pytest.Config) -> None:
    engines = way.engines if len(way.engines) > 1 else way.engines[0]
    shares = (1 if len(way.engines) == 1 else 20) if pytestconfig.option.full else 200
    share = (zlib.crc32(way.name.encode()) % shares, shares)
    report = conform(engines, alternate=way.alternate, shard=share, gaps=list_known_failures(way.engines))
    assert report.ok, str(report)
