"""The C++ program, built once with AddressSanitizer and UBSan and kept while its sources stay the same."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from native_build import CPP, NATIVE, ROOT, cmake

from torchport.engines.onnxruntime import headers
from torchport.files.filesystem import locked


@pytest.fixture(scope="session")
def sanitized() -> Path:
    """The folder of a build with sanitizers and warnings as errors; workers of one run share it."""
    sources = sorted(path for folder in (NATIVE, CPP) for path in folder.rglob("*") if path.is_file())
    sources = [path for path in sources if "build" not in path.relative_to(ROOT).parts]
    content = hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()
    folder = headers.cache() / "native-tests" / hashlib.sha256(str(ROOT).encode()).hexdigest()[:16]  # one a checkout
    headers.make_folder(folder)
    with locked(folder):
        built = folder / "built-from"
        if not built.is_file() or built.read_text() != content:
            flags = (
                "-DCMAKE_BUILD_TYPE=Debug",
                "-DTORCHPORT_SANITIZE=address,undefined",
                "-DCMAKE_CXX_FLAGS_DEBUG=-O0",
            )
            cmake("-S", NATIVE, "-B", folder, "-DTORCHPORT_WARNINGS_AS_ERRORS=ON", *flags)
            cmake("--build", folder)
            built.write_text(content)
    return folder


@pytest.fixture(scope="session")
def run_native(sanitized: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run torchport-run; a word of a sanitizer is a failure, whatever the exit code."""

    def run(*args: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        command = [str(sanitized / "torchport-run"), *map(str, args)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=120, errors="replace")
        assert done.returncode in (0, 1, 2), (args, done.returncode, done.stderr)
        assert "Sanitizer" not in done.stderr, done.stderr
        assert "runtime error" not in done.stderr, done.stderr
        return done

    return run
