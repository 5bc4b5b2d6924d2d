"""File and message formats: conversion between files, bytes or protobuf messages and Functions or Plans.

Only this package uses protobuf and reads or writes model files. It runs no models and does not depend on any engine.
"""
