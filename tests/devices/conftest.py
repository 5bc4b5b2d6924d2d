"""Run each test of this folder on every world of devices."""

from collections.abc import Iterator

import pytest

from tests.devices.worlds import WORLDS, World, world


@pytest.fixture(params=WORLDS, name="world")
def each_world(request: pytest.FixtureRequest) -> Iterator[World]:
    with world(request.param) as devices:
        yield devices
