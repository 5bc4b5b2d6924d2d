"""A share of the tests of onnx in every way of `make conform`, held against what it recorded; another share for each way."""

from __future__ import annotations

import zlib

import pytest

from tests.conformance.against import differences
from tools.conformance_record import WAYS, Way
from xrt.testing import conform

pytestmark = pytest.mark.slow

SEED = 0
"""Draws the shares. The whole is `make conform`."""

SHARES = 20


def share(way: Way) -> tuple[int, int]:
    return zlib.crc32(f"{SEED}/{way.name}".encode()) % SHARES, SHARES


@pytest.mark.parametrize("way", [way for way in WAYS if way.engines != ("toy",)], ids=lambda way: way.name.replace(" ", "-"))
def test_a_share_comes_out_as_recorded(way: Way) -> None:
    engines = way.engines if len(way.engines) > 1 else way.engines[0]
    report = conform(engines, alternate=way.alternate, shard=share(way))
    assert report.ok, str(report)
    assert len(report.outcomes) > 100
    assert differences(way.name, report) == []
