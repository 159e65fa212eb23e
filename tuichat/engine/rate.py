"""How fast a load goes.

Owns the estimate of rate and remaining time. Refuses to know what is counted. Invariant: an
estimate is made of the last seconds only, so a stalled download shows as one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

WINDOW_S = 5.0


class RateMeter:
    """Rate and remaining time of a counter that restarts with each stage."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._stage = ""
        self._samples: deque[tuple[float, float]] = deque()

    def update(
        self, stage: str, done: float, total: float | None
    ) -> tuple[float | None, float | None]:
        """(units per second, seconds remaining) after another reading; None while unknown."""
        now = self._clock()
        if stage != self._stage or (self._samples and done < self._samples[-1][1]):
            self._stage = stage
            self._samples.clear()
        self._samples.append((now, done))
        while now - self._samples[0][0] > WINDOW_S and len(self._samples) > 2:
            self._samples.popleft()
        then, before = self._samples[0]
        if now <= then or done <= before:
            return None, None
        rate = (done - before) / (now - then)
        return rate, None if total is None else max(0.0, (total - done) / rate)
