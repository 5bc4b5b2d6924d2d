"""Right first: precision is as the caller allows; sizes of symbolic dims; and work that is abandoned."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tests.module.test_faults import X, chain
from xrt.engines import ExecutionOptions
from xrt.engines.toolkit.reference_evaluator import evaluate
from xrt.graph import DType, Function, TensorType, Value
from xrt.passes import infer_shapes
from xrt.placement.profiler import NODES_PER_RUN, capture_activations, check_against_reference, find_first_random_node
from xrt.placement.sizes import format_sizes, list_open_axes, read_sizes, resize_values
from xrt.verify.execution import Stopped

PAIR = infer_shapes(chain("Exp", "Cos"))
RIGHT = evaluate(PAIR, [X])


def found(results: Any, precision: Any = "fp32") -> tuple[str, str]:
    return check_against_reference(PAIR, [X], results, RIGHT, evaluate, ExecutionOptions(precision=precision))


def test_what_agrees_needs_no_word() -> None:
    assert found(RIGHT) == ("", "")


def test_a_lower_precision_is_wrong_unless_it_is_allowed() -> None:
    coarse = [RIGHT[0] + np.float32(0.01)]
    assert "differ" in found(coarse)[0]
    wrong, note = found(coarse, "bf16")
    assert not wrong and note.startswith("off by 0.01 at most (")
    wrong, note = found([RIGHT[0] + np.float32(0.5)], "bf16")
    assert wrong and not note


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_too_few_results_are_wrong(precision: str) -> None:
    assert found([], precision) == ("there are 0 outputs; 1 were expected", "")


def test_captured_values_are_those_of_the_reference_as_far_as_memory_goes() -> None:
    values = capture_activations(PAIR, [X], evaluate)
    assert set(values) == {"x", "v1", "y"}
    np.testing.assert_array_equal(values["v1"], np.exp(X))
    assert set(capture_activations(PAIR, [X], evaluate, max_bytes=23)) == {"x", "y"}
    assert set(capture_activations(PAIR, [X], evaluate, max_bytes=24)) == {"x", "v1", "y"}


def test_the_reference_computes_the_same_in_stretches_and_can_be_stopped_between_them() -> None:
    function = infer_shapes(chain(*("Exp", "Cos", "Sin", "Abs", "Neg") * 12))
    whole, requests, stop = capture_activations(function, [X], evaluate), [], threading.Event()

    def stretch(part: Function, inputs: Any) -> Any:
        requests.append(len(part.nodes))
        return evaluate(part, inputs)

    parts = capture_activations(function, [X], stretch, is_stopped=stop.is_set)
    assert requests == [NODES_PER_RUN, len(function.nodes) - NODES_PER_RUN]
    assert {name: value.tobytes() for name, value in parts.items()} == {name: value.tobytes() for name, value in whole.items()}
    assert {*capture_activations(function, [X], evaluate, max_bytes=0, is_stopped=stop.is_set)} == {"x", function.outputs[0].name}
    stop.set()
    with pytest.raises(Stopped, match=r"^after 0 of 60 nodes$"):
        capture_activations(function, [X], evaluate, is_stopped=stop.is_set)


def test_what_is_drawn_cannot_be_compared_with_anything() -> None:
    assert find_first_random_node(PAIR) == ""
    assert find_first_random_node(chain("Bernoulli")) == "node 'n0' (Bernoulli) is not deterministic"


OPEN = (
    Value("x", TensorType(DType.FLOAT32, ("b", "s", 3))),
    Value("n", TensorType(DType.INT64, ())),
    Value("y", TensorType(DType.INT64, ("s", None))),
)


def test_extents_without_a_name_have_one() -> None:
    assert [name for _, _, name in list_open_axes(OPEN)] == ["b", "s", "s", "y[1]"]
    values = [np.zeros((2, 5, 3)), np.int64(1), np.zeros((5, 4), "int64")]
    assert read_sizes(OPEN, values) == {"b": 2, "s": 5, "y[1]": 4}
    assert format_sizes(read_sizes(OPEN, values)) == "b=2, s=5, y[1]=4"


@given(st.integers(0, 4), st.integers(0, 5), st.integers(1, 9), st.integers(1, 9))
def test_values_of_other_sizes_are_made_of_those_given(b: int, s: int, more_b: int, more_s: int) -> None:
    rng = np.random.default_rng(0)
    values: list[Any] = [rng.random((b, s, 3)), np.int64(7), rng.integers(0, 9, (s, 4))]
    result = resize_values(OPEN, values, {"b": more_b, "s": more_s, "y[1]": 4})
    assert [x.shape for x in result] == [(more_b, more_s, 3), (), (more_s, 4)]
    assert [x.dtype for x in result] == [x.dtype for x in values]
    assert set(result[2].ravel()) <= {*values[2].ravel(), *([0] if not s else [])}
    same = resize_values(OPEN, values, {"b": b, "s": s, "y[1]": 4})
    assert all(item is other for item, other in zip(same, values, strict=True))


SCRIPT = """
import ctypes, sys
from xrt.processes.background import OutOfTime, run_within

def work():
    {work}

try:
    run_within(0.5, work)
except OutOfTime:
    print("abandoned")
sys.exit(3)
"""
PACKAGE = """
import time, weakref

class Kept: ...

kept = Kept()
weakref.finalize(kept, lambda: print("a finalizer of a package that is half there"))
time.sleep(3600)
"""


@pytest.mark.parametrize("work", ["ctypes.CDLL(None).sleep(3600)", "import time; time.sleep(3600)", "import half_there"])
def test_a_process_ends_with_its_status_while_work_goes_on(work: str, tmp_path: Path) -> None:
    (tmp_path / "half_there.py").write_text(PACKAGE, encoding="utf-8")
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{SCRIPT.format(work=work)}"
    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (completed.returncode, completed.stdout, completed.stderr) == (3, "abandoned\n", "")


def test_work_that_comes_back_at_the_end_ends_no_process() -> None:
    script = SCRIPT.format(work="ctypes.CDLL(None).usleep(1_500_000); print('back')")
    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert completed.returncode == 3
    assert completed.stderr == ""
