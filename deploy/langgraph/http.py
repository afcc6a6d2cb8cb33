"""`/v1` beside LangGraph's own endpoints: approvals, turns, events, effects, policy, by the same rules."""

from placet.platform import http

app = http()
