"""Every notebook runs from its first cell to its last, and what is committed of it was really seen."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
async def test_o1_a_notebook_claims_its_threads_itself(
    path: Path, database_url: str, owner_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cells run in a kernel of their own on a fresh database, and print what the committed notebook shows."""
    monkeypatch.setenv("PLACET_DATABASE_URL", database_url)
    monkeypatch.setenv("PLACET_OWNER_DATABASE_URL", owner_url)
    monkeypatch.setenv("PLACET_HOME", str(tmp_path))
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "PLACET_MODEL"):
        monkeypatch.delenv(name, raising=False)
    committed = nbformat.read(path, as_version=4)
    ran = nbformat.read(path, as_version=4)
    await NotebookClient(ran, timeout=100, kernel_name="python3").async_execute()

    assert _said(ran) == _said(committed)


def _said(notebook: nbformat.NotebookNode) -> str:
    """What the cells printed, without what is new each time: receipts and addresses."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    printed = "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stdout")
    return re.sub(r"batch_[0-9a-f]+", "batch_…", printed)
