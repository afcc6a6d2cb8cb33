"""The graph for LangGraph's server, which loads each of these files by itself; what they share is in the package."""

from placet.platform import graph

__all__ = ["graph"]
