"""What an engine gets that writes the two mandatory methods and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pytest

from xrt.engines import CompileContext, Executable, ExecutionOptions, GraphCompiler, RunOptions, check_options, option
from xrt.errors import CompileRefused, OptionError, RunFailed
from xrt.graph import Function, Node


class Idle(Executable):
    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        return list(inputs)


@dataclass(frozen=True)
class Least(GraphCompiler):
    name: ClassVar[str] = "least"
    level: int = 1

    def why_not(self, node: Node, function: Function) -> str | None:
        return None

    def compile(self, function: Function, context: CompileContext) -> Executable:
        return Idle()


EMPTY = Function((), ())


def test_the_defaults_promise_nothing() -> None:
    assert (Least.devices, Least.supports_dynamic_shapes) == (("cpu",), False)
    assert Idle.outputs_are_fresh is False
    assert Least().remarks(EMPTY) == ()


@pytest.mark.slow
def test_the_version_is_that_of_the_distribution_and_zero_outside_of_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Least, "__module__", "numpy.engines.least")
    assert Least().version() == f"numpy {np.__version__}"
    monkeypatch.setattr(Least, "__module__", "nobody_s_module")
    assert Least().version() == "0"


def test_an_option_that_is_not_honoured_is_named() -> None:
    asked = CompileContext(ExecutionOptions(precision="fp16"))
    assert Least().unsupported_options(CompileContext(ExecutionOptions(threads=2))) is None
    assert Least().unsupported_options(asked) == "engine 'least' does not honour precision='fp16'"


def test_an_executable_cannot_be_saved_or_loaded() -> None:
    with pytest.raises(CompileRefused, match=r"^engine 'least' cannot save an executable$"):
        Least().save(Idle(), CompileContext())
    with pytest.raises(CompileRefused, match=r"^engine 'least' cannot load an executable$"):
        Least().load(memoryview(b""), EMPTY, CompileContext())


def test_the_engine_is_its_fields() -> None:
    assert Least() == Least(level=1) != Least(level=2)
    assert hash(Least()) == hash(Least(level=1))
    assert repr(Least(2)) == "Least(level=2)"
    assert str(Least(2)) == Least(2).spec == "least{level=2}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "fp61"}, "precision must be one of fp32, fp16, bf16, int8; got 'fp61'. Did you mean 'fp16'?"),
        ({"threads": 0}, "threads must be a positive integer or None; got 0"),
        ({"threads": True}, "threads must be a positive integer or None; got True"),
    ],
)
def test_an_impossible_execution_option_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        ExecutionOptions(**options)
    assert str(caught.value) == message


@dataclass(frozen=True)
class Ranged(Least):
    name: ClassVar[str] = "ranged"
    effort: int = option(1, at_least=0, at_most=3)
    seconds: float | None = option(None, above=0)
    order: Literal["fast", "exact"] = "fast"
    fused: bool = True

    def __post_init__(self) -> None:
        check_options(self)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"effort": 4}, "effort of engine 'ranged' must be an integer from 0 to 3; got 4"),
        ({"effort": True}, "effort of engine 'ranged' must be an integer from 0 to 3; got True"),
        ({"seconds": 0}, "seconds of engine 'ranged' must be a positive number or None; got 0"),
        ({"order": "exakt"}, "order of engine 'ranged' must be one of fast, exact; got 'exakt'. Did you mean 'exact'?"),
        ({"fused": "no"}, "fused of engine 'ranged' must be True or False; got 'no'"),
    ],
)
def test_an_engine_checks_what_its_fields_declare(options: dict[str, Any], message: str) -> None:
    assert (
        Ranged(effort=3, seconds=0.5, order="exact", fused=False).spec
        == "ranged{effort=3, fused=false, order=exact, seconds=0.5}"
    )
    with pytest.raises(OptionError) as caught:
        Ranged(**options)
    assert str(caught.value) == message


def test_calls_over_fixed_arrays_are_runs_with_a_copy_unless_the_engine_says_otherwise() -> None:
    executable, x, buffer = Idle(), np.ones(2, "float32"), np.zeros(2, "float32")
    assert (executable.supports_io_binding(), executable.output_buffer_threshold(), executable.inplace_pairs()) == (False, (), ())
    assert executable.fast_call()(x)[0] is x
    executable.bind([x], [buffer])()
    assert buffer.tolist() == [1, 1]
    executable.bind_outputs([buffer])(2 * x)
    assert buffer.tolist() == [2, 2]
    with pytest.raises(RunFailed) as caught:
        executable.bind_outputs([np.zeros(3, "float32")])(x)
    assert str(caught.value) == "a result is float32[2] where the buffer for it is float32[3]"
