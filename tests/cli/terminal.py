"""A person at a terminal: a command on a pseudo-terminal, and what is typed when a question stands there."""

import os
import pty
import select
import struct
import termios
import time
from collections.abc import Mapping
from fcntl import ioctl
from pathlib import Path

CTRL_C = "\x03"
PATIENCE = 200.0  # seconds


def at_a_terminal(
    command: list[str | Path], environment: Mapping[str, str], *typed: tuple[str, str], columns: int = 100
) -> tuple[int, str]:
    """Run `command`; each of `typed` is (what has to be shown first, what is typed then, with Enter unless it is a
    control character). Returns exit code and everything that was shown."""
    child, terminal = pty.fork()
    if child == 0:
        os.execvpe(command[0], [str(part) for part in command], dict(environment))
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 45, columns, 0, 0))
    shown, seen, rest = "", 0, list(typed)
    deadline = time.monotonic() + PATIENCE
    try:
        while time.monotonic() < deadline:
            if not select.select([terminal], [], [], 1.0)[0]:
                continue
            try:
                data = os.read(terminal, 65536)
            except OSError:  # the other end is closed
                break
            if not data:
                break
            shown += data.decode(errors="replace")
            if rest and rest[0][0] in shown[seen:]:
                seen = len(shown)
                keys = rest.pop(0)[1]
                os.write(terminal, keys.encode() if keys == CTRL_C else f"{keys}\n".encode())
        else:
            os.kill(child, 9)
    finally:
        _, status = os.waitpid(child, 0)
        os.close(terminal)
    assert not rest, f"never shown: {rest[0][0]!r} in\n{shown}"
    return os.waitstatus_to_exitcode(status), shown
