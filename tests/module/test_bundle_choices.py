"""A bundle, like a lock, does not choose what is run: an engine whose options may name files must be named by the caller."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xrt
from tests.cache.saving import chain
from xrt.cache import CompileCache
from xrt.engines import GraphCompiler, option
from xrt.engines.contract import registry
from xrt.errors import BundleError, EngineError, FallbackWarning, OptionError
from xrt.formats.bundle import BundleFile, write_bundle

X = np.arange(4, dtype=np.float32)


def bundle_with(spec: str, path: Path) -> Path:
    """A bundle whose manifest names that engine."""
    with xrt.XRTModule(chain(2), "toy", strict=True, cache=CompileCache(), threads=1) as module:
        module.save(path)
    record = BundleFile(path).record
    for engine in record.facts["engines"]:
        engine["spec"] = spec
    model = BundleFile(path).model("model")
    write_bundle(path, record._replace(programs=()), {"model": model}, {}, {})
    return path


CHOSEN = [
    ("toy{libraries=(nowhere.so)}", "libraries"),
    ("iree{dump_dir=here}", "dump_dir"),
    ("ort{config.session.intra_op.allow_spinning=0}", "config"),
    ("ort{provider_options.CUDAExecutionProvider.device_id=1}", "provider_options"),
]


@pytest.mark.parametrize(("spec", "field"), CHOSEN)
def test_an_engine_whose_options_may_name_files_is_not_made(
    spec: str, field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = bundle_with(spec, tmp_path / "model.xrt")
    monkeypatch.setattr(registry, "create", lambda *_: pytest.fail("it is made"))
    with pytest.raises(BundleError) as caught:
        xrt.load(path)
    assert str(caught.value) == (
        f"cannot load '{path}': the bundle has engine '{spec}', whose {field} may name files or code, and a bundle does not "
        f"choose what is run; pass engine='{spec}' (-e on the command line) if that is what you want"
    )


@pytest.mark.slow
def test_what_is_named_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = f"iree{{dump_dir={tmp_path}/dumps}}"
    path = bundle_with(spec, tmp_path / "model.xrt")
    with xrt.load(path, engine=spec, cache=CompileCache()) as module:
        np.testing.assert_array_equal(module(X), X + 1)
    assert list((tmp_path / "dumps").rglob("*.mlir"))
    library = bundle_with("toy{libraries=(nowhere.so)}", tmp_path / "library.xrt")
    with pytest.warns(FallbackWarning, match=r"native library '.*nowhere\.so' cannot be used: there is no such file"):
        xrt.load(library, engine="toy{libraries=(nowhere.so)}")


def test_naming_what_the_bundle_has_not_is_an_error(tmp_path: Path) -> None:
    path = bundle_with("toy{native=off}", tmp_path / "model.xrt")
    with pytest.raises(OptionError) as caught:
        xrt.load(path, engine=["toy{native=of}"])
    assert str(caught.value) == "engine names 'toy{native=of}'; the bundle has toy{native=off}. Did you mean 'toy{native=off}'?"


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec", ["toy{native=off}", "ort{providers=CPUExecutionProvider}", "tvm{mcpu=x86-64-v3}", "iree{opt_level=1}"]
)
def test_options_that_name_no_file_are_a_bundles_own(spec: str, tmp_path: Path) -> None:
    path = bundle_with(spec, tmp_path / "model.xrt")
    with xrt.load(path, cache=CompileCache()) as module:
        np.testing.assert_array_equal(module(X), X + 1)


@dataclass(frozen=True)
class Declared(GraphCompiler):
    name = "declared"
    text: str = ""
    word: str = option("", names_files=False)
    number: int = option(0, names_files=True)

    def why_not(self, node: Any, function: Any) -> None: ...

    def compile(self, function: Any, context: Any) -> Any: ...


def test_a_field_says_whether_it_names_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "engine_class", lambda name: Declared)
    assert registry.free_options("declared{text=a, word=b, number=3}") == ("number", "text")
    assert registry.why_not_chosen("declared{word=b}", "lock") is None


@pytest.mark.slow
def test_the_command_takes_what_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from xrt.cli import main

    spec = f"iree{{dump_dir={tmp_path}/dumps}}"
    path = bundle_with(spec, tmp_path / "model.xrt")
    for extra, code in (((), 2), (("-e", spec), 0)):
        with pytest.raises(SystemExit) as ended:
            main(["run", str(path), *extra])
        assert (ended.value.code or 0) == code, capsys.readouterr().err
    assert "does not choose what is run" in capsys.readouterr().err


def test_every_text_option_of_the_engines_is_declared() -> None:
    """Free text of XRT's own engines is declared, so that nobody has to guess."""
    import dataclasses

    from xrt.engines.contract.options import NAMES_FILES
    from xrt.engines.contract.spec import field_types, is_bounded

    for name in registry.names():
        try:
            cls = registry.engine_class(name)
        except EngineError:
            continue
        if cls.__module__.startswith("xrt."):
            kinds = field_types(cls)
            for field in dataclasses.fields(cls):
                assert is_bounded(kinds[field.name]) or NAMES_FILES in field.metadata, f"{name}.{field.name}"
