"""C++ source for a model: names that C++ takes, and texts that stay texts."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from torchport.bundles import cpp_source
from torchport.engines.onnxruntime.kernel_libraries import compiler
from torchport.errors import EngineError
from torchport.results import TensorInfo


def test_names_become_identifiers() -> None:
    names = ["input.1", "class", "input_1", "größe", "1x", "/encoder/x:0", "", "NULL", "__a__b", "x", "X"]
    assert cpp_source.identifiers(names, "input") == [
        *("input_1", "class_", "input_1_2", "gr_e", "input_1x", "encoder_x_0", "input", "NULL_", "a_b", "x", "X"),
    ]


@given(st.lists(st.text(max_size=20), max_size=8))
def test_identifiers_are_valid_and_different(names: list[str]) -> None:
    found = cpp_source.identifiers(names, "input")
    assert len(set(found)) == len(names)
    for name in found:
        assert re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name)
        assert "__" not in name


def test_a_name_cannot_leave_its_literal_or_comment() -> None:
    evil = TensorInfo('x"; system("true"); //\\\n#error out', "float32", ("n\nint evil;", "a\\"))
    assert re.fullmatch(r'"[ !#-\[\]-~\\]*"', cpp_source.literal(evil.name))
    assert "\n" not in cpp_source.comment(evil)
    assert not cpp_source.comment(evil).endswith("\\")
    source = "\n".join(cpp_source.model_source([evil], [evil], ["lib.so"]).values())
    assert "#error" not in [line.strip()[:6] for line in source.splitlines()]
    assert not any(line.strip().startswith("int evil") for line in source.splitlines())


def test_a_literal_is_the_same_text_in_a_compiled_program(tmp_path: Path) -> None:
    text = 'größe "?" ??/ \\ \n\t x1\x07'
    (tmp_path / "t.cpp").write_text(
        f"#include <cstdio>\nint main() {{ std::fputs({cpp_source.literal(text)}, stdout); }}"
    )
    subprocess.run([*compiler(), "-std=c++17", tmp_path / "t.cpp", "-o", tmp_path / "t"], check=True)
    assert subprocess.run([tmp_path / "t"], capture_output=True, check=True).stdout.decode() == text


def test_a_dtype_without_a_cpp_type_is_refused() -> None:
    with pytest.raises(EngineError, match="'x' is float8_e4m3fn, which the C"):
        cpp_source.number_type(TensorInfo("x", "float8_e4m3fn", ()))
