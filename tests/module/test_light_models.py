"""The nine models that the onnx package ships, with seeded weights: engines and the pinned mixture agree with the reference."""

from __future__ import annotations

import pytest

import xrt
from xrt.comparison import compare, tolerance_for
from xrt.models import light_models, load_light, sample_inputs

MIXTURE = {"engine": ["tvm", "ort"], "pins": ["Conv|Gemm|MatMul=ort"]}


@pytest.mark.slow
@pytest.mark.sample(9)
@pytest.mark.parametrize("name", light_models())
def test_engines_and_the_mixture_agree(name: str) -> None:
    model = load_light(name)
    inputs = sample_inputs(model, seed=0)
    expected = xrt.XRTModule(model, engine="toy{native=off}", strict=True)(**inputs)
    assert expected.std() > 1e-4, "an output without variation agrees with anything"
    for options in ({"engine": "ort"}, MIXTURE):
        with xrt.XRTModule(model, strict=True, **options) as m:
            found = compare(m(**inputs), expected, tolerance_for("float32", "network"))
            assert found, f"{name} on {options['engine']}: {found.message}"
            assert {launch.engine for launch in m.plan.launches} == {*m.engines}
