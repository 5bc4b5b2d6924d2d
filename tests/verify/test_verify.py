"""Verification of a plan, and the smallest part that is wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import xrt
from tests.verify.wrong import Wrong, WronglyFusing, long_model, numbers
from xrt.formats.onnx import load, save_case
from xrt.runtime.inputs import copy_values
from xrt.testing.fault_injection import FaultyEngine
from xrt.verify import Verdict

pytestmark = pytest.mark.sample(3)


@pytest.mark.slow
def test_a_right_plan_is_verified() -> None:
    with xrt.XRTModule(long_model(count=20, at=7), engine=["ort", "toy"], pins=["Sin=toy"]) as module:
        found = module.verify(numbers())
    assert found
    assert len(found.regions) == len(module.plan.launches) > 1
    assert all(region.judgement.verdict is Verdict.AGREES for region in found.regions)
    inner = [check.name for region in found.regions for check in region.inner]
    assert set(inner) <= {f"v{i}" for i in range(1, 21)} and inner


@pytest.mark.full
def test_a_wrong_kernel_is_found_in_the_region_and_the_value_that_it_makes() -> None:
    with xrt.XRTModule(long_model(), engine=[Wrong(native="off"), "ort"], maximum_nodes=40) as module:
        found = module.verify(numbers())
    assert not found
    assert [region.name for region in found.differing] == ["xrt_wrong_2"]
    (region,) = found.differing
    assert region.differing[0].node == "n117" and region.differing[0].op == "Atan"
    assert "inside, first at node 'n117' (Atan)" in str(found)
    assert found.to_dict()["regions"][2]["judgement"]["verdict"] == "disagrees"


@pytest.mark.full
def test_regions_get_right_inputs_and_the_whole_gets_wrong_ones() -> None:
    with xrt.XRTModule(long_model(at=0, count=12), engine=Wrong(native="off"), maximum_nodes=4) as module:
        found = module.verify(numbers(), inner=False)
    assert [region.judgement.verdict for region in found.regions] == [Verdict.DISAGREES, Verdict.AGREES, Verdict.AGREES]
    assert found.whole.verdict is Verdict.DISAGREES
    assert not any(region.inner for region in found.regions)


@pytest.mark.full
def test_what_an_engine_writes_to_is_a_copy() -> None:
    """Arrays in a list were handed over as they are."""
    one = np.zeros(2, "float32")
    theirs = copy_values([one, [one], None])
    theirs[0][...] = theirs[1][0][...] = 7
    assert not one.any() and theirs[2] is None


@pytest.mark.full
def test_progress_is_reported_of_every_region() -> None:
    told: list[tuple[int, int]] = []
    with xrt.XRTModule(long_model(count=12), engine="toy", maximum_nodes=4) as module:
        module.verify(numbers(), progress=lambda done, count: told.append((done, count)))
    assert told == [(0, 3), (1, 3), (2, 3), (3, 3)]


@pytest.mark.full
def test_a_wrong_kernel_among_200_nodes_is_reduced_to_its_node() -> None:
    with xrt.XRTModule(long_model(), engine=Wrong(native="off")) as module:
        culprit = module.bisect(numbers())
    assert culprit is not None
    assert [node.name for node in culprit.function.nodes] == ["n117"]
    assert culprit.runs < 30
    assert str(culprit).startswith("wrong{native=off} differs on 1 node: 'n117' (Atan): v118 differs in 32 of 32 elements")
    np.testing.assert_allclose(culprit.expected[0], np.arctan(culprit.inputs[0]), rtol=1e-6)


@pytest.mark.full
def test_a_wrong_fusion_is_reduced_to_the_nodes_that_it_takes() -> None:
    model = long_model(special="Sin", at=77, count=200)  # the one Sin that a Cos reads
    with xrt.XRTModule(model, engine=WronglyFusing(native="off")) as module:
        culprit = module.bisect(numbers())
    assert culprit is not None
    assert [node.name for node in culprit.function.nodes] == ["n77", "n78"]


@pytest.mark.full
def test_an_engine_that_raises_is_a_difference() -> None:
    with xrt.XRTModule(long_model(count=6), engine=FaultyEngine(where="run", how="raise")) as module:
        culprit = module.bisect(numbers())
    assert culprit is not None
    assert len(culprit.function.nodes) == 1
    assert "RuntimeError: the faulty engine is set to fail in run" in culprit.message


@pytest.mark.full
def test_where_nothing_differs_there_is_no_culprit() -> None:
    with xrt.XRTModule(long_model(count=30), engine="ort") as module:
        assert module.bisect(numbers()) is None


@pytest.mark.full
def test_an_error_that_is_lost_on_its_way_out_is_found_all_the_same() -> None:
    model = long_model(count=10, at=3)
    lost = xrt.Node("Mul", ("v10", "zero"), ("y",), name="last")
    zero = xrt.graph.Constant(np.zeros((), np.float32))
    model = model.replace(nodes=(*model.nodes, lost), outputs=(xrt.Value("y", model.outputs[0].type),), constants={"zero": zero})
    with xrt.XRTModule(model, engine=Wrong(native="off"), fold_constants=False) as module:
        assert module.verify(numbers()).whole.verdict is Verdict.AGREES
        culprit = module.bisect(numbers())
    assert culprit is not None and [node.name for node in culprit.function.nodes] == ["n3"]


@pytest.mark.full
def test_a_culprit_is_written_as_onnx_writes_its_cases(tmp_path: Path) -> None:
    with xrt.XRTModule(long_model(count=8, at=2), engine=Wrong(native="off")) as module:
        culprit = module.bisect(numbers())
    assert culprit is not None
    save_case(culprit.function, culprit.inputs, culprit.expected, tmp_path / "case")
    (node,) = load(tmp_path / "case" / "model.onnx").nodes
    assert node.op_type == "Atan"
    data = tmp_path / "case" / "test_data_set_0"
    given, due = (onnx.numpy_helper.to_array(onnx.load_tensor(data / name)) for name in ("input_0.pb", "output_0.pb"))
    np.testing.assert_array_equal(given, culprit.inputs[0])
    np.testing.assert_array_equal(due, culprit.expected[0])


@pytest.mark.full
def test_what_is_neither_tensor_nor_list_is_no_case(tmp_path: Path) -> None:
    with pytest.raises(
        xrt.errors.ModelError, match=r"^'v0' is a NoneType; a case holds tensors, maps, and lists of one of these$"
    ):
        save_case(long_model(count=1), [None], [numbers()], tmp_path)
