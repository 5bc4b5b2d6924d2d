"""OpenVINO's errors as one sentence for a person."""

from __future__ import annotations

from xrt.engines.toolkit.error_text import remove_noise, shorten

__all__ = ["summarize_error"]

_NOISE = (
    r"Exception from \S+:\d+: ",
    r"Check '.*?' failed at \S+:\d+: ",
    r"FrontEnd API failed with \w+: ",
    r"While validating (?:ONNX )?node '.*?'(?: with friendly_name '.*?')?: ",
    r"Errors during ONNX translation: ",
    r"Model wasn't fully converted\. Summary: -- ",
    r"To facilitate the conversion of unsupported operations.*$",
)


def summarize_error(error: BaseException, limit: int = 300) -> str:
    r"""Return the sense of one of OpenVINO's errors: on one line, without source files and checks.

    >>> summarize_error(RuntimeError("Exception from src/core.cpp:105:\nCheck 'ok' failed at src/x.cpp:1:\nNo rule for: NoSuch"))
    'No rule for: NoSuch'
    """
    return shorten(remove_noise(str(error), _NOISE) or type(error).__name__, limit)
