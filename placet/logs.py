"""Logs: one line each, on standard error unless told otherwise; JSON where a machine reads. Never local variables, which
may hold secrets (V4)."""

import logging
import sys
from typing import TextIO

import structlog


def configure(*, json: bool = False, level: int = logging.INFO, to: TextIO | None = None) -> None:
    """Set structlog up for this process; `to` is standard error when not given."""
    to = to or sys.stderr
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if json
        else structlog.dev.ConsoleRenderer(colors=to.isatty(), exception_formatter=structlog.dev.plain_traceback)
    )
    processors: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if json:
        processors.append(structlog.processors.format_exc_info)
    structlog.configure(
        processors=[*processors, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=to),
        cache_logger_on_first_use=False,
    )
