"""Where a rank stands among the others, and by which addresses they meet: all of it from the launcher's variables."""

from __future__ import annotations

import hashlib
import os
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from monitel_otlp.ranks import launch_attributes

Address: TypeAlias = "str | tuple[str, int]"  # a Unix domain socket's path, or host and port

_FIRST_PORT, _PORTS = 20_000, 12_000  # below those that kernels hand out
_CANDIDATES = 3
_LOCAL_SIZE = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")


@dataclass(frozen=True)
class Place:
    """A rank's place in the tree: ranks of a node under its first one, the nodes' first ones under rank zero.

    Attributes:
        run: What tells this run, and this attempt of it, from others.
        rank: Its rank.
        world_size: How many there are, 1 where nobody says so.
        host: The node's name.
        above: Where it hands its windows to, by the addresses to try in this order; none for rank zero.
        listens: Where others hand theirs to it; of each group of addresses one is enough.
        awaited: How many others will connect to it, as far as that is known.
    """

    run: str
    rank: int
    world_size: int
    host: str
    above: tuple[Address, ...]
    listens: tuple[tuple[Address, ...], ...]
    awaited: int = 0

    @property
    def is_zero(self) -> bool:
        """Whether it is the one that exports."""
        return self.rank == 0


def find_place(digest_address: str | None = None) -> Place:
    """Read the launcher's variables.

    Ranks of a node meet at a Unix domain socket in a folder that only their user can enter. Nodes meet at
    ``digest_address``, or at MASTER_ADDR and one of three ports that follow from the run: whoever answers there must
    know the run.

    Raises:
        TypeError: ``digest_address`` is no str.
        ValueError: It is not HOST:PORT; or nothing tells this run from others.
    """
    given = None if digest_address is None else _parsed(digest_address)
    launch = launch_attributes()
    rank, size = int(launch.get("training.rank", 0)), int(launch.get("training.world_size", 1))
    local, node = launch.get("training.local_rank"), launch.get("training.node_rank", socket.gethostname())
    master = os.environ.get("MASTER_ADDR", "").strip()
    identity = [launch.get("training.run.id", ""), master, os.environ.get("MASTER_PORT", "").strip()]
    if size > 1 and not any(identity):
        raise ValueError(
            "ranks='digest' must know the run: set TORCHELASTIC_RUN_ID (or JOB_NAME), or MASTER_ADDR and MASTER_PORT, "
            "to the same in all ranks"
        )
    run = _hashed(*identity, launch.get("training.attempt", 0), size)
    local_size = _local_size()
    nodes: tuple[Address, ...] = ()
    if size > 1 and local_size != size:
        nodes = (given,) if given else _derived(master, run)
    own_node: tuple[Address, ...] = () if size == 1 or local is None else (_socket_path(run, node),)
    above: tuple[Address, ...] = () if rank == 0 else own_node if local else nodes
    listens = [own_node] if local == 0 else []
    listens += [nodes] if rank == 0 else []
    awaited = 0
    if own_node and local == 0 and local_size:
        awaited += local_size - 1
    if nodes and rank == 0 and local_size:
        awaited += -(-size // local_size) - 1
    return Place(run, rank, size, socket.gethostname(), above, tuple(filter(None, listens)), awaited)


def make_folder(path: str) -> None:
    """Make the folder of a Unix domain socket, for this user alone.

    Raises:
        PermissionError: There is one, and it is somebody else's, or open to others.
    """
    folder = Path(path).parent
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(f"{folder} must belong to this user and be closed to others (mode 0700)")


def _derived(master: str, run: str) -> tuple[Address, ...]:
    first = int(run[:8], 16)
    return tuple((master, _FIRST_PORT + (first + 997 * n) % _PORTS) for n in range(_CANDIDATES)) if master else ()


def _socket_path(run: str, node: object) -> str:
    return str(Path(tempfile.gettempdir()) / f"monitel-{os.getuid()}" / _hashed(run, node))


def _local_size() -> int:
    """Ranks of this node; 0 where nobody says it."""
    values = (os.environ.get(name, "").strip() for name in _LOCAL_SIZE)
    return next((int(value) for value in values if value.isdecimal()), 0)


def _hashed(*parts: object) -> str:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:16]


def _parsed(address: object) -> tuple[str, int]:
    if not isinstance(address, str):
        raise TypeError(f"digest_address must be a str such as '10.0.0.1:29600', got {type(address).__qualname__}")
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ValueError(f"digest_address must be HOST:PORT such as '10.0.0.1:29600', got {address!r:.80}")
    return host.strip("[]"), int(port)
