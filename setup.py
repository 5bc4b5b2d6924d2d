"""Build of XRT. Everything that can be said without code stands in pyproject.toml.

XRT is pure Python today: an install needs neither a compiler nor protoc. Native kernels, when they come, are built by
CMakeLists.txt and are optional; this is where setuptools will call CMake.
"""

from setuptools import setup

setup()
