"""The checkpoints for LangGraph's server: ours, read only."""

from placet.platform import checkpointer

__all__ = ["checkpointer"]
