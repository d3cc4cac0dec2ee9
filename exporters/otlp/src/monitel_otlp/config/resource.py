"""The resource of a process: attributes of its launcher (rank, world size, run), of the host and of the process."""

from __future__ import annotations

import logging
import os
import platform
import socket
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from opentelemetry.sdk.resources import Resource, ResourceDetector, ServiceInstanceIdResourceDetector

import monitel
from monitel.attributes import attribute_name, escape_surrogates
from monitel.process.failures import warn_once
from monitel.process.launcher import distributed_rank, launch_attributes
from monitel_otel.scope import SCHEMA_URL

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue


_log = logging.getLogger("monitel.otlp")

_DISTRIBUTION = {"telemetry.distro.name": "monitel-otlp", "telemetry.distro.version": monitel.__version__}


class RankResourceDetector(ResourceDetector):
    """Reads ``training.*`` resource attributes (experimental names) from the launcher's variables.

    It is the entry point ``monitel`` of ``opentelemetry_resource_detector``; :func:`monitel_otlp.configure` uses it by
    default. A variable that should hold a number and does not is ignored. If torch.distributed is initialized, its rank
    and world size take precedence.

    Example:
        >>> import os
        >>> from monitel_otlp import RankResourceDetector
        >>> os.environ.update(RANK="3", WORLD_SIZE="8", TORCHELASTIC_RUN_ID="run-7")
        >>> sorted(RankResourceDetector().detect().attributes.items())
        [('training.rank', 3), ('training.run.id', 'run-7'), ('training.world_size', 8)]
        >>> for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
        ...     del os.environ[name]
    """

    def detect(self) -> Resource:
        """Return a resource with the attributes of :func:`launch_attributes`."""
        return Resource(launch_attributes())


def rank_on_points(launch: Mapping[str, str | int], resource: Resource, *, always: bool) -> dict[str, str | int]:
    """Return the rank as an attribute of all points, if it is known, and if the resource is not this process's alone.

    Only the random id that the SDK makes is different in each process.
    """
    if not always and resource.attributes.get("service.instance.id") == _instance():
        return {}
    return {name: launch[name] for name in ("training.rank",) if name in launch}


def _instance() -> str:
    """Return the random id of this process, which the SDK makes again in a forked child."""
    return str(ServiceInstanceIdResourceDetector().detect().attributes["service.instance.id"])


def check_rank(rank: object) -> None:
    """Log a warning, once, if torch.distributed is initialized with another rank.

    A process that calls ``configure()`` before its launcher sets the variables has no rank, or that of its parent.
    """
    member = distributed_rank()
    if member is not None and str(rank) != str(member[0]):  # OTEL_RESOURCE_ATTRIBUTES holds text
        warn_once(
            _log,
            "torch.distributed reports rank %d of %d, but the telemetry of this process has %s: call configure() "
            "or start() after init_process_group(), or start the ranks with torchrun",
            *member,
            "no training.rank" if rank is None else f"training.rank={rank!s:.40}",
        )


def describe_process(
    attributes: Mapping[str, AttributeValue] | None = None, *, application: Resource | None = None
) -> Resource:
    """Return the resource of this process, with further attributes, which take precedence.

    The resource of the application's providers takes the place of what is detected.
    """
    launch = Resource(launch_attributes())
    if application is not None:
        return launch.merge(application).merge(Resource(attributes or {}))
    created = Resource.create(attributes)  # it reads variables, which override detected attributes
    found = {
        attribute_name(escape_surrogates(name)): escape_surrogates(value) if isinstance(value, str) else value
        for name, value in {**_host_and_process(), **_DISTRIBUTION, **launch.attributes, **created.attributes}.items()
    }
    return Resource(found, created.schema_url or SCHEMA_URL)


def child_resource(resource: Resource) -> Resource:
    """Return the resource of a forked child: the parent's, because the SDK cannot detect resources at exit.

    Its id is that of a pipeline which the child makes itself, so that totals continue there.
    """
    own: dict[str, str | int] = {"service.instance.id": _instance(), "process.pid": os.getpid()}
    return resource.merge(Resource({name: value for name, value in own.items() if name in resource.attributes}))


def _host_and_process() -> dict[str, AttributeValue]:
    """Return what OpenTelemetry's detectors find and may be known: the command may hold secrets, and paths name users.

    The detectors are not used, because the one of the process asks for the name of its owner, which may need a network.
    """
    version, is_final = sys.version_info, sys.version_info.releaselevel == "final"
    return {
        "host.name": socket.gethostname(),
        "host.arch": platform.machine(),
        "os.type": platform.system().lower(),
        "os.version": platform.release(),
        "process.pid": os.getpid(),
        "process.executable.name": os.path.basename(sys.executable or ""),  # noqa: PTH119  it may not be a path
        "process.runtime.name": sys.implementation.name,
        "process.runtime.version": ".".join(map(str, version[:3] if is_final else version)),
        "process.runtime.description": sys.version,
    }
