"""The helpers that errors are written with."""

from __future__ import annotations

from torchport.errors import close_names, did_you_mean, first_line


def test_the_first_line_of_an_error_is_short_and_never_empty():
    assert first_line(ValueError("\n  first \nsecond")) == "first"
    assert first_line(ValueError("x" * 500)) == "x" * 200
    assert first_line(KeyError()) == "KeyError"


def test_close_names_stand_closest_first_whatever_their_order():
    assert close_names("imgae", ["logits", "image_size", "image"]) == ["image", "image_size"]
    assert close_names("imgae", ["image", "image_size"], most=1) == ["image"]
    assert close_names("x", ["logits"]) == []


def test_a_mistyped_name_gets_the_close_ones_or_another_next_step():
    assert did_you_mean("imgae", ["image", "image_size"], "give one") == "did you mean image, image_size?"
    assert did_you_mean("imgae", iter(["image"]), most=1) == "did you mean 'image'?"
    assert did_you_mean("imgae", ["image"], more="it has image") == "did you mean image? it has image"
    assert did_you_mean("q", ["image"], "give one") == "give one"
