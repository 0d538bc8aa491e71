"""The tab key completes verbs and options."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def completed(words: str, **given: str) -> list[str]:
    """Ask as bash does; answers are `type,value` in lines."""
    asked = {
        "_TORCHPORT_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
        **given,
    }
    command = [str(Path(sys.executable).with_name("torchport"))]
    done = subprocess.run(command, env={**os.environ, **asked}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("words", "answers"),
    [
        ("torchport rep", ["plain,report"]),
        ("torchport report --ag", ["plain,--against"]),
        ("torchport export --targ", ["plain,--target"]),
    ],
)
def test_verbs_and_options_are_completed(words: str, answers: list[str]) -> None:
    assert completed(words) == answers


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_script(shell: str) -> None:
    text = "\n".join(completed("", _TORCHPORT_COMPLETE=f"{shell}_source"))
    assert "_TORCHPORT_COMPLETE" in text
