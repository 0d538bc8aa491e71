"""What spoils a measurement: other processes, a hypervisor, pinning, a quota, a CPU that changes its speed.

Linux tells most of it in /proc and /sys. What a system does not tell is not a finding.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from torchport.machine import usable_cpus
from torchport.results import Finding

_MOST_OTHERS = 0.1  # CPUs that other processes may use
_MOST_STOLEN = 0.02  # of the CPU time
_MOST_CHANGE = 0.15  # of the CPU's speed between rounds
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")


class Watch:
    """Watches the machine while candidates take their turns.

    Example:
        >>> watch = Watch()
        >>> with watch.turn(worker.pid):
        ...     worker.measure("feeds", 0.1)
        >>> watch.findings(threads=[1, 2])
    """

    def __init__(self) -> None:
        self._wall = self._others = self._stolen = 0.0
        self._speeds: list[float] = []
        self._throttled = throttled()

    @contextlib.contextmanager
    def turn(self, pid: int) -> Iterator[None]:
        """Count the CPU time that neither this process nor the one that is measured uses."""
        before, start = (*machine_times(), _own_time(pid)), time.perf_counter()
        try:
            yield
        finally:
            busy, stolen, own = (b - a for a, b in zip(before, (*machine_times(), _own_time(pid)), strict=True))
            self._wall += time.perf_counter() - start
            self._others += busy - own
            self._stolen += stolen

    def look_at_speed(self) -> None:
        """Time a fixed piece of work; between rounds."""
        self._speeds.append(1 / min(_fixed_work() for _ in range(5)))

    def findings(self, threads: Sequence[int | None] = ()) -> tuple[Finding, ...]:
        """Return what spoiled the measurement, or makes it one of a part of the machine."""
        return tuple(map(Finding, [*self._load(), *self._speed(), *self._limits(threads)]))

    def _load(self) -> Iterator[str]:
        cpus = os.cpu_count() or 1
        if self._wall and (others := self._others / self._wall) > _MOST_OTHERS:
            yield f"other processes used {others:.1f} of {cpus} CPUs during the measurement: stop them and repeat it"
        if self._wall and (stolen := self._stolen / self._wall / cpus) > _MOST_STOLEN:
            yield f"the hypervisor gave {stolen:.0%} of the CPU time to other machines"
        if (times := throttled() - self._throttled) > 0:
            yield f"the quota of CPU time stopped the processes {times} times during the measurement"

    def _speed(self) -> Iterator[str]:
        if len(self._speeds) < 10:
            return
        deciles = statistics.quantiles(self._speeds, n=10)
        if (change := 1 - deciles[0] / deciles[-1]) > _MOST_CHANGE:
            kept = governor()
            reason = f"turbo, heat, load; its governor is {kept}" if kept else "turbo, heat, load"
            yield f"the CPU's speed changed by {change:.0%} between rounds ({reason})"

    def _limits(self, threads: Sequence[int | None]) -> Iterator[str]:
        cpus, own = os.cpu_count() or 1, usable_cpus()
        if own < cpus:
            yield f"the process is pinned to {own} of {cpus} CPUs"
        if (allowed := quota()) is not None and allowed < own:
            yield f"a quota allows {allowed:g} of {cpus} CPUs"
        available = min(own, allowed or own)
        if (most := max((n or 0 for n in threads), default=0)) > available:
            yield f"{most} threads share {available:g} CPUs"


def machine_times() -> tuple[float, float]:
    """Return the seconds that all CPUs were busy, and those that a hypervisor gave away."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = [int(word) / _ticks() for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        user, nice, system, _, _, interrupts, soft, stolen = fields
        return user + nice + system + interrupts + soft, stolen
    return 0.0, 0.0


def _own_time(pid: int) -> float:
    """Return the CPU seconds of a process and of this one."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return sum(_process_time(number) for number in (pid, os.getpid()))
    return 0.0


def _process_time(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / _ticks()


def _ticks() -> int:
    return os.sysconf("SC_CLK_TCK")


def _fixed_work() -> float:
    start = time.perf_counter()
    sum(range(2_000))
    return time.perf_counter() - start


def governor() -> str:
    """Return what sets the CPU's frequency; empty if the system does not tell."""
    with contextlib.suppress(OSError):
        return Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").read_text().strip()
    return ""


# Control groups, of both versions


def quota() -> float | None:
    """Return the number of CPUs that the control groups allow; None for no limit."""
    found = []
    for folder in _own_groups():
        with contextlib.suppress(OSError, ValueError):
            most, period = (folder / "cpu.max").read_text().split()
            found += [int(most) / int(period)] if most != "max" else []
        with contextlib.suppress(OSError, ValueError):
            most, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            found += [int(most) / int(period)] if int(most) > 0 else []
    return min(found, default=None)


def throttled() -> int:
    """Return how often the quota stopped processes of this group so far."""
    for folder in _own_groups():
        with contextlib.suppress(OSError, ValueError):
            figures = dict(line.split() for line in (folder / "cpu.stat").read_text().splitlines())
            return int(figures.get("nr_throttled", 0))
    return 0


def _own_groups() -> list[Path]:
    """Return the folders of this process's control groups, its own first."""
    with contextlib.suppress(OSError):
        lines = [line.split(":", 2) for line in _OWN_GROUPS.read_text().splitlines()]
        roots = [
            (_CGROUPS / "cpu" if "cpu" in names.split(",") else _CGROUPS, path)
            for _, names, path in lines
            if not names or "cpu" in names.split(",")
        ]
        return [folder for root, path in roots for folder in _upward(root, path.strip("/"))]
    return []


def _upward(root: Path, path: str) -> list[Path]:
    own = root / path
    return [folder for folder in (own, *own.parents) if folder == root or root in folder.parents]
