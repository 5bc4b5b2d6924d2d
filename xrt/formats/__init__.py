"""File formats: read and write Functions and Plans as files, bytes or protobuf messages.

Only this package uses protobuf and reads or writes model files. It runs no models and does not depend on any engine.
"""
