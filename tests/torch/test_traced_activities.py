"""Activities while torch.compile traces a function: they have no effect, and break no graph."""

from __future__ import annotations

from typing import Any

import pytest

import monitel

torch: Any = pytest.importorskip("torch")


def test_activities_have_no_effect_while_torch_traces() -> None:
    """A compiled function with an activity, or decorated with one, has one graph, and runs as without."""
    monitel.set_step(1)

    @monitel.activity("decorated")
    def inner(x: Any) -> Any:
        return x * 2

    def outer(x: Any) -> Any:
        with monitel.activity("inside"):
            return inner(x) + 1

    function = torch.compile(outer, fullgraph=True, backend="eager")
    with monitel.activity("around"):
        assert [3.0, 5.0] == function(torch.tensor([1.0, 2.0])).tolist()
        assert "around" == monitel.activities.position()[1]
    for compiled in (function, torch.compile(inner, fullgraph=True, backend="eager")):
        assert compiled(torch.tensor([1.0])).shape == (1,)
    book = monitel.ledger()
    assert book is not None
    assert not {"inside", "decorated"} & {*book.activities}
