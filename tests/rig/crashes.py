"""What a job loses to saves and crashes, by playing it through. It knows no formula: it counts what is left over."""

import numpy as np
import numpy.typing as npt

# Gaps between two crashes: one from each of so many equally likely classes, so chance has little say.
CLASSES = 50_000


def gaps(mtbf: float, seed: int = 0) -> npt.NDArray[np.float64]:
    """Seconds from one crash to the next, of a job that crashes at a constant rate."""
    within = np.random.default_rng(seed).random(CLASSES)
    return -mtbf * np.log1p(-(np.arange(CLASSES) + within) / CLASSES)


def lost_share(crashes: npt.NDArray[np.float64], work: float, save: float, restart: float, delay: float = 0.0) -> float:
    """The share of the time that is lost.

    After each crash a job needs `restart` seconds; then it works and saves in turn until the next one. A save counts
    when it ended, and was committed `delay` seconds after that, before the crash. One that comes due earlier waits.
    """
    # What is committed first was begun `work` after the restart; from then on the longer of both counts.
    first, others = work + save + delay, max(work, delay) + save
    # Gaps that leave time for no save add nothing, whatever they are.
    periods = np.floor(np.maximum(crashes - restart - first + others, 0.0) / others)
    return 1.0 - float(periods.sum() * work / crashes.sum())


def play(crashes: npt.NDArray[np.float64], work: float, save: float, restart: float, delay: float = 0.0) -> float:
    """The same second by second, event after event: a check of the check."""
    kept = clock = 0.0
    for gap in crashes:
        at, committed, done = restart, 0.0, 0.0
        while True:
            at += work
            at = max(at, committed)  # the save before is still written
            at += save
            committed = at + delay
            if committed > gap:
                break
            done += work
        kept, clock = kept + done, clock + gap
    return 1.0 - kept / clock
