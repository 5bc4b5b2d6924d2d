"""Variants of a bundle: several processors and thread budgets over one set of weights, the right one chosen at the load."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xrt
from tests.cli.test_cache_and_bundles import call
from tests.module.test_bundle import X, perceptron
from xrt.cache import CompileCache, signature
from xrt.errors import BundleError, FallbackWarning
from xrt.formats import onnx
from xrt.formats.bundle import BundleFile
from xrt.formats.container import Container
from xrt.graph import Function
from xrt.module import saving, variants
from xrt.module.module import XRTModule
from xrt.module.variants import SECTION, read_variants

HERE = "Linux x86_64 SSE AVX; Processor A 0123"
OTHER = "Linux x86_64 SSE AVX AMX; Processor B 4567"


class Machine:
    """The processor that signatures name, in place of this one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.name = HERE
        for module in (signature, variants, saving):  # imported before: a first import would keep what is patched
            monkeypatch.setattr(module, "describe_machine", lambda: self.name)
        monkeypatch.setattr("xrt.runtime.threads.available_cores", lambda: 4)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.xrt"


def save(path: Path, engine: Any = "ort", threads: int = 2, *, function: Function | None = None, **options: Any) -> None:
    made = xrt.XRTModule(function or perceptron(), engine, strict=True, threads=threads, cache=CompileCache())
    with made as module:
        module.save(path, X, **options)


