"""The browser in which pages are looked at."""

from tests.bench.test_page_in_browser import browser

__all__ = ["browser"]
