#!/usr/bin/python3
"""What the runner has in the extension: weighted means, and event files. Without PyTorch."""

import os

import harness

import pytest

from adaptdl import _core


def test_weighted_means():
    metrics = _core.Metrics("metrics-test")
    for value, weight in ((1.0, 1), (2.0, 2), (4.0, 1)):
        metrics.add("m", value, weight)
    metrics.add("single", 3.0, 1)
    found = metrics.compute()
    assert found["m"] == pytest.approx((2.25, (4.75 / 3) ** 0.5)) and found["single"] == (3.0, 0.0)
    assert metrics.compute() == found
    metrics.add("m", float("nan"), 1)
    assert all(value != value for value in metrics.compute()["m"])
    metrics.free()
    metrics.free()
    with pytest.raises(RuntimeError, match="their loop is over"):
        metrics.compute()
    again = _core.Metrics("metrics-test")  # the name is free
    assert again.compute() == {}
    again.free()


@pytest.mark.parametrize("name, value, weight, text", [
    ("", 1.0, 1, "0 bytes"), ("x" * 70, 1.0, 1, "70 bytes, at most 62"), ("m", 1.0, 0, "weight must be above 0"),
    ("m", 1.0, float("nan"), "weight must be above 0"), ("m", 1.0, float("inf"), "weight must be above 0")])
def test_wrong_values_are_refused(name, value, weight, text):
    metrics = _core.Metrics("metrics-wrong")
    try:
        with pytest.raises(ValueError, match=text):
            metrics.add(name, value, weight)
    finally:
        metrics.free()


def test_a_name_is_taken_once():
    metrics = _core.Metrics("metrics-once")
    with pytest.raises(RuntimeError, match="the name is taken"):
        _core.Metrics("metrics-once")
    metrics.free()
    with pytest.raises(RuntimeError, match="it was not initialized"):
        _core.Metrics.__new__(_core.Metrics).compute()


def test_event_files(tmp_path):
    writer = _core.EventWriter(str(tmp_path / "run"), 1.0)
    writer.scalar("a tag", 0.5, 7, 2.0)
    writer.text("a note", "some *text*", 7, 2.0)
    path = writer.path
    assert os.path.dirname(path) == str(tmp_path / "run")
    writer.flush()
    size = os.path.getsize(path)
    for bad in ("", "x" * 2000):
        with pytest.raises(ValueError):
            writer.scalar(bad, 0.5, 7, 2.0)
    writer.close()
    writer.close()
    with open(path, "rb") as file:
        raw = file.read()
    assert len(raw) == size and b"a tag" in raw and b"some *text*" in raw
    for call in (lambda: writer.scalar("a", 0.5, 7, 2.0), writer.flush, lambda: writer.path):
        with pytest.raises(ValueError, match="it is closed"):
            call()
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        _core.EventWriter(str(tmp_path / "file"), 1.0)
    with pytest.raises(ValueError, match="it is closed"):
        _core.EventWriter.__new__(_core.EventWriter).flush()


if __name__ == "__main__":
    harness.main(__file__)
