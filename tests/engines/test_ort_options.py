"""The ort engine's options: what they may be, what they become, and what is said of those that they may not be."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

from xrt.engines import CompileContext, ExecutionOptions, create
from xrt.engines.ort import Ort
from xrt.errors import OptionError
from xrt.graph import DType, Function, Node, TensorType, Value

PAIR = TensorType(DType.FLOAT32, (2,))
RELU = Function((Value("x", PAIR),), (Value("y", PAIR),), (Node("Relu", ("x",), ("y",)),), opsets={"": 21})


@pytest.mark.parametrize(
    "spec",
    [
        "ort",
        "ort{config.session.intra_op.allow_spinning=0}",
        "ort{optimization=basic, providers=(AzureExecutionProvider, CPUExecutionProvider)}",
        "ort{deterministic=true, execution_mode=parallel, inter_op_threads=2}",
        "ort{memory_arena=false, memory_pattern=false, optimization=none}",
    ],
)
def test_a_spec_makes_the_engine_whose_spec_it_is(spec: str) -> None:
    engine = create(spec)
    assert engine.spec == spec
    assert create(engine.spec) == engine
    assert len({engine, create(spec)}) == 1
    (y,) = engine.compile(RELU, CompileContext(threads=2)).run([np.array([-1, 2], np.float32)])
    assert y.tolist() == [0, 2]


def test_equal_options_are_equal_engines_in_whatever_order() -> None:
    one = Ort(config={"session.disable_prepacking": True, "ep.x": 1})
    other = Ort(config={"ep.x": "1", "session.disable_prepacking": "1"})
    assert one == other
    assert hash(one) == hash(other)
    assert repr(one) == repr(other)


REFUSED = [
    (
        {"providers": "CPUExecutionProvide"},
        (
            "ONNX Runtime has no execution provider 'CPUExecutionProvide' here. Did you mean 'CPUExecutionProvider'? Available: "
            f"{', '.join(onnxruntime.get_available_providers())}. Others come with other builds, such as onnxruntime-gpu."
        ),
    ),
    ({"providers": ()}, "providers of engine 'ort' must be one or more different names; got ()"),
    ({"providers": 3}, "providers of engine 'ort' must be a tuple of names; got 3"),
    (
        {"optimization": "bassic"},
        "optimization of engine 'ort' must be one of none, basic, extended, layout, all; got 'bassic'. Did you mean 'basic'?",
    ),
    ({"execution_mode": 1}, "execution_mode of engine 'ort' must be one of sequential, parallel; got 1."),
    (
        {"inter_op_threads": 2},
        "inter_op_threads=2 of engine 'ort' has a meaning only with execution_mode='parallel'; it is 'sequential'",
    ),
    (
        {"inter_op_threads": 0, "execution_mode": "parallel"},
        "inter_op_threads of engine 'ort' must be a positive integer or None; got 0",
    ),
    ({"deterministic": "no"}, "deterministic of engine 'ort' must be True or False; got 'no'"),
    ({"config": "x"}, "config of engine 'ort' must map names to values; got 'x'"),
    (
        {"config": {"session.intra_op.alow_spinning": 0}},
        (
            "ONNX Runtime reads no session config entry 'session.intra_op.alow_spinning', and would ignore it. "
            "Did you mean 'session.intra_op.allow_spinning'? (Keys of an execution provider start with 'ep.'.)"
        ),
    ),
    (
        {"config": {"session.load_model_format": "ORT"}},
        (
            "engine 'ort' sets config entry 'session.load_model_format' itself: the engine passes the model itself, in "
            "ONNX's format; leave it out"
        ),
    ),
    (
        {"provider_options": {"AzureExecutionProvider.x": 1}},
        (
            "provider_options of engine 'ort' are named <provider>.<option>, for a provider in use (CPUExecutionProvider); "
            "got 'AzureExecutionProvider.x'"
        ),
    ),
    (
        {"provider_options": {"CPUExecutionProvider.x": 1}},
        "ONNX Runtime's CPUExecutionProvider has no options of its own, and would ignore 'x'; leave it out",
    ),
]


@pytest.mark.parametrize(("options", "text"), REFUSED, ids=lambda value: str(value)[:40])
def test_an_impossible_option_is_an_error_that_says_what_is_possible(options: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError) as error:
        Ort(**options)
    assert str(error.value) == text


def test_options_reach_the_session() -> None:
    engine = Ort(optimization="basic", memory_arena=False, deterministic=True, config={"session.set_denormal_as_zero": 1})
    options = engine.make_session_options(3)
    assert options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (3, 1)
    assert (options.enable_cpu_mem_arena, options.enable_mem_pattern, options.use_deterministic_compute) == (False, True, True)
    assert options.get_session_config_entry("session.set_denormal_as_zero") == "1"
    parallel = Ort(execution_mode="parallel").make_session_options(3)
    assert (parallel.execution_mode, parallel.inter_op_num_threads) == (onnxruntime.ExecutionMode.ORT_PARALLEL, 3)


def test_spinning_is_stopped_unless_the_user_says_otherwise() -> None:
    key = "session.force_spinning_stop"
    assert Ort().make_session_options(1).get_session_config_entry(key) == "1"
    assert Ort(config={key: 0}).make_session_options(1).get_session_config_entry(key) == "0"


def test_weights_are_not_quantized_and_a_slow_fused_kernel_is_not_used_on_the_cpu() -> None:
    key = "optimization.disable_specified_optimizers"
    assert Ort().make_session_options(1).get_session_config_entry(key) == "WeightBiasQuantization;SkipLayerNormFusion"
    assert Ort(config={key: "GeluFusion"}).make_session_options(1).get_session_config_entry(key) == "GeluFusion"
    assert Ort().make_session_options(1, "cuda:0").get_session_config_entry(key) == "WeightBiasQuantization"


def test_execution_options_that_are_not_honoured_are_named() -> None:
    def answer(**options: Any) -> str | None:
        return Ort().unsupported_options(CompileContext(ExecutionOptions(**options)))

    assert answer(threads=1) is None
    assert answer(precision="fp16") == ("engine 'ort' computes in the model's own types: it does not honour precision='fp16'")


def test_the_version_names_the_library_and_its_build() -> None:
    assert Ort().version() == f"onnxruntime {onnxruntime.__version__} ({onnxruntime.get_build_info()})"
