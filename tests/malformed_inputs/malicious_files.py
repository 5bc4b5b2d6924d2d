"""Files of arrays and of native kernels written to do harm, as `crafted` has them of everything else."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tests.malformed_inputs.case import Crafted
from tests.malformed_inputs.malicious import no_files


def _npy(header: str, data: bytes = b"", version: int = 1) -> bytes:
    text = header.encode() + b"\n"
    size = len(text).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + size + text + data


def _described(descr: str = "'<f4'", shape: str = "(2,)", order: str = "False") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"


def _zip(members: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def _pickled() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([{"a": 1}], object), allow_pickle=True)
    return file.getvalue()


def arrays() -> Mapping[str, Crafted]:
    """Return files of arrays that announce terabytes, hold pickles, lead elsewhere or expand without end."""
    alone, packed = _alone(), _packed()
    good = _npy(_described(), bytes(8))
    members = {"../x.npy": good, "/etc/x.npy": good, "a\\..\\b.npy": good, "\x01.npy": good}
    return {
        **no_files("x.npy"),
        **{f"{name}, alone": Crafted({"x.npy": content}) for name, content in alone.items()},
        **{f"{name}, packed": Crafted({"x.npz": content}) for name, content in packed.items()},
        "names that lead elsewhere": Crafted({"x.npz": _zip(members)}, refused=False),
    }


def _alone() -> dict[str, bytes]:
    return {
        "terabytes": _npy(_described(shape=f"({1 << 40},)"), bytes(8)),
        "extents whose product overflows": _npy(_described(shape=f"({1 << 40}, {1 << 40}, 0)")),
        "a negative extent": _npy(_described(shape="(-1, -2)"), bytes(8)),
        "an extent that is no number": _npy(_described(shape="('a',)"), bytes(8)),
        "an element of terabytes": _npy(_described(f"'|V{1 << 30}'", "(1,)"), bytes(8)),
        "an element of no bytes": _npy(_described("'|V0'", f"({1 << 40},)")),
        "texts of no characters": _npy(_described("'<U0'", f"({10**9},)")),
        "more than it announces": _npy(_described(shape="(1,)"), bytes(8)),
        "objects": _npy(_described("'|O'", "(1,)"), b"\x80\x04N."),
        "objects in fields": _npy(_described("[('a', '|O')]", "(1,)"), b"\x80\x04N."),
        "a pickle": _pickled(),
        "a bare pickle": b"\x80\x04\x95\x10" + bytes(60),
        "a header of brackets": _npy("(" * 9000, version=2),
        "a header of signs": _npy("-" * 9000 + "1", version=2),
        "a header that calls": _npy("__import__('os').system('true')"),
        "a header of gigabytes": b"\x93NUMPY\x02\x00\xff\xff\xff\x7f" + bytes(50),
        "a later version": _npy(_described(), bytes(8), version=3)[:6] + b"\x09\x00" + bytes(40),
        "too many extents": _npy(_described(shape=f"({'1, ' * 100})"), bytes(4)),
        "a type of a million fields": _npy(_described("[" + "('a', '<f4'), " * 500 + "]"), bytes(8)),
    }


def _packed() -> dict[str, bytes]:
    zeros, alone = 100 << 20, _alone()
    bomb = _npy(_described("'|u1'", f"({zeros},)"), bytes(zeros))
    good = _npy(_described(), bytes(8))
    return {
        "zeros without end": _zip({"x.npy": bomb}, zipfile.ZIP_DEFLATED),
        "a size that is not so": _resized(_zip({"x.npy": good}, zipfile.ZIP_DEFLATED), len(good), 1 << 30),
        "two of one name": _twice(good),
        "terabytes": _zip({"x.npy": alone["terabytes"]}),
        "a pickle": _zip({"x.npy": alone["a pickle"]}),
        "no arrays": _zip({"x.txt": b"hello"}),
        "an archive in an archive": _zip({"x.npz": _zip({"x.npy": good})}),
    }


def _resized(archive: bytes, old: int, new: int) -> bytes:
    """Return the archive with another size announced, in both of the places that tell it."""
    return archive.replace(old.to_bytes(4, "little"), new.to_bytes(4, "little"))


def _twice(content: bytes) -> bytes:
    return _zip({"x.npy": content, "y.npy": content}).replace(b"y.npy", b"x.npy")


# ---------------------------------------------------------------------- native libraries


def libraries() -> Mapping[str, Crafted]:
    """Return what is no library of kernels: wrong files, and a shared library of another kind."""
    name = "kernels.so"
    results = {
        "an ELF head alone": b"\x7fELF",
        "a library of something else": _library(),
        "an archive": b"!<arch>\n" + bytes(100),
        "a script for the linker": b"INPUT(libc.so.6)\n",
    }
    return {**no_files(name), **{k: Crafted({name: v}) for k, v in results.items()}}


def _library() -> bytes:
    """Return a shared library that is none of XRT's: one that NumPy brings."""
    results = sorted(Path(np.__file__).parent.rglob("_simd*.so")) or sorted(Path(np.__file__).parent.rglob("*.so"))
    return results[0].read_bytes() if results else os.fsencode(__file__)
