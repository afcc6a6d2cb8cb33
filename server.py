"""The process: settings → database → endpoints, and a worker.  `python server.py`, or `placet serve`: the same."""

import sys

from placet.cli import call

if __name__ == "__main__":
    sys.exit(call(["serve", *sys.argv[1:]]))
