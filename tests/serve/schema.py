"""Compare requests and responses of HTTP with the schema of the Open Inference Protocol, whatever the test is about."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

DOCUMENT = json.loads(Path(__file__).with_name("open_inference.schema.json").read_text())
LENGTH = "inference-header-content-length"
LONGEST = 1 << 16
"""Bytes of a JSON that is validated: the schema asks each number of it what it is."""
FORMS = {
    ("v2",): "metadata_server_response",
    ("v2", "health", "live"): "live_server_response",
    ("v2", "health", "ready"): "ready_server_response",
    ("v2", "models", "*"): "metadata_model_response",
    ("v2", "models", "*", "ready"): "ready_model_response",
    ("v2", "models", "*", "infer"): "inference_response",
}
"""The form of a response with status 200, by the path without a version."""
EXTENSION = re.compile(r"metrics|v2/models|v2/models/stats|v2/models/.+/(config|stats)|v2/repository/.+")
"""Paths that are not the protocol's own."""
IS_READY = ("ready_server_response", "ready_model_response")


@lru_cache
def make_validator(name: str) -> Draft202012Validator:
    """Return what validates one of the forms of the schema."""
    return Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": DOCUMENT["$defs"]})


def list_faults(name: str, document: Any) -> list[str]:
    """Return where a document differs from a form."""
    return [f"{error.json_path}: {error.message[:300]}" for error in make_validator(name).iter_errors(document)]


def find_form(path: str) -> str | None:
    """Return the form of a response with status 200 at a path; None where the protocol has none."""
    parts = path.strip("/").split("/")
    if parts[:2] == ["v2", "models"] and len(parts) > 2:
        parts[2] = "*"
    if parts[3:4] == ["versions"]:
        del parts[3:5]
    return FORMS.get(tuple(parts))


def check_reply(method: str, path: str, status: int, headers: Mapping[str, str], body: bytes) -> str:
    """Assert that a response is the protocol's; return the name of its form."""
    form = find_form(path)
    if form is None and status == 200:
        assert EXTENSION.fullmatch(path.strip("/"))
        return "extension"
    length = int(headers[LENGTH]) if LENGTH in headers else len(body)
    assert 0 < length <= len(body)
    wanted = "application/octet-stream" if LENGTH in headers else "application/json"
    assert headers["content-type"] == wanted
    document = json.loads(body[:length])
    if status != 200:
        assert 400 <= status < 600
        if form not in IS_READY or "error" not in document or len(document) == 1:
            form = "error_response"
        else:
            assert document["ready"] is False
    elif form in IS_READY:
        assert document["ready"] is True
        assert "error" not in document
    assert form is not None
    if length <= LONGEST:
        assert list_faults(form, document) == []
    if form == "inference_response":
        _check_outputs(document, len(body) - length, LENGTH in headers)
    return form


def _check_outputs(document: Any, rest: int, is_binary: bool) -> None:
    sizes = [one["parameters"]["binary_data_size"] for one in document["outputs"] if "data" not in one]
    assert (sum(sizes), bool(sizes)) == (rest, is_binary)
    for one in document["outputs"]:
        if "data" in one:
            assert sum(1 for _ in _flatten(one["data"])) == math.prod(one["shape"])


def _flatten(data: Any) -> Iterator[Any]:
    for one in data:
        yield from _flatten(one) if isinstance(one, list) else (one,)


def is_request(headers: Mapping[str, str], body: bytes) -> bool:
    """Return whether the JSON of a body is a request by the schema. What the tensors hold is not part of it."""
    named = {name.lower(): value for name, value in headers.items()}
    text = named.get(LENGTH, str(len(body)))
    if not (text.isdigit() and int(text) <= len(body)):
        return False
    try:
        return not list_faults("inference_request", json.loads(body[: int(text)].decode("utf-8", "replace")))
    except (ValueError, RecursionError):
        return False
