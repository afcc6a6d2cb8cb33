"""Limits of what one client may send (L5): the size of a body, and how many requests.

Requests are counted in each server process by itself (`limits`, a sliding window), so two processes allow twice as many;
what must hold exactly belongs into the proxy in front.
"""

import math
import time

from limits import RateLimitItem, parse
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from placet.api.errors import BodyTooLarge, TooManyRequests, problem


class Limiter:
    """Counts requests by credential."""

    def __init__(self, rate: str) -> None:
        self.rate: RateLimitItem = parse(rate)
        self._window = SlidingWindowCounterRateLimiter(MemoryStorage())

    async def count(self, credential: str) -> None:
        """Count a request; raises `TooManyRequests` when it is one too many."""
        if await self._window.hit(self.rate, credential):
            return
        stats = await self._window.get_window_stats(self.rate, credential)
        wait = max(1, math.ceil(stats.reset_time - time.time()))
        raise TooManyRequests(f"More than {self.rate}; try again in {wait} s.", retry_after=wait)


class BodyLimit:
    """Refuse a body of more than `limit` bytes before it is read, or where its length was not said, while it is."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self.app = app
        self.limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        announced = Headers(scope=scope).get("content-length", "")
        if announced.isdigit() and int(announced) > self.limit:
            error = BodyTooLarge(self.limit)
            await problem(413, error.code, error.detail)(scope, receive, send)
            return
        seen = 0

        async def receiving() -> Message:
            nonlocal seen
            message = await receive()
            if message["type"] == "http.request":
                seen += len(message.get("body", b""))
                if seen > self.limit:
                    raise BodyTooLarge(self.limit)
            return message

        await self.app(scope, receiving, send)
