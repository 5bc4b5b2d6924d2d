"""What is asked of devices for single engines, and what of it is nothing new."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from xrt.engines.contract import registry
from xrt.errors import DeviceError, OptionError
from xrt.module.engines import parse_devices


@pytest.mark.parametrize(
    ("asked", "here", "found"),
    [
        ({"toy": "cpu"}, "cpu", {}),
        ({"toy": "cuda"}, "cpu", {"toy": "cuda"}),
        ({"toy": "cuda:0"}, "cuda", {}),
        ({"toy": "cpu"}, "cuda", {"toy": "cpu"}),
        ({"toy": "cuda", "toy{native=off}": "cpu"}, "cpu", {"toy": "cuda"}),
        ({"nobody": "cuda"}, "cpu", {}),
    ],
)
def test_only_what_differs_from_the_module_is_kept(asked: Mapping[str, str], here: str, found: Mapping[str, str]) -> None:
    engines = [registry.create("toy"), registry.create("toy{native=off}")]
    others = {spec: device for spec, device in parse_devices(engines, asked, here, ["nobody"]).items() if spec == "toy"}
    assert others == found


def test_an_engine_that_is_not_in_the_list_and_one_that_cannot_run_there_are_reported() -> None:
    engines = [registry.create("iree")]
    with pytest.raises(OptionError, match="devices names 'tyo', which is not in the list of engines"):
        parse_devices(engines, {"tyo": "cpu"}, "cpu")
    with pytest.raises(DeviceError, match="devices asks for iree on 'cuda', and it runs on cpu"):
        parse_devices(engines, {"iree": "cuda"}, "cpu")
