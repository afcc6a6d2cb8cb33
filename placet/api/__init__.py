"""The HTTP faces: LangGraph's endpoints and our own under `/v1`. Everything stands on the record and on the graph's entry
points; nothing here executes a call."""
