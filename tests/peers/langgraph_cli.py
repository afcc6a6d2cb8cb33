"""LangGraph's own server, in an environment of its own: it needs older versions of some of what we test with."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from filelock import FileLock

PACKAGE = "langgraph-cli[inmem]==0.4.40"
ROOT = Path(__file__).parent.parent.parent


class NotThere(Exception):
    """It cannot be installed here: the tests with it are skipped, and say so."""


def install() -> Path:
    """The program `langgraph`, installed once per machine; the code that it serves comes by PYTHONPATH."""
    folder = Path(tempfile.gettempdir()) / f"placet-peers-{os.getuid()}-{PACKAGE.rpartition('=')[2]}"
    python = folder / "bin" / "python"
    with FileLock(folder.with_suffix(".lock")):
        if not (folder / "done").exists():
            try:
                for command in (
                    [sys.executable, "-m", "venv", str(folder)],
                    [str(python), "-m", "pip", "install", "--quiet", str(ROOT), PACKAGE],
                ):
                    subprocess.run(command, check=True, capture_output=True, timeout=400)
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
                raise NotThere(f"{PACKAGE} could not be installed: {str(error.stderr or error)[-300:]}") from None
            (folder / "done").touch()
    return folder / "bin" / "langgraph"
