"""External data: the tensors of a model that are stored in other files.

Reading maps the files read-only. Nothing outside the model's directory is opened, whatever a location says. No offset or length
is trusted before it is compared with the file.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from onnx import TensorProto

from xrt.errors import ModelError
from xrt.formats.file_mapping import map_file
from xrt.formats.onnx.string_checks import text

__all__ = ["ExternalData"]


class ExternalData:
    """The external files of one model. Each is mapped once; the maps live as long as an array that views them."""

    def __init__(self, directory: Path | None = None, within: Callable[[str], memoryview | None] = lambda location: None) -> None:
        self.directory = directory
        """The model's directory; None for a model that came as bytes or as a message, and so has no files."""
        self._within = within
        """Gives the data of the locations that are places in the model itself."""
        self._maps: dict[str, memoryview] = {}

    @property
    def locations(self) -> tuple[str, ...]:
        """The files that were mapped, as the model names them."""
        return tuple(sorted(self._maps))

    def view(self, tensor: TensorProto, what: str) -> memoryview:
        """Return the tensor's bytes, as long as its header says or up to the end of the file.

        Raises ModelError when the file is missing, is outside the model's directory, or ends before the data does.
        """
        entries = {entry.key: text(entry.value, f"the external data of {what}") for entry in tensor.external_data}
        location = entries.get("location", "")
        if not location:
            raise ModelError(f"{what} is external data without a location")
        if (own := self._within(location)) is not None:
            return own
        if location not in self._maps:
            self._maps[location] = self._map(location, what)
        data = self._maps[location]
        offset = _number(entries, "offset", 0, what)
        length = _number(entries, "length", max(len(data) - offset, 0), what)
        if offset + length > len(data):
            raise ModelError(
                f"{what} is bytes {offset} to {offset + length} of external data file {location!r}, "
                f"which has only {len(data)} bytes"
            )
        return data[offset : offset + length]

    def _map(self, location: str, what: str) -> memoryview:
        path = self._path(location, what)
        try:
            with path.open("rb") as file:
                return map_file(file.fileno(), path)
        except OSError as error:
            raise ModelError(f"{what} is in external data file {location!r}, which cannot be read: {error.strerror}") from error

    def _path(self, location: str, what: str) -> Path:
        if self.directory is None:
            raise ModelError(
                f"{what} is in external data file {location!r}, but the model did not come from a file; load it by its path"
            )
        root = self.directory.resolve()
        try:
            path = (root / location.replace("\\", "/")).resolve()
            is_file = path.is_file()
        except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a name too long, a NUL in it
            raise ModelError(f"{what} is in external data file {location!r}, which is no path: {error}") from None
        if not path.is_relative_to(root):
            raise ModelError(
                f"{what} is in external data file {location!r}, which leads outside the model's directory {str(root)!r}"
            )
        if not is_file:
            raise ModelError(f"{what} is in external data file {location!r}, which is missing from {str(root)!r}")
        return path


def _number(entries: dict[str, str], key: str, default: int, what: str) -> int:
    digits = entries.get(key)
    if digits is None:
        return default
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
        raise ModelError(f"{what} is external data with {key} {digits!r}, which is not a number of bytes")
    return int(digits)