def load(path: Path, **options: Any) -> XRTModule:
    """Load a bundle without any warning, that is without a compile."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return xrt.load(path, cache=CompileCache(), **options)


def list_served(path: Path, *engines: str, **options: Any) -> tuple[str, int]:
    """Return the first engine of the module that is loaded, and its threads; its results are right, and come from the bundle."""
    with load(path, strict=True, **options) as module:
        np.testing.assert_allclose(module(X), xrt.XRTModule(perceptron(), "toy")(X), rtol=1e-4, atol=1e-6)
        assert "its compiled form comes from the bundle" in str(module.explain())
        report = module.run_self_test()
        assert report is not None
        return module.engines[0], module.threads


@pytest.mark.slow
def test_the_variant_of_the_processor_is_chosen(machine: Machine, path: Path) -> None:
    save(path, "ort")
    machine.name = OTHER
    save(path, "openvino", add=True)
    assert list_served(path) == ("openvino", 2)
    machine.name = HERE
    assert list_served(path) == ("ort", 2)
    assert [(one.machine, one.threads, one.engines) for one in read_variants(BundleFile(path))] == [
        (HERE, 2, ("ort",)),
        (OTHER, 2, ("openvino",)),
    ]


def test_weights_are_kept_once(machine: Machine, path: Path, tmp_path: Path) -> None:
    save(path)
    weights = {name for name in Container.open(path, "bundle").sections if name.startswith("weight:")}
    machine.name = OTHER
    save(path, add=True)
    both = Container.open(path, "bundle").sections
    assert {name for name in both if name.startswith("weight:")} == weights
    assert sum(name.startswith("compiled:") for name in both) == 2
    assert sum(name == "model" for name in both) == 1


def test_none_for_the_processor_is_said_and_the_first_compiled_again(machine: Machine, path: Path) -> None:
    save(path, threads=2)
    machine.name = OTHER
    save(path, threads=1, add=True)
    machine.name = "Linux aarch64 NEON; Processor C 89ab"
    text = (
        rf"^{str(path)!r}: none of its 2 variants is for this processor, Processor C 89ab: they are for Processor A 0123, "
        r"2 threads; Processor B 4567, 1 thread; 1 region\(s\) must be compiled again on this machine, first xrt_ort_0: "
        rf"machine was {HERE!r} and is "
    )
    with pytest.raises(BundleError, match=text):
        xrt.load(path, strict=True, cache=CompileCache())
    with pytest.warns(FallbackWarning, match=text):
        module = xrt.load(path, cache=CompileCache())
    np.testing.assert_allclose(module(X), xrt.XRTModule(perceptron(), "toy")(X), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_the_variant_of_the_thread_budget_is_chosen(machine: Machine, path: Path) -> None:
    """The exact one, else one that serves the budget: the code of tvm for one thread does not serve two."""
    save(path, "ort", threads=1)
    save(path, "tvm", threads=2, add=True)
    assert list_served(path, threads=1) == ("ort", 1)
    assert list_served(path, threads=2) == ("tvm", 2)
    assert list_served(path, threads=3)[1] == 3
    save(path, "tvm", threads=1, add=True)  # in place of ort's
    assert list_served(path, threads=1) == ("tvm", 1)
    assert list_served(path, threads=4) == ("tvm", 4)
    save(path, "tvm", threads=1)
    machine.name = OTHER
    save(path, add=True)
    machine.name = HERE
    with pytest.raises(BundleError, match="threads was '1' and is '2'"):
        xrt.load(path, threads=2, strict=True, cache=CompileCache())


@pytest.mark.slow
def test_without_a_budget_it_is_that_of_the_process(machine: Machine, path: Path) -> None:
    save(path, "ort", threads=1)
    save(path, "openvino", threads=4, add=True)
    assert list_served(path) == ("openvino", 4)


@pytest.mark.slow
def test_a_variant_for_the_same_is_replaced_with_all_that_only_it_had(machine: Machine, path: Path) -> None:
    save(path, "ort", threads=1)
    machine.name = OTHER
    save(path, "ort", add=True)
    before = {*Container.open(path, "bundle").sections}
    for name in (HERE, OTHER):
        machine.name = name
        for engine in ("openvino", "ort"):
            save(path, engine, threads=1 if name == HERE else 2, add=True)
    assert {*Container.open(path, "bundle").sections} == before
    assert list_served(path) == ("ort", 2)
    machine.name = HERE
    assert list_served(path) == ("ort", 1)


@pytest.mark.slow
def test_a_bundle_of_another_model_is_not_extended(machine: Machine, path: Path) -> None:
    save(path)
    whole = path.read_bytes()
    other = perceptron().replace(constants={**perceptron().constants, "v": perceptron().constants["w"]})
    with pytest.raises(BundleError) as raised:
        save(path, function=other, add=True)
    text = "it is the bundle of another model; save this one to a file of its own"
    assert str(raised.value) == f"cannot add a variant to {str(path)!r}: {text}"
    assert path.read_bytes() == whole
    with pytest.raises(BundleError, match="there is no bundle"):
        save(path.with_name("none.xrt"), add=True)


@pytest.mark.slow
def test_the_self_test_does_not_read_what_is_for_other_machines(machine: Machine, path: Path) -> None:
    save(path)
    machine.name = OTHER
    save(path, "openvino", add=True)
    machine.name = HERE
    sections = Container.open(path, "bundle").sections
    whole = path.read_bytes()
    unread = []
    for name, section in sections.items():
        damaged = bytearray(whole)
        damaged[section.offset + section.size // 2] ^= 1
        path.write_bytes(damaged)
        try:
            load(path).run_self_test()
        except BundleError as error:
            assert "the checksum of its section" in str(error)  # noqa: PT017  # which sections are read is the question
        else:
            unread.append(name.partition(":")[0])
            assert list_served(path) == ("ort", 2)
    assert {"compiled", "function@1", "manifest@1", "plan@1"} <= {*unread}
    assert all(kind == "compiled" or kind.endswith("@1") for kind in unread)


WRONG = [b"", b"[1]", b'[{"suffix": 1}]', b'[{"suffix":"","machine":"","threads":"2","engines":[]}]', b"[" * 100_000]


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("text", WRONG)
def test_a_list_of_variants_that_is_none_is_an_error(text: bytes, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xrt.module.saving.dump_variants", lambda variants: text)
    save(path)
    with pytest.raises(BundleError, match=f"^cannot load {str(path)!r}: its list of variants cannot be read: "):
        xrt.load(path)


@pytest.mark.slow
def test_the_command_adds_a_variant(machine: Machine, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(perceptron(), tmp_path / "model.onnx")
    name = str(path)
    assert call(capsys, "compile", str(tmp_path / "model.onnx"), "-e", "ort", "--strict", "--threads", "1", "-o", name)[0] == 0
    machine.name = OTHER
    assert call(capsys, "compile", name, "-e", "openvino", "--strict", "--threads", "1", "-o", name, "--add")[0] == 0
    facts = json.loads(call(capsys, "inspect", name, "--json")[1])
    assert facts["variants"] == [
        {"processor": HERE, "threads": 1, "engines": ["ort"]},
        {"processor": OTHER, "threads": 1, "engines": ["openvino"]},
    ]
    assert facts["self_test"] is True
    assert "Processor B 4567" in call(capsys, "inspect", name)[1]
    assert "openvino: 1 region on 1 thread" in call(capsys, "run", name, "--strict")[1]
    assert SECTION in BundleFile(path).sections
