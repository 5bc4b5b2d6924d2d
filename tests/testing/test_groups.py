"""The groups of tests that onnx stores: what they hold, and how the light networks are judged."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper

from xrt.errors import OptionError
from xrt.testing import ConformanceCase, ResultWord, conform, group_cases
from xrt.testing.cases import may_name_a_match

STORED = ("simple", "pytorch-operator", "pytorch-converted", "light")


@pytest.mark.slow
def test_there_is_a_case_for_each_folder():
    counts = {group: len(group_cases((group,))) for group in STORED}
    assert counts == {"simple": 23, "pytorch-operator": 35, "pytorch-converted": 82, "light": 17}


@pytest.mark.parametrize("group", STORED)
def test_cases_know_their_group_and_are_sorted(group: str):
    cases = group_cases((group,))
    assert {case.group for case in cases} == {group}
    assert [case.name for case in cases] == sorted(case.name for case in cases)


@pytest.mark.parametrize("groups", [("nodes",), ("node", "ligth")])
def test_an_unknown_group_is_an_error(groups):
    with pytest.raises(OptionError, match=r"there is no group '(nodes|ligth)'\. Did you mean '(node|light)'"):
        group_cases(groups)


def test_stored_sequences_are_lists():
    [case] = group_cases(("simple",), "sequence_model1")
    assert all(isinstance(value, np.ndarray) for value in case.inputs)
    assert conform("toy", "sequence_model*", groups=["simple"]).counts[ResultWord.PASSED] == 8


def test_a_light_network_comes_twice():
    plain, random = group_cases(("light",), "light_shufflenet*")
    assert (plain.name, random.name) == ("light_shufflenet", "light_shufflenet_random")
    assert np.ptp(plain.truth[0]) < 1e-6, "as it comes, all outputs are one number"
    assert random.truth[0].std() > 1e-4
    assert random.judge(random.truth)
    assert not random.judge([random.truth[0][:, ::-1].copy()])
    assert not plain.judge(random.truth)


def test_groups_are_counted():
    report = conform("toy", "single_relu_model,operator_mm,Linear", groups=STORED)
    assert {group: counts[ResultWord.PASSED] for group, counts in report.by_group().items()} == {
        "simple": 1,
        "pytorch-operator": 1,
        "pytorch-converted": 1,
    }
    assert report.placements()["Relu"] == {"toy": 1}


# ---------------------------------------------------------------------- ties


def argmax_case() -> ConformanceCase:
    """y = ArgMax(Sqrt(x)): two places whose values are as good as equal."""
    nodes = [helper.make_node("Sqrt", ["x"], ["h"]), helper.make_node("ArgMax", ["h"], ["y"], axis=0, keepdims=0)]
    x, y = (helper.make_tensor_value_info(n, t, s) for n, t, s in (("x", TensorProto.FLOAT, [3]), ("y", TensorProto.INT64, [])))
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=[helper.make_opsetid("", 18)])
    given = np.array([1.0, 1.0 + 1e-6, 0.5], np.float32)
    return ConformanceCase("argmax", model, (given,), (np.array(1),), 1e-3, 1e-7)


def test_a_tie_counts_where_it_is_admitted_and_a_wrong_place_never():
    case = argmax_case()
    tie, wrong = [np.array(0)], [np.array(2)]
    assert not case.judge(tie)
    assert case.judge(tie, admit_ties=True)
    assert not case.judge(wrong, admit_ties=True)


@pytest.mark.slow
def test_of_a_copy_nothing_is_computed_yet():
    case = group_cases(("light",), "light_zfnet512_random")[0]
    assert case.function
    assert "function" not in vars(replace(case))


NAMED = """
import importlib, warnings
import numpy as np
from onnx.backend.test.case import node
from xrt.testing import cases

first = len(cases.node_cases("abs,test_relu"))
print(first, len(node._NodeTestCases) < 50)
warnings.simplefilter("ignore")
np.seterr(all="ignore")
for module in cases._list_modules():
    before = len(node._NodeTestCases)
    importlib.import_module(module)
    for test in node._NodeTestCases[before:]:
        assert cases.may_name_a_match(module, test.name), (module, test.name)
found = {case.name for case in cases.node_cases()}
print(len(found) > 1800, {test.name for test in node.collect_testcases(None)} <= found)
"""


@pytest.mark.full
def test_a_module_of_node_tests_is_imported_for_every_test_that_it_has():
    done = subprocess.run([sys.executable, "-c", NAMED], capture_output=True, text=True, check=False)
    assert (done.stdout.split(), done.returncode) == (["2", "True", "True", "True"], 0), done.stderr


@pytest.mark.parametrize("pattern", ["abs", "test_abs_ver*", "relu, a?s", "*", "test_*"])
def test_a_module_may_name_what_its_source_begins_with(pattern: str):
    assert may_name_a_match("onnx.backend.test.case.node.abs", pattern)
    assert may_name_a_match("onnx.backend.test.case.node.relu", pattern) != (pattern in ("abs", "test_abs_ver*"))
