"""Measuring things that are compared: they take turns, so that a neighbour on the machine disturbs all alike."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass
class Times:
    """Seconds of one piece of work, a value a round: by the clock on the wall, and of the process on the CPU."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def rate(self, amount: float) -> dict[str, float]:
        """Return amount per second: the median over the rounds and the best one, and per second of CPU."""
        return {
            "per_second": amount / statistics.median(self.wall),
            "best_per_second": amount / min(self.wall),
            "per_cpu_second": amount / statistics.median(self.cpu),
        }


def take_turns(
    work: Mapping[str, Callable[[], object]], rounds: int, before: Callable[[str], object] | None = None
) -> dict[str, Times]:
    """Time each piece of work once a round, after a round that does not count; `before` is called with its name.

    Every other round goes backwards: what one piece of work leaves behind, such as free memory, helps the next.
    """
    times = {name: Times() for name in work}
    for number in range(rounds + 1):
        for name, do in list(work.items())[:: -1 if number % 2 else 1]:
            if before is not None:
                before(name)
            wall, cpu = time.perf_counter(), time.process_time()
            do()
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            if number:
                times[name].wall.append(wall)
                times[name].cpu.append(cpu)
    return times


def speed_ratio(ours: Times, theirs: Times) -> dict[str, float]:
    """Return how fast we are where they are 1: the median of the rounds' ratios."""
    return {
        clock: statistics.median(b / a for a, b in zip(getattr(ours, clock), getattr(theirs, clock), strict=True))
        for clock in ("wall", "cpu")
    }
