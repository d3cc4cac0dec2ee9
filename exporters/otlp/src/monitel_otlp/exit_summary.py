"""The line that a pipeline prints to stderr at its end."""

from __future__ import annotations

import shlex
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike

    from monitel_otlp.accounting import Account


def print_exit_summary(
    accounts: Mapping[str, Account], spool_dir: PathLike[str], *, offline: bool, stored: bool
) -> None:
    """Print what was exported, dropped and spooled, and how to replay the spool.

    Args:
        accounts: The account of each signal.
        spool_dir: The spool folder of this process.
        offline: True if no signal has an endpoint.
        stored: True if requests are on disk, even if they hold no item.
    """
    line = exit_summary(accounts, spool_dir, offline=offline, stored=stored)
    with suppress(Exception):  # a signal handler may have interrupted a print; stderr may be closed
        print(f"{line}\n", end="", file=sys.stderr)  # noqa: T201  one write: other ranks print too


def exit_summary(accounts: Mapping[str, Account], spool_dir: PathLike[str], *, offline: bool, stored: bool) -> str:
    """Return the line that :func:`print_exit_summary` prints; the arguments are the same."""
    parts = []
    if not offline:
        numbers, events, spans = (accounts[signal].delivered for signal in ("metrics", "logs", "traces"))
        more = f", {spans} spans" if spans else ""
        parts.append(f"exported {numbers} windows and numbers, {events} events{more}")
    dropped: dict[str, int] = {}
    for account in accounts.values():
        for reason, items in account.dropped.items():
            dropped[reason] = dropped.get(reason, 0) + items
    if dropped:
        reasons = ", ".join(f"{reason} {items}" for reason, items in sorted(dropped.items()))
        parts.append(f"dropped {sum(dropped.values())} ({reasons})")
    spooled = sum(account.on_disk for account in accounts.values())
    if spooled or stored:
        what = f"{spooled} {'item' if spooled == 1 else 'items'}" if spooled else "values of instruments"
        where = " --endpoint http://HOST:4318" if offline else ""
        parts.append(f"{what} in {spool_dir}, replay with: monitel replay {shlex.quote(str(spool_dir))}{where}")
    return f"monitel: {'; '.join(parts) or 'nothing was recorded'}"
