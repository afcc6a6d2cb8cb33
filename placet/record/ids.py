"""Identities that are derived, so that a node that runs again finds its rows instead of making new ones."""

from uuid import UUID, uuid5

_NAMESPACE = UUID("6f0d0d7c-3b1e-5c55-9a3e-1d8f6c9c2a11")


def item_id(thread_id: UUID, turn_id: UUID, step: int, ordinal: int) -> UUID:
    """One call of one model turn; providers reuse call ids, so theirs is no part of it."""
    return uuid5(_NAMESPACE, f"item:{thread_id}:{turn_id}:{step}:{ordinal}")


def approval_id(item: UUID, ask: int) -> UUID:
    """The n-th ask for a call."""
    return uuid5(_NAMESPACE, f"approval:{item}:{ask}")


def operation_id(item: UUID, arguments_hash: bytes) -> UUID:
    """A retry keeps the operation, changed arguments change it."""
    return uuid5(_NAMESPACE, f"operation:{item}:{arguments_hash.hex()}")


def undo_id(operation: UUID) -> UUID:
    """Taking an operation back is an operation of its own; there is one per operation."""
    return uuid5(_NAMESPACE, f"undo:{operation}")
