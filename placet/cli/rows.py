"""Rows as `--json` prints them: what people and machines may know, without keys and digests; bytes as the JSON they are."""

from typing import Any

from placet.cli.output import plain
from placet.record import canonical
from placet.record.approvals import Approval
from placet.record.effects import Effect
from placet.record.items import Item

HIDDEN = frozenset({"payload", "key_id", "digest", "arguments_hash"})
Row = dict[str, Any]


def approval(asked: Approval) -> Row:
    """What it shows, what would run, and the hash that a decision about it carries."""
    content = asked.content
    return _row(asked) | {"arguments": content["arguments"], "facts": content["facts"]}


def effect(sent: Effect) -> Row:
    """What was sent, with the arguments that ran and the receipt."""
    return _row(sent) | {"arguments": canonical.parse(sent.arguments)}


def item(call: Item) -> Row:
    """One call of a turn with its verdict and its result."""
    return _row(call) | {"arguments": canonical.parse(call.arguments) if call.arguments is not None else None}


def _row(row: object) -> Row:
    return {name: value for name, value in plain(row).items() if name not in HIDDEN}
