"""How fast samples are done, and how long the rest takes."""

import math
from dataclasses import dataclass
from datetime import timedelta

# What lies further back than this counts little: the rate follows a change within some minutes.
_MEMORY_SECONDS = 120.0


@dataclass(frozen=True)
class Throughput:
    """A rate as an exponential average over time: decayed samples by decayed seconds.

    So the first step already gives a rate without a bias, and a step counts by the time that it took.

    Attributes:
        samples: decayed sum of samples.
        seconds: decayed sum of the time that they took.
    """

    samples: float = 0.0
    seconds: float = 0.0

    def after(self, samples: int, seconds: float) -> "Throughput":
        """What it is when so many samples more were done in so many seconds."""
        kept = math.exp(-max(seconds, 0.0) / _MEMORY_SECONDS)
        return Throughput(self.samples * kept + samples, self.seconds * kept + max(seconds, 0.0))

    @property
    def rate(self) -> float | None:
        """Samples in a second; None while nothing is known."""
        return self.samples / self.seconds if self.samples > 0 and self.seconds > 0 else None

    def seconds_for(self, samples: int) -> float | None:
        """How long so many samples will take; None while nothing is known."""
        return None if self.rate is None else samples / self.rate


def throughput_text(throughput: Throughput, left: int) -> str:
    """Rate and time left in words: "1,250 samples/s, 0:03:20 left"; empty while nothing is known."""
    rate, seconds = throughput.rate, throughput.seconds_for(left)
    if rate is None or seconds is None:
        return ""
    shown = f"{rate:,.0f} samples/s" if rate >= 10 else f"{rate:.3g} samples/s"
    return f"{shown}, {timedelta(seconds=round(seconds))} left"
