"""The description of a process in a cut: what it writes, a reader accepts."""

from __future__ import annotations

from tests.unit.blackbox.collection.dead_boxes import cut_of

import monitel
from monitel_otlp.black_box.activity import describe
from monitel_otlp.black_box.checked import check_cut


def test_long_names_are_cut_off() -> None:
    """A reader refuses a description with a longer one: the step, all waits and the activity would be lost."""
    name = "x" * 100_000
    with monitel.WaitCounter(name).guard(), monitel.activity(name):
        described = describe(None)
    *_, context = check_cut(tuple(cut_of(context=described)))
    assert described == context
    assert [1000] == [len(key) for key, _, _ in context["waits"]]
    assert 1000 == len(context["activity"][0])
