# Two commands: `make demo` and `make test`. They need Python 3.11, 3.12 or 3.13 with venv, and make; the rest comes by
# itself into .venv (and .uv, where no uv is installed), once, and again only when the lock file or the folder changes.

export UV_PROJECT_ENVIRONMENT := .venv
export UV_PYTHON_DOWNLOADS := never
unexport VIRTUAL_ENV PYTHONHOME PYTHONPATH PYTHONDONTWRITEBYTECODE
ARGS ?=
PYTHON ?=
LOCKED := pyproject.toml uv.lock $(wildcard .python-version)
FITS := import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))

.PHONY: help setup demo test check crash soak notebooks clean

help:  ## say what there is
	@sed -n 's/^\([a-z]*\):.*## /  make \1	/p' Makefile

setup: .venv/synced  ## bring what is missing; leaves .venv/bin/placet
	@.venv/bin/python -c 1 2>/dev/null && [ "$$(cat .venv/synced)" = "$$PWD" ] || \
	    { rm -rf .venv; $(MAKE) --no-print-directory .venv/synced; }

demo: setup  ## the main job, shown (ARGS="--crash", "--drift", "--seed-only", "--decision reject")
	@.venv/bin/placet demo $(ARGS)

test: setup  ## all tests, the notebooks too (ARGS="-k name")
	@.venv/bin/python -m pytest $(ARGS)

check: setup  ## style, types, and who may import whom
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports

crash: setup  ## workers killed, cut off and overtaken at every point (ARGS="--only overtaken --every 10")
	@.venv/bin/python -m tests.crash $(ARGS)
	@PLACET_RACES=25 .venv/bin/python -m pytest tests/crash/test_races.py -n 2

soak: setup  ## the same by chance, for DURATION=600 seconds
	@.venv/bin/python -m tests.crash.soak $(if $(DURATION),--seconds $(DURATION)) $(ARGS)

notebooks: setup  ## run the notebooks and keep what they print
	@.venv/bin/placet db start
	@.venv/bin/jupyter-execute --inplace notebooks/*.ipynb

clean:  ## remove what `make` brought and what the tools left; never data
	rm -rf .venv .uv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp holds the folder it was made in: an environment does not work in another one. uv trusts what the system
# trusts, as pip does (a company's proxy), and keeps its cache here only where the account has no home. What it installs is
# compiled at once: langgraph is much to compile, and a worker, a demo or a test starts many processes.
.venv/synced: $(LOCKED)
	@set -eu; \
	python=; \
	for one in "$(PYTHON)" python3.13 python3.12 python3.11 python3 python; do \
	    [ -z "$$one" ] || ! "$$one" -c '$(FITS)' 2>/dev/null || { python=$$one; break; }; \
	done; \
	[ -n "$$python" ] || { echo "Placet needs Python 3.11, 3.12 or 3.13 with venv (on Debian: apt install python3-venv)." \
	    "None was found; name one with make PYTHON=/path/to/python3." >&2; exit 1; }; \
	case "$$(uv --version 2>/dev/null)" in \
	    "uv 0.9."*|"uv 0.1"[0-3].*) uv=uv ;; \
	    *) uv=.uv/bin/uv; \
	       "$$uv" --version >/dev/null 2>&1 || { \
	           echo "Bringing uv into .uv …"; \
	           rm -rf .uv; "$$python" -m venv .uv; .uv/bin/python -m pip install -q 'uv>=0.9,<0.14'; } ;; \
	esac; \
	[ ! -e /etc/ssl/certs/ca-certificates.crt ] || export UV_SYSTEM_CERTS=true UV_NATIVE_TLS=true; \
	[ -w "$${HOME:-/nonexistent}" ] || export UV_CACHE_DIR=.uv/cache; \
	if .venv/bin/python -c '$(FITS)' 2>/dev/null && [ "$$(cat .venv/synced 2>/dev/null)" = "$$PWD" ]; then \
	    "$$uv" sync --frozen --compile-bytecode; \
	else \
	    rm -rf .venv; "$$uv" sync --frozen --compile-bytecode --python "$$python"; \
	fi; \
	printf '%s' "$$PWD" > .venv/synced
