"""The function ``configure()``: its variables, the pipeline, the global providers, and SIGTERM."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from opentelemetry import metrics, trace
from opentelemetry.sdk.resources import Resource

import monitel
from monitel.attributes import checked_attributes, checked_text
from monitel.blackbox.box import has_box
from monitel.blackbox.folder import AVAILABLE, UNAVAILABLE
from monitel.blackbox.record import SIGNALS
from monitel.blackbox.settings import BOX_CHOICES, BOX_SIZE, box_settings
from monitel.blackbox.silent import at_end
from monitel.process.exit import EXIT_TIMEOUT
from monitel.process.fork import register_at_fork
from monitel.process.launcher import is_launcher, is_rank_zero, launch_attributes, sdk_is_disabled
from monitel.process.os_threads import RLock, in_main_thread, start_thread
from monitel.process.sigterm import SigtermHandler, is_default
from monitel.run_events import enter, preempt
from monitel.runs import folder
from monitel.runs.ledger import RunLedger
from monitel.training.counters import begin_run
from monitel.variables import BOOLEAN, FOLDER, Group, Variable, at_least, one_of, reads_variables
from monitel_otel.installation import pipeline_providers, warn_of_copies
from monitel_otlp._compat import NoOpLoggerProvider, global_providers, is_set, set_global_providers
from monitel_otlp.config.resource import describe_process, rank_on_points
from monitel_otlp.config.settings import Settings, exporters, read_variable, resolve
from monitel_otlp.export.recorder import SERIES_LIMIT
from monitel_otlp.log_handler import LogHandler
from monitel_otlp.pipeline import Pipeline, inlet
from monitel_otlp.system import report_system

if TYPE_CHECKING:
    from monitel_otlp.traces.span_queue import SpanSettings

_log = logging.getLogger("monitel.otlp")

DISTRIBUTIONS = ("percentiles", "histogram", "both")


def _check_level(name: str, level: Any) -> None:
    try:
        LogHandler(level)
    except (TypeError, ValueError) as error:  # a wrong type; an unknown name
        raise type(error)(f"{name} must be a level of logging such as 'INFO' or 20, got {level!r:.80}") from None


_LEVEL = Variable(
    lambda text: int(text) if text.isdecimal() else text.upper(),
    "a level of Python's logging such as INFO",
    check=_check_level,
)


def _check_sigterm(_name: str, sigterm: object) -> None:
    if not isinstance(sigterm, bool) and sigterm != "auto":
        raise TypeError(f'sigterm must be True, False or "auto", got {sigterm!r:.80}')
    if sigterm is True and not in_main_thread():
        raise ValueError("sigterm=True requires the main thread: Python sets signal handlers only there")


_SIGTERM = Variable(
    lambda text: text.lower() if text.lower() == "auto" else BOOLEAN.parse(text),
    "auto, false, or true in the main thread",
    check=_check_sigterm,
)


#: The variable of each option of ``configure()``, in the order of its arguments, where OpenTelemetry has none.
CHOICES: dict[str, Variable] = {
    "spans": BOOLEAN,
    "span_budget": at_least(1),
    "span_steps": at_least(1),
    "step_traces": BOOLEAN,
    "logging_level": _LEVEL,
    "system": BOOLEAN,
    "ranks": one_of(("all", "zero")),
    "rank_attribute": BOOLEAN,
    "workers": BOOLEAN,
    "distributions": one_of(DISTRIBUTIONS),
    "series_limit": at_least(1),
    "spool_dir": FOLDER,
    **BOX_CHOICES,
    "sigterm": _SIGTERM,
    "run_events": BOOLEAN,
}
#: The arguments of ``configure()`` that may be mappings of options.
GROUPS = {
    "spans": Group(
        {"budget": ("span_budget", None), "steps": ("span_steps", 1), "step_traces": ("step_traces", False)}
    ),
    "black_box": Group({"folder": ("black_box_dir", None), "size": ("black_box_size", BOX_SIZE)}, of_path="folder"),
}

_OTLP = {"otlp", "otlp_proto_http", "otlp_proto_grpc"}  # words for the exporter
#: Providers of a signal that is off. They do not become the global ones: another library may set its provider.
_NOTHING = (metrics.NoOpMeterProvider, NoOpLoggerProvider, trace.NoOpTracerProvider)

_lock = RLock()  # of configure()
_current: Pipeline | None = None
_automatically = False  # during configure_automatically()


@reads_variables(CHOICES, GROUPS)
def configure(
    *,
    endpoint: str | None = None,
    service_name: str | None = None,
    spans: bool | Mapping[str, Any] = False,
    logging_level: int | str | None = None,
    system: bool = False,
    headers: Mapping[str, str] | None = None,
    protocol: str | None = None,
    export_interval: float | None = None,
    resource_attributes: Mapping[str, str | int | float | bool] | None = None,
    resource: Resource | None = None,
    ranks: str = "all",
    rank_attribute: bool = False,
    workers: bool = False,
    distributions: str | None = None,
    series_limit: int = SERIES_LIMIT,
    spool_dir: str | os.PathLike[str] | None = None,
    black_box: bool | str | os.PathLike[str] | Mapping[str, Any] = True,
    sigterm: bool | Literal["auto"] = "auto",
    run_events: bool = True,
) -> Pipeline:
    """Export every closed window, every event and the application's OpenTelemetry data to an OTLP endpoint.

    Omitted arguments are read from environment variables: from the standard OTEL_* variables, and from MONITEL_ with
    the argument's name in capitals, e.g. MONITEL_SPANS. If a variable has a wrong value, a warning is logged, and the
    default is used.

    The providers of the pipeline become the global providers, except where the application has set one. An
    application's MeterProvider is not changed; the windows are exported through a private one. A second call shuts the
    first pipeline down. ``OTEL_SDK_DISABLED=true`` makes a pipeline that does nothing.

    Args:
        endpoint: Base URL such as ``"http://localhost:4318"``; ``/v1/metrics`` and so on are appended. If neither
            the argument nor a variable is given, everything goes to the spool.
        service_name: ``service.name``. Default: OTEL_SERVICE_NAME.
        spans: Export ranges (``record_function``) as spans. Each range then costs some microseconds. A mapping also
            enables them, and has any of these keys. ``"budget"``: spans per step; further ranges of the step are folded
            into one span with their number and time; by default 1,000, with ``"step_traces"`` less if more than 17
            ranks share the trace of a step. ``"steps"``: export spans only of every n-th step. ``"step_traces"``: True
            makes each step one trace of all ranks.
        logging_level: Export records of Python's ``logging`` from this level on.
        system: Export CPU, memory and I/O of the process and of the host, and the state of NVIDIA GPUs, except in
            launchers. Requires ``opentelemetry-instrumentation-system-metrics``, for GPUs ``nvidia-ml-py``. Metrics of
            the host are exported by the process with local rank 0.
        headers: Added to each request, e.g. a token. They are never written to disk or logged.
        protocol: ``"http/protobuf"``, or ``"grpc"``, which needs the extra ``monitel-otlp[grpc]``. Default:
            OTEL_EXPORTER_OTLP_PROTOCOL, or HTTP.
        export_interval: Seconds between two exports. Default: OTEL_METRIC_EXPORT_INTERVAL, or 5 seconds, and once a
            minute for values of instruments and counters if there are no windows.
        resource_attributes: Added to OTEL_RESOURCE_ATTRIBUTES and to the attributes of the launcher (rank, run).
        resource: Replaces all other resource attributes.
        ranks: The ranks that export: ``"all"``, or only rank ``"zero"``. Without a launcher the process is rank zero.
            Aggregate over ranks in the backend.
        rank_attribute: Add ``training.rank`` to the points as well, for backends that do not promote resource
            attributes.
        workers: Export the items of torch's DataLoader workers, instead of dropping them.
        distributions: The form in which the HISTOGRAM of a Stat is exported. ``"percentiles"`` of each window are
            gauges, which every backend accepts. A ``"histogram"`` is an exponential histogram, which not every backend
            accepts. ``"both"`` exports both. Default: the form that
            OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION names, or percentiles.
        series_limit: Sets of attributes per metric name. Windows with further sets are exported as one series with
            ``otel.metric.overflow=true``, and a warning is logged once.
        spool_dir: The folder in which the spool folder of this process is made. Default: ``$XDG_STATE_HOME/monitel``,
            or ``~/.local/state/monitel``.
        black_box: Keep what is not delivered yet in memory that outlives the process, about a second old. If the
            process is killed, the next process of this user on the machine, ``monitel run`` or ``replay`` delivers it.
            A path, or ``"folder"`` in a mapping, is the folder in memory in which the box is made; by default
            ``/dev/shm/monitel-<user id>``. ``"size"`` in a mapping: bytes of items that the box may hold, at least
            64 KiB. It grows on demand, to at most 1 % of the free space.
        sigterm: On SIGTERM deliver or spool everything within 2 seconds. Then SIGTERM has its previous effect, by
            default the end of the process. ``"auto"`` does this only in the main thread, only if neither the
            application nor a library handles or ignores SIGTERM, and not in launchers such as torchrun's agent. True
            requires the main thread.
        run_events: Emit ``run.started`` now and ``run.ended`` with the status at the end, except in launchers.

    Returns:
        The pipeline, a context manager. It shuts down automatically at exit.

    Raises:
        TypeError: An argument has a wrong type, or is text that cannot be encoded in UTF-8.
        ValueError: The endpoint is not a base URL, the interval is not positive, protocol, ranks or distributions are
            unknown, ``protocol="grpc"`` without the packages for it, ``spool_dir`` or the folder of the black box is a
            file, its size is below 64 KiB, the budget or the steps of spans or ``series_limit`` is below 1, an int does
            not fit in 64 bits, or ``sigterm=True`` outside the main thread.

    Example:
        >>> import monitel
        >>> import monitel_otlp
        >>> with monitel_otlp.configure(service_name="train", spool_dir="runs") as pipeline:
        ...     monitel.stat("train.loss").add(0.25)
        >>> pipeline.force_flush(timeout=1.0)
        True
    """
    global _current
    attributes = dict(checked_attributes(resource_attributes, "resource_attributes"))
    if service_name is not None:
        attributes["service.name"] = checked_text("service_name", service_name)
    if resource is not None and not isinstance(resource, Resource):
        raise TypeError(f"resource must be an OpenTelemetry Resource, got {type(resource).__qualname__}")
    box = box_settings(bool(black_box), *(black_box.values() if isinstance(black_box, Mapping) else ()))
    settings = resolve(
        endpoint, headers, export_interval, spool_dir, protocol, distributions=distributions, black_box=box
    )
    _warn_of_other_exporters()
    launch, in_launcher = launch_attributes(), is_launcher(sys.orig_argv)
    if folder.started is not None:  # this pipeline belongs to that run, too
        attributes = {"training.run.id": folder.started_id, **attributes}
    silent = sdk_is_disabled() or (ranks == "zero" and not is_rank_zero(launch))
    resource = _resource(attributes, resource)
    with _end_earlier() as goes_on:
        begin_run(str(resource.attributes.get("training.run.id", "")), goes_on=goes_on)
        _current = Pipeline(
            settings,
            resource,
            point_attributes=rank_on_points(launch, resource, always=rank_attribute),
            spans=_span_settings(spans, settings, resource, launch, alone=ranks == "zero", silent=silent),
            workers=workers,
            silent=silent,
            automatic=_automatically,
            application=() if silent else SIGNALS if not _automatically else ("metrics",) if system else (),
            series_limit=series_limit,
            run_ledger=None if silent or in_launcher else RunLedger(settings.spool_root, resource.attributes),
        )
        unusable = [signal for signal in settings.offline if read_variable("ENDPOINT", signal)]  # warnings say why
        if settings.offline and not (unusable or silent or _automatically or folder.started):
            what = "telemetry goes" if not settings.endpoints else f"{' and '.join(settings.offline)} go"
            place = f"to {_current.spool_dir}" if AVAILABLE else f"nowhere, because {UNAVAILABLE}"
            _log.warning("no OTLP endpoint is set: %s %s; set OTEL_EXPORTER_OTLP_ENDPOINT to send it", what, place)
        if not silent:
            _set_globals(_current)
            if logging_level is not None and "logs" not in settings.off:
                handler = LogHandler(logging_level)
                logging.getLogger().addHandler(handler)
                _current.each_round.append(handler.put_back)
                _current.at_end.append(handler.end)
            if system and "metrics" not in settings.off and not in_launcher:
                host = not launch.get("training.local_rank")
                report_system(_current, host=host)
            if not in_launcher:
                enter(_current, enabled=run_events, ends_run=True)
                _current._begun = _current._recorded()
        if not silent or has_box():
            _handle_sigterm(_current, sigterm)
        return _current


@contextmanager
def _end_earlier() -> Iterator[bool]:
    """End the pipeline that there is. What is recorded meanwhile waits for the one that is made in the block.

    The block receives whether that one continues its run. Other threads wait until it ends.
    """
    with _lock:
        try:
            yield _current is not None and _current.ended is None and _current._give_way()
        finally:
            inlet.close()


def configure_automatically() -> Pipeline:
    """Make a pipeline from the variables, without code in the program.

    It has no providers for the application, which the program or ``opentelemetry-instrument`` may set. If the program
    makes a pipeline itself, by :func:`configure`, that one takes the place of this one.
    """
    global _automatically
    _automatically = True
    try:
        return configure()
    finally:
        _automatically = False


def end_automatic() -> None:
    """End the pipeline that was made without code, if it is the current one."""
    if _current is not None and _current._is_automatic:
        _current.shutdown()


def ends_given() -> bool:
    """Return True if another pipeline would end one that has the arguments of the program."""
    if _current is None or _current.ended is not None or _current._is_automatic:
        return False
    ledger = _current._run_ledger
    return ledger is not None and not ledger.is_started


def _warn_of_other_exporters() -> None:
    for signal in SIGNALS if not _automatically else ():
        words = exporters(signal)
        if others := [word for word in words if word not in _OTLP and words != ["none"]]:
            message = "OTEL_%s_EXPORTER: configure() exports over OTLP alone, and ignores %s; none alone turns %s off"
            _log.warning(message, signal.upper(), ", ".join(map(repr, others)), signal)


def _span_settings(
    options: bool | Mapping[str, Any],
    settings: Settings,
    resource: Resource,
    launch: Mapping[str, str | int],
    *,
    alone: bool,
    silent: bool,
) -> SpanSettings | None:
    """Return the settings of spans; None without spans."""
    if not isinstance(options, Mapping) or "traces" in settings.off:
        return None
    from monitel_otlp.traces.span_queue import SpanSettings  # late: they load the profiler
    from monitel_otlp.traces.step_traces import StepTraces

    budget, shared = options["budget"], None
    if options["step_traces"]:
        known = {**launch, **resource.attributes}
        shared = StepTraces(known, alone=alone, given=budget)
        if shared.rank == 0 and not silent:
            shared.warn_if_too_large()
    return SpanSettings(budget, options["steps"], shared)


def _resource(attributes: Mapping[str, str | int | float | bool], given: Resource | None) -> Resource:
    """Return the resource of the pipeline.

    The application's MeterProvider does not expose its resource; its other providers do. The marker distinguishes the
    two pipelines in a backend that orders samples by resource.
    """
    application: Resource | None = None
    marker = Resource.get_empty()
    meter_provider, *others = global_providers()
    if _is_applications(meter_provider):
        marker = Resource({"monitel.pipeline": "windows"})
        application = next(filter(None, (getattr(each, "resource", None) for each in others)), None)
    return (given or describe_process(attributes, application=application)).merge(marker)


def _is_applications(provider: object) -> bool:
    """Return True if the application has set this global provider, and not this module."""
    return is_set(provider) and not any(provider is own for own in pipeline_providers)


def _set_globals(pipeline: Pipeline) -> None:
    """Make the pipeline's providers the global providers, except where the application has set one.

    OpenTelemetry allows each provider to be set only once. After a second ``configure()``, as in a notebook, the
    providers of the first pipeline would still receive data that is never delivered, so they are replaced.
    """
    if _automatically:
        return
    own = (pipeline.meter_provider, pipeline.logger_provider, pipeline.tracer_provider)
    chosen = [
        None if _is_applications(present) or (isinstance(each, _NOTHING) and not is_set(present)) else each
        for present, each in zip(global_providers(), own, strict=True)
    ]
    pipeline_providers.extend(chosen)
    set_global_providers(chosen)
    warn_of_copies()


def _handle_sigterm(pipeline: Pipeline, sigterm: bool | Literal["auto"]) -> None:
    """Install a SIGTERM handler that shuts down the pipeline, and is uninstalled when the pipeline ends.

    The pipeline is only flushed if a handler that was installed later calls this one.
    """
    automatic = in_main_thread() and is_default() and not is_launcher(sys.orig_argv)
    if automatic if sigterm == "auto" else sigterm:
        handler = SigtermHandler(pipeline._terminate, lambda timeout: _flush(pipeline, timeout), timeout=EXIT_TIMEOUT)
        handler.install()
        if pipeline.ended is None:
            pipeline.at_end.append(handler.uninstall)
        else:  # it exports nothing
            at_end.append(handler.uninstall)


def _flush(pipeline: Pipeline, timeout: float) -> None:
    """Flush in another thread, because this thread may hold a lock that the flush needs."""
    if os.getpid() != 1:  # process 1 of a container lives on
        preempt()

    def flush() -> None:
        try:
            monitel.flush()
        finally:  # an event handler of the application may raise
            pipeline.force_flush(timeout)

    if (thread := start_thread(flush, "monitel-otlp-flush")) is not None:
        thread.join(timeout)


def _renew_lock() -> None:
    """In a forked child: another thread of the parent may hold it."""
    global _lock
    _lock = RLock()


register_at_fork(after_in_child=_renew_lock)
