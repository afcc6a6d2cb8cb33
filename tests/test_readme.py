"""The README: its code runs, its picture is drawn from the graph, and its commands exist."""

import re
from pathlib import Path

import graph
from policies import ToolSchema, compile_rules

README = (Path(__file__).parent.parent / "README.md").read_text()


def block(language: str) -> str:
    """The first block of that language."""
    found = re.search(rf"```{language}\n(.*?)```", README, re.DOTALL)
    assert found is not None
    return found[1]


async def test_p7_the_tool_and_the_rule_of_the_readme_work_together() -> None:
    """Raising a price is automatic, lowering it asks finance: the README's rule on the README's tool."""
    scope: dict[str, object] = {}
    exec(block("python"), scope)
    tool = scope["SetPrice"]()  # type: ignore[operator]
    policy = compile_rules(
        block("toml"),
        source="README.md",
        schemas=[ToolSchema(tool.name, tool.tier.value, tool.Arguments, tool.Facts)],
    )

    async def verdict(minor: int) -> tuple[str, str | None]:
        arguments = tool.Arguments(sku="MUG-1", minor=minor)
        decided = await policy.decide(tool.name, arguments, await tool.facts(arguments))
        return decided.kind, decided.duty

    assert await verdict(1990) == ("auto", None)
    assert await verdict(990) == ("ask", "finance")
    receipt = await tool.execute(tool.Arguments(sku="MUG-1", minor=990), "operation")
    assert receipt.summary == "MUG-1 costs 990."


def test_the_picture_of_the_readme_is_the_graph() -> None:
    """Whoever changes the graph changes the picture: `python -c 'import graph; print(graph.picture())'`."""
    assert block("mermaid").strip() == graph.picture().strip()


def test_every_command_of_the_readme_exists() -> None:
    """`make …` names a target, and every file that is linked to is there."""
    root = Path(__file__).parent.parent
    targets = re.findall(r"^([a-z]+):", (root / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"(?:\$ |`)make ([a-z]+)", README)) <= set(targets)
    for link in re.findall(r"\]\((?!http)([^)#]+)", README):
        assert (root / link).exists(), link
