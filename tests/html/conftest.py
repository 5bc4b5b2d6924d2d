"""The fixture of the browser that opens the pages."""

from tests.bench.test_page_in_browser import browser

__all__ = ["browser"]
