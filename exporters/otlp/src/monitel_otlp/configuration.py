"""configure(): the whole pipeline in one call."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from opentelemetry import metrics, trace
from opentelemetry.sdk.resources import Resource

from monitel_otel import BUDGET, check_limits
from monitel_otlp.config.launcher import launch_attributes, readable
from monitel_otlp.config.settings import resolve
from monitel_otlp.log_handler import LogHandler
from monitel_otlp.metrics.window_queue import SERIES_LIMIT
from monitel_otlp.pipeline import Pipeline
from monitel_otlp.sdk._compat import get_logger_provider, is_set, set_global_providers
from monitel_otlp.sigterm import check_sigterm, handle_sigterm
from monitel_otlp.traces.ids import StepTraces

if TYPE_CHECKING:
    from monitel_otlp.traces.span_queue import SpanSettings

_log = logging.getLogger("monitel.otlp")

_current: Pipeline | None = None
_ours: list[object] = []  # the global providers that were set here


def configure(
    *,
    service_name: str | None = None,
    endpoint: str | None = None,
    protocol: str | None = None,
    headers: Mapping[str, str] | None = None,
    export_interval: float | None = None,
    resource_attributes: Mapping[str, str | int | float | bool] | None = None,
    resource: Resource | None = None,
    spool_dir: str | os.PathLike[str] | None = None,
    distributions: str | None = None,
    ranks: str = "all",
    rank_attribute: bool = False,
    workers: bool = False,
    sigterm: bool | Literal["auto"] = "auto",
    logging_level: int | str | None = None,
    spans: bool = False,
    span_budget: int = BUDGET,
    span_steps: int = 1,
    step_traces: bool = False,
    series_limit: int = SERIES_LIMIT,
) -> Pipeline:
    """Deliver every closed window, every event and the user's own OpenTelemetry data to an OTLP endpoint.

    What is left out comes from the standard OTEL_* variables. The providers become the global ones where none is set;
    an application's own MeterProvider is left alone, and the windows go by a private one. A second call shuts the
    first pipeline down. ``OTEL_SDK_DISABLED=true`` makes a pipeline that does nothing.

    Args:
        service_name: ``service.name``; else OTEL_SERVICE_NAME.
        endpoint: Base URL such as ``"http://localhost:4318"``; ``/v1/metrics`` and so on are appended. Without it and
            without a variable, everything goes to the spool under ``monitel-runs/``.
        protocol: ``"http/protobuf"`` or ``"grpc"``; else OTEL_EXPORTER_OTLP_PROTOCOL, else HTTP.
        headers: Sent with each request, e.g. a token; never written to disk or a log.
        export_interval: Seconds between two rounds of delivery; else OTEL_METRIC_EXPORT_INTERVAL, else 5.
        resource_attributes: Added to OTEL_RESOURCE_ATTRIBUTES and to what the launcher says (rank, run).
        resource: Taken as it is, in place of all that.
        spool_dir: Where the folder of this process's spool is made; else ``$XDG_STATE_HOME/monitel``.
        distributions: What a Stat's HISTOGRAM becomes: ``"percentiles"`` of each window, gauges that every backend
            takes; a ``"histogram"``, exponential, for a backend that takes those; or ``"both"``. Else what
            OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION says, else percentiles.
        ranks: ``"all"`` export, or only rank ``"zero"``; without a launcher the process is rank zero. Aggregate over
            ranks in the backend.
        rank_attribute: Put ``training.rank`` on the points too, for backends that do not promote resource attributes.
        workers: Export what workers of torch's DataLoader record.
        sigterm: On SIGTERM deliver or spool everything, within 2 seconds, then do what SIGTERM did before. ``"auto"``
            does so only in the main thread, where neither the application nor a library handles or ignores SIGTERM,
            and not in launchers such as torchrun's agent. True requires the main thread.
        logging_level: Records of Python's ``logging`` from this level on travel as log records.
        spans: Ranges (``record_function``) become spans. Each then costs some microseconds.
        span_budget: Spans a step; the rest of a step is folded into one, which says how many and how long.
        span_steps: Make spans in one of so many steps, those that it divides.
        step_traces: Spans, and each step is one trace of all ranks.
        series_limit: Sets of attributes that one name may have. Windows of further ones are sent as one series with
            ``otel.metric.overflow=true``, and that is logged once.

    Returns:
        The pipeline, a context manager. It shuts down by itself at exit.

    Raises:
        TypeError: An argument of a wrong type.
        ValueError: An endpoint that is no base URL, an interval that is not positive, an unknown protocol, ranks or
            distributions, a ``spool_dir`` that is a file, ``span_budget``, ``span_steps`` or ``series_limit`` below 1,
            text that UTF-8 cannot hold, an int beyond 64 bits, ``sigterm=True`` outside the main thread.

    Example:
        >>> import monitel
        >>> import monitel_otlp
        >>> with monitel_otlp.configure(service_name="train", spool_dir="runs") as pipeline:
        ...     monitel.stat("train.loss").add(0.25)
        >>> pipeline.force_flush(timeout=1.0)
        True
    """
    global _current
    if ranks == "digest":
        raise ValueError("ranks='digest' was removed: use ranks='all', and let the backend aggregate over the ranks")
    if ranks not in {"all", "zero"}:
        raise ValueError(f"ranks must be 'all' or 'zero', got {ranks!r}")
    _check(service_name, resource_attributes, resource)
    _check_spans(spans, step_traces, span_budget, span_steps)
    _check_series_limit(series_limit)
    if logging_level is not None:
        logging.Handler(logging_level)  # which checks it
    check_sigterm(sigterm)
    settings = resolve(endpoint, headers, export_interval, spool_dir, protocol, distributions=distributions)
    launch = launch_attributes()
    rank = launch.get("training.rank", 0)
    silent = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or (ranks == "zero" and rank != 0)
    if _current is not None:
        _current.shutdown()
    if settings.offline and not silent and not settings.problems:
        what = "telemetry goes" if not settings.endpoints else f"{' and '.join(settings.offline)} go"
        _log.warning(
            "no OTLP endpoint is set: %s to %s; set OTEL_EXPORTER_OTLP_ENDPOINT to send it", what, settings.spool_dir
        )
    resource = _resource(service_name, resource_attributes, resource)
    on_points = {name: launch[name] for name in ("training.rank",) if name in launch}
    if on_points and not rank_attribute and "service.instance.id" in resource.attributes:
        on_points = {}  # ranks are told apart by their resources
    shared = StepTraces({**launch, **resource.attributes}) if step_traces else None
    _current = Pipeline(
        settings,
        resource,
        point_attributes=on_points,
        spans=_span_settings(span_budget, span_steps, shared) if spans or step_traces else None,
        workers=workers,
        silent=silent,
        series_limit=series_limit,
    )
    if not silent:
        _set_globals(_current)
        if logging_level is not None:
            handler = LogHandler(_current, logging_level)
            logging.getLogger().addHandler(handler)
            _current.at_end.append(lambda: logging.getLogger().removeHandler(handler))
        handle_sigterm(_current, sigterm)
    return _current


def _check(service_name: object, attributes: object, resource: object) -> None:
    if service_name is not None and not isinstance(service_name, str):
        raise TypeError(f"service_name must be a str, got {type(service_name).__qualname__}")
    if service_name is not None:
        _check_value("service_name", service_name)
    if resource is not None and not isinstance(resource, Resource):
        raise TypeError(f"resource must be an OpenTelemetry Resource, got {type(resource).__qualname__}")
    if attributes is None:
        return
    if not isinstance(attributes, Mapping):
        raise TypeError(f"resource_attributes must be a mapping, got {type(attributes).__qualname__}")
    for name, value in attributes.items():
        if not isinstance(name, str) or not isinstance(value, (str, bool, int, float)):
            raise TypeError(f"resource_attributes must map str to str, int, float or bool; {name!r:.40} does not")
        if not name:
            raise ValueError("resource_attributes: a name must not be empty, Prometheus refuses such a request")
        _check_value("resource_attributes: a name", name)
        _check_value(f"resource_attributes: {name!r:.40}", value)


def _check_spans(spans: object, step_traces: object, budget: object, every: object) -> None:
    for name, value in (("spans", spans), ("step_traces", step_traces)):
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be True or False, got {value!r:.80}")
    check_limits(budget, every)


def _check_series_limit(limit: object) -> None:
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise TypeError(f"series_limit must be an int, got {type(limit).__qualname__}: {limit!r:.80}")
    if limit < 1:
        raise ValueError(f"series_limit must be at least 1, got {limit}")


def _span_settings(budget: int, every: int, shared: StepTraces | None) -> SpanSettings:
    from monitel_otlp.traces.span_queue import SpanSettings  # late, for it loads the profiler

    return SpanSettings(budget, every, shared)


def _check_value(what: str, value: object) -> None:
    """Refuse what the protocol cannot hold; the exporter would leave it out of each request."""
    if isinstance(value, str) and readable(value) != value:
        raise ValueError(f"{what} must be text that UTF-8 can hold, got {value!r:.80}")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(f"{what} must fit in 64 bits, got {value}; give it as a str")


def _resource(
    service_name: str | None,
    resource_attributes: Mapping[str, str | int | float | bool] | None,
    given: Resource | None,
) -> Resource:
    """Who is speaking."""
    attributes = dict(resource_attributes or {})
    if service_name is not None:
        attributes["service.name"] = service_name
    theirs: Resource | None = None
    marker = Resource.get_empty()
    if _is_theirs(metrics.get_meter_provider()):
        # Their MeterProvider does not say its resource; the others do. The marker keeps the two apart in a backend
        # that orders samples by resource.
        marker = Resource({"monitel.pipeline": "windows"})
        for provider in (get_logger_provider(), trace.get_tracer_provider()):
            theirs = theirs or getattr(provider, "resource", None)
    if given is not None:
        return given.merge(marker)
    launch = Resource(launch_attributes())
    if theirs is not None:
        return launch.merge(theirs).merge(Resource(attributes)).merge(marker)
    created = Resource.create(attributes)  # which reads variables, and they win over what is detected
    found = {
        readable(name): readable(value) if isinstance(value, str) else value
        for name, value in created.attributes.items()
    }
    return launch.merge(Resource(found, created.schema_url)).merge(marker)


def _is_theirs(provider: object) -> bool:
    """Whether a global provider is the application's: neither a stand-in nor one that was set here."""
    return is_set(provider) and not any(provider is own for own in _ours)


def _set_globals(pipeline: Pipeline) -> None:
    """Make the pipeline's providers the global ones, except where the application has set its own.

    OpenTelemetry sets each of them once; after a second ``configure()``, in a notebook, the first ones would go on
    taking what nobody delivers any more, so ours are replaced.
    """
    pairs = [
        (metrics.get_meter_provider(), pipeline.meter_provider),
        (get_logger_provider(), pipeline.logger_provider),
        (trace.get_tracer_provider(), pipeline.tracer_provider),
    ]
    chosen = [None if _is_theirs(there) else own for there, own in pairs]
    _ours.extend(chosen)
    set_global_providers(*chosen)  # type: ignore[arg-type]  # one of each kind
