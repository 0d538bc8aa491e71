"""What spoils a measurement is noticed and said."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from torchport.benchmark import interference
from torchport.benchmark.interference import Watch


def said(watch: Watch, **options: list[int | None]) -> str:
    return "\n".join(map(str, watch.findings(**options)))


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without pinning and quota, whose CPU keeps its speed."""
    monkeypatch.setattr(interference, "usable_cpus", lambda: os.cpu_count())
    monkeypatch.setattr(interference, "quota", lambda: None)
    monkeypatch.setattr(interference, "throttled", lambda: 0)
    monkeypatch.setattr(interference, "_fixed_work", lambda: 1.0)


def clock(monkeypatch: pytest.MonkeyPatch, busy: float, stolen: float, own: float) -> None:
    """FAKE: a turn takes one second, in which the machine does so much."""
    machine, process, seconds = iter([(0.0, 0.0), (busy, stolen)]), iter([0.0, own]), iter([0.0, 1.0])
    monkeypatch.setattr(interference, "machine_times", lambda: next(machine))
    monkeypatch.setattr(interference, "_own_time", lambda pid: next(process))
    monkeypatch.setattr(interference.time, "perf_counter", lambda: next(seconds))


@pytest.mark.usefixtures("quiet")
def test_other_processes_and_a_hypervisor_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    clock(monkeypatch, busy=1.9, stolen=0.5, own=1.0)
    watch = Watch()
    with watch.turn(1):
        pass
    monkeypatch.undo()
    assert "other processes used 0.9 of" in said(watch)
    assert "the hypervisor gave" in said(watch)


@pytest.mark.usefixtures("quiet")
def test_a_quiet_machine_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch()
    for _ in range(20):
        watch.look_at_speed()
    clock(monkeypatch, busy=1.02, stolen=0.0, own=1.0)
    with watch.turn(1):
        pass
    assert said(watch, threads=[1, None]) == ""


@pytest.mark.usefixtures("quiet")
def test_a_cpu_that_changes_its_speed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch()
    for n in range(20):
        monkeypatch.setattr(interference, "_fixed_work", lambda n=n: 1.0 if n < 10 else 2.0)
        watch.look_at_speed()
    assert "the CPU's speed changed by 50% between rounds" in said(watch)


def test_pinning_and_more_threads_than_cpus_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interference.os, "cpu_count", lambda: 64)
    monkeypatch.setattr(interference, "usable_cpus", lambda: 2)
    text = said(Watch(), threads=[1, 4])
    assert "the process is pinned to 2 of 64 CPUs" in text
    assert "4 threads share" in text


@pytest.mark.parametrize(
    ("groups", "folder", "files", "cpus"),
    [
        ("0::/a/b\n", "a", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/a/b\n", "a/b", {"cpu.max": "max 100000\n"}, None),
        ("4:cpu,cpuacct:/a\n", "cpu/a", {"cpu.cfs_quota_us": "50000\n", "cpu.cfs_period_us": "100000\n"}, 0.5),
        ("4:cpu,cpuacct:/a\n", "cpu/a", {"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n"}, None),
        ("4:memory:/a\n", "a", {"cpu.max": "1 100000\n"}, None),
    ],
)
def test_a_quota_is_found_in_both_versions_of_control_groups(
    groups: str, folder: str, files: dict[str, str], cpus: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAKE: a folder stands for /sys/fs/cgroup."""
    (tmp_path / folder).mkdir(parents=True)
    for name, text in files.items():
        (tmp_path / folder / name).write_text(text)
    (tmp_path / "own").write_text(groups)
    monkeypatch.setattr(interference, "_CGROUPS", tmp_path)
    monkeypatch.setattr(interference, "_OWN_GROUPS", tmp_path / "own")
    assert interference.quota() == cpus


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="only Linux has /proc")
def test_the_machines_times_count_on() -> None:
    before = interference.machine_times()[0]
    assert before > 0
    sum(range(10_000_000))
    assert interference.machine_times()[0] > before
