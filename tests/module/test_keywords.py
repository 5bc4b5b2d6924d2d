"""The keywords of XRTModule: every one is listed with its default, and a wrong value is an error that names it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import numpy as np
import pytest

import xrt
from tests.module.small_models import X, relu
from xrt.engines.contract.spec import list_options
from xrt.errors import DeviceError, InputError, OptionError, PlanError, UnknownEngine, XRTError
from xrt.formats import text
from xrt.module.keywords import ModuleKeywords
from xrt.module.options import OWNERS

BATCHES = "function main(x: float32[n,3]) -> (y: float32[n,3]) {\n opset ai.onnx 18\n y = Relu(x)\n}"


def message(kind: type[XRTError], do: Callable[[], object]) -> str:
    with pytest.raises(kind) as caught:
        do()
    return str(caught.value)


SIGNATURE = inspect.signature(xrt.XRTModule).parameters
KEYWORDS = [one for one in SIGNATURE.values() if one.kind is inspect.Parameter.KEYWORD_ONLY]


def test_type_checkers_see_the_keywords_of_the_signature() -> None:
    assert {"cache", *get_type_hints(ModuleKeywords)} == {one.name for one in KEYWORDS}


def test_there_are_few_keywords_and_the_signature_shows_each() -> None:
    assert list(SIGNATURE)[:4] == ["model", "engine", "device", "cache"]
    assert not any(one.kind is inspect.Parameter.VAR_KEYWORD for one in SIGNATURE.values())
    assert len(KEYWORDS) <= 20


def test_each_keyword_is_accepted_with_its_default() -> None:
    given: dict[str, Any] = {one.name: one.default for one in KEYWORDS}
    np.testing.assert_array_equal(xrt.XRTModule(relu(), **given)(X), np.maximum(X, 0))


@pytest.mark.parametrize("owner", OWNERS, ids=lambda owner: owner.__name__)
def test_each_option_says_what_it_means(owner: type) -> None:
    lost = [entry.name for entry in list_options(owner) if not entry.meaning]
    assert set(lost) <= {"clustering", "execution"}


def test_the_options_of_an_engine_come_with_type_default_and_meaning() -> None:
    entry = list_options(type(xrt.engines.contract.registry.create("tvm")))[0]
    assert (entry.name, entry.type, entry.default) == ("opt_level", "int", "3")
    assert entry.meaning.startswith("0 to 3: how much TVM fuses")


def test_a_pin_by_a_misspelt_operator_names_the_nearest() -> None:
    m = xrt.XRTModule(relu(), engine=["ort", "toy"], pins=["Relu2d=ort"])
    said = message(PlanError, lambda: m(X))
    assert said == f"pin 'Relu2d=ort' matches no node of function {relu().name!r}. Did you mean 'Relu'?"


@pytest.mark.parametrize(
    ("word", "engine"), [("onnxruntime", "ort"), ("OpenVINO", "openvino"), ("jax", "xla"), ("apache_tvm", "tvm"), ("ORT", "ort")]
)
def test_the_name_of_a_library_suggests_its_engine(word: str, engine: str) -> None:
    assert f"no engine is named {word!r}. Did you mean {engine!r}?" in message(UnknownEngine, lambda: xrt.XRTModule(relu(), word))


def test_engines_in_one_text_have_to_be_a_list() -> None:
    said = message(OptionError, lambda: xrt.XRTModule(relu(), "ort,tvm{opt_level=2}"))
    assert said == "'ort,tvm{opt_level=2}' names 2 engines, and one is due; pass a list: ['ort', 'tvm{opt_level=2}']"


def test_the_spec_that_an_error_recommends_is_a_spec() -> None:
    said = message(OptionError, lambda: xrt.XRTModule(relu(), "tvm{opt_level=2"))
    recommended = said.rpartition(" reads like ")[2].strip("'")
    assert xrt.XRTModule(relu(), recommended).engines[0] == recommended


def test_gpu_suggests_cuda() -> None:
    said = message(DeviceError, lambda: xrt.XRTModule(relu(), engine="toy", device="gpu"))
    assert said == "unknown device 'gpu'; a device is 'cpu', 'cuda' or 'cuda:N'. Did you mean 'cuda'?"


def test_one_dict_of_inputs_by_name_is_taken_as_keywords() -> None:
    m = xrt.XRTModule(relu(), engine="toy")
    (name,) = (value.name for value in m.inputs)
    np.testing.assert_array_equal(m({name: X}), np.maximum(X, 0))
    said = message(InputError, lambda: m({"image": X}))
    assert said == f"the model has no input 'image'. The model takes 1 input ({name})"


def test_an_array_of_objects_is_called_one() -> None:
    m = xrt.XRTModule(text.parse(BATCHES), engine="toy")
    said = message(InputError, lambda: m(np.array([[1, 2, 3]], dtype=object)))
    assert said == "input 'x' must be float32; got dtype object, whose first element is int; convert it with .astype('float32')"


def test_the_module_prints_its_inputs_and_engines() -> None:
    assert repr(xrt.XRTModule(relu(), engine="toy", strict=True)) == "<XRTModule(x) on toy>"
