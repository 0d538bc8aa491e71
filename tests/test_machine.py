"""Facts about the machine agree with what the system and torch say."""

from __future__ import annotations

import os

from torchport.machine import FEATURES, cpu_features, cpu_flags, cpu_name, usable_cpus


def test_the_cpu_has_a_name_and_the_process_a_cpu() -> None:
    assert cpu_name()
    assert 1 <= usable_cpus() <= (os.cpu_count() or 1)


def test_features_are_named_for_flags_that_the_cpu_has() -> None:
    assert set(cpu_features()) == {name for flag, name in FEATURES.items() if flag in cpu_flags()}
