"""Damaged and malicious files for every reader of XRT.

A reader must return or raise an XRTError with a text. It runs in a child process, so that a crash, a hang and excessive memory
are findings too.
"""
