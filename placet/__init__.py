"""The machinery behind the rooms that a team reads and edits: `graph`, `policies` and `tools`."""

import os

# V6: before any import of langgraph, whose serializer reads it once; a planted checkpoint then runs no code when loaded.
os.environ["LANGGRAPH_STRICT_MSGPACK"] = "true"
