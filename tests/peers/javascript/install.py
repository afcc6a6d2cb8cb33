"""The official JavaScript SDK from npm, installed once per machine into a temporary folder; no file of ours depends on it."""

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any
from uuid import uuid4

from filelock import FileLock

PACKAGE = "@langchain/langgraph-sdk@1.15.0"
BESIDE = "@langchain/core@^1"  # what it asks for beside itself


class NotThere(Exception):
    """Node or npm is missing, or npm cannot be reached: the tests with it are skipped, and say so."""


def install() -> Path:
    """A folder in which Node finds the SDK; raises `NotThere`."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise NotThere("node and npm are not installed")
    folder = Path(tempfile.gettempdir()) / f"placet-peers-{os.getuid()}-{PACKAGE.rpartition('@')[2]}"
    folder.mkdir(exist_ok=True)
    with FileLock(folder / "install.lock"):
        if not (folder / "done").exists():
            (folder / "package.json").write_text('{"private": true, "type": "module"}')
            command = ["npm", "install", "--no-audit", "--no-fund", PACKAGE, BESIDE]
            try:
                subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=180)
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
                raise NotThere(f"npm could not install {PACKAGE}: {str(error.stderr or error)[-300:]}") from None
            (folder / "done").touch()
    return folder


async def drive(url: str, keys: dict[str, str], **more: Any) -> dict[str, Any]:
    """What `drive.mjs` says in the end, run beside the installed SDK; raises `NotThere`."""
    folder = await asyncio.to_thread(install)
    script = folder / f"drive-{uuid4()}.mjs"
    shutil.copy(Path(__file__).parent / "drive.mjs", script)
    try:
        process = await asyncio.create_subprocess_exec(
            "node", str(script), json.dumps({"url": url, **keys, **more}),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, error = await asyncio.wait_for(process.communicate(), 120)
    finally:
        script.unlink()
    assert process.returncode == 0, error.decode()[-3000:]
    said: dict[str, Any] = json.loads(out.decode().splitlines()[-1])
    return said
