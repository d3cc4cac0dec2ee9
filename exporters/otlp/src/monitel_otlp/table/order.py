"""The order of rows, and the rows that a filter leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monitel_otlp.table.columns import by_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from monitel_otlp.top.rank import Rank


def sorted_ranks(ranks: Iterable[Rank], column_name: str, descending: bool) -> list[Rank]:
    """Return rows sorted by a column, those with an unknown value last. Equal rows keep their order.

    Args:
        ranks: The rows.
        column_name: The name of the column, as in :data:`monitel_otlp.table.columns.COLUMNS`.
        descending: The largest value comes first.

    Raises:
        ValueError: There is no such column.
    """
    key = by_name(column_name).key
    known: list[Rank] = []
    unknown: list[Rank] = []
    for rank in ranks:
        (unknown if key(rank) is None else known).append(rank)
    known.sort(key=key, reverse=descending)  # type: ignore[arg-type]  # the keys of one column can be compared
    return known + unknown


def matches(rank: Rank, text: str) -> bool:
    """Return True if a text is in the names, the state, or the activities of a row, in capitals or not.

    Example:
        >>> from pathlib import Path
        >>> from monitel_otlp.table.order import matches
        >>> from monitel_otlp.top.rank import Rank
        >>> row = Rank(Path("box"), pid=4711, host="n04", rank=3, activity="data")
        >>> matches(row, "Rank 3"), matches(row, "N04"), matches(row, "checkpoint")
        (True, True, False)
    """
    texts = (
        *(rank.job.namespace, rank.job.service, rank.job.run, rank.host),
        "" if rank.pid is None else str(rank.pid),
        "" if rank.rank is None else f"rank {rank.rank}",
        *(rank.state.value, rank.death, rank.activity, rank.problem),
        *(wait.key for wait in rank.waits),
        "" if rank.event is None else rank.event.name,
    )
    wanted = text.casefold()
    return any(wanted in each.casefold() for each in texts)
