"""Tools of one's own, named by PLACET_TOOLS: the README's, under the README's rules beside the shop's."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Ran
from tests.test_readme import block

Placet = Callable[..., Ran]
TAKEN = '\n\nclass Taken(SetPrice):\n    """Another\'s name."""\n\n    name = "search_orders"\n'
RULES = Path(__file__).parents[2] / "policies" / "rules.toml"


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module of tools and a rules file."""
    (tmp_path / "prices.py").write_text(block("python") + "\n\ndef tools(settings):\n    return [SetPrice()]\n" + TAKEN)
    (tmp_path / "rules.toml").write_text(RULES.read_text() + "\n" + block("toml"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PLACET_RULES", str(tmp_path / "rules.toml"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return tmp_path


@pytest.mark.parametrize("target", ["prices:SetPrice", "prices:tools"])
def test_p7_own_tools_are_ruled_like_all_others(
    placet: Placet, own: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    """Named as a class or by a function: a lower price asks finance, a higher one runs by itself."""
    monkeypatch.setenv("PLACET_TOOLS", target)
    assert placet("policy", "check", "--json").json["rules"]["set_price"] == 2

    def explained(minor: int) -> str:
        call = f'{{"sku": "MUG-1", "minor": {minor}}}'
        return str(placet("policy", "explain", "set_price", call, "--json").json["verdict"]["kind"])

    assert (explained(900), explained(2000)) == ("ask", "auto")


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("nowhere:SetPrice", "No module named 'nowhere'"),
        ("prices:Nothing", "has no attribute 'Nothing'"),
        ("prices:Taken", "there is a tool of that name"),
        ("prices", "expected module:Class of a tool"),
        ("prices:PRICES", "expected module:Class of a tool"),
        ("tools.shop.refund_payments:RefundPayments", "expected module:Class"),
    ],
)
def test_p7_what_is_no_tool_stops_the_start(
    placet: Placet, own: Path, monkeypatch: pytest.MonkeyPatch, target: str, says: str
) -> None:
    """The sentence names what was given and what was expected."""
    monkeypatch.setenv("PLACET_TOOLS", target)
    shown = placet("policy", "check", "--json")
    assert shown.error["code"] == "tools_misconfigured"
    assert target in shown.error["message"] or "search_orders" in shown.error["message"]
    assert says in shown.error["message"]


def test_p7_a_tool_of_one_s_own_needs_a_rule(placet: Placet, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one the start is refused, as for any known tool."""
    monkeypatch.setenv("PLACET_TOOLS", "prices:SetPrice")
    monkeypatch.setenv("PLACET_RULES", str(RULES))
    shown = placet("policy", "check", "--json")
    assert "set_price" in shown.error["message"]
