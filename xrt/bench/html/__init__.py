"""A Report as one HTML page for a reader who was not there: what was found, figures, timelines, plans, circumstances.

A Report comes in, text goes out. Nothing is measured or judged here, no file is written, and whatever a user named is escaped.
"""

from xrt.bench.html.document import cell, page

__all__ = ["cell", "page"]
