"""Formats: to and from a Function or a Plan.

Files, bytes and messages come in, and Functions go out, or the other way round. This is the only home of protobuf, and
where models touch files; nothing here runs a model or knows an engine.
"""
