"""Read a configuration of Triton by Triton's own schema, which `tritonclient` has, and write it as JSON.

python client_config.py config.pbtxt
"""

from __future__ import annotations

import sys
from pathlib import Path

from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2

config = text_format.Parse(Path(sys.argv[1]).read_text(encoding="utf-8"), model_config_pb2.ModelConfig())
sys.stdout.write(json_format.MessageToJson(config, preserving_proto_field_name=True))
