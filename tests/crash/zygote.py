"""Forks worker processes that have everything imported, since importing takes seconds and a kill matrix needs thousands.

It has no event loop, no connection and no thread of its own, so that a fork of it is as good as a new process. Each line
on its standard input is what a child is to be (see `child.Spec`); it ends, as its children do, with whoever started it.
"""

import asyncio
import gc
import json
import os
import signal
import sys

from tests.crash.child import Child, Spec


def main() -> None:
    """Fork for each line."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are reaped by the system
    gc.collect()
    gc.freeze()
    for line in iter(sys.stdin.readline, ""):
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(0)
            try:
                asyncio.run(Child(Spec(**json.loads(line))).live())
            finally:
                os._exit(0)


if __name__ == "__main__":
    main()
