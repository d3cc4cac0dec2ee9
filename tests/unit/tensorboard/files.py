"""Reading of event files with TensorBoard's own readers: the data server, its default, and the Python loader."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from tensorboard import context  # type: ignore[import-untyped]
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]
from tensorboard.plugins.hparams import metadata  # type: ignore[import-untyped]

Points = dict[str, list[tuple[int, "float | str"]]]
LEDGER = ("training.time/", "training.goodput")  # tags whose values are times
RUN_EVENTS = "events/run."  # run.started and run.ended
_SECONDS = "60"


def reader_of(folder: Path) -> Any:
    return EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0, "histograms": 0}).Reload()


def read(folder: Path, *, ledger: bool = False) -> Points:
    """Return the steps and values of scalars and texts by tag: those of the ledger, or all but it and the run's."""
    reader = reader_of(folder)
    found: Points = {tag: [(each.step, each.value) for each in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}
    for tag in reader.Tags()["tensors"]:
        if tag == metadata.SESSION_START_INFO_TAG:
            values = hyperparameters(reader.SummaryMetadata(tag).plugin_data.content)
            found["hparams"] = list(enumerate(values.items()))  # type: ignore[arg-type]  # pairs
        else:
            found[tag] = [(each.step, each.tensor_proto.string_val[0].decode()) for each in reader.Tensors(tag)]
    return _chosen(found, ledger=ledger)


def shown(folder: Path, *, ledger: bool = False) -> dict[str, Points]:
    """Return what TensorBoard shows by default: the points of each run, as ``read()``, from the data server."""
    grpc = pytest.importorskip("grpc", reason="the data server speaks gRPC")
    data_server = pytest.importorskip("tensorboard_data_server", reason="no data server for this platform")
    command = [data_server.server_binary(), "--logdir", folder, "--reload", "once", "--port", "0", "-v"]
    with subprocess.Popen(["timeout", _SECONDS, *command], stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        address = server.stderr.readline().split()[-1]
        assert any("Finished load cycle" in line for line in server.stderr)
        from tensorboard.data import grpc_provider  # type: ignore[import-untyped]  # needs gRPC

        with grpc.insecure_channel(address, [("grpc.enable_http_proxy", 0)]) as channel:
            runs = _runs(grpc_provider.GrpcDataProvider(address, grpc_provider.make_stub(channel)))
        server.terminate()
    return {run: _chosen(found, ledger=ledger) for run, found in runs.items()}


def _runs(provider: Any) -> dict[str, Points]:
    ctx, every = context.RequestContext(), {"experiment_id": "", "downsample": 10_000}
    scalars = provider.read_scalars(ctx, plugin_name="scalars", **every)
    texts = provider.read_tensors(ctx, plugin_name="text", **every)
    hparams = provider.list_tensors(ctx, experiment_id="", plugin_name="hparams")
    runs: dict[str, Points] = {}
    for run, tags in scalars.items():
        runs.setdefault(run, {}).update({tag: [(each.step, each.value) for each in tags[tag]] for tag in tags})
    for run, tags in texts.items():
        for tag in tags:
            runs.setdefault(run, {})[tag] = [(each.step, each.numpy.item().decode()) for each in tags[tag]]
    for run, tags in hparams.items():
        found = hyperparameters(tags[metadata.SESSION_START_INFO_TAG].plugin_content)
        runs.setdefault(run, {})["hparams"] = list(enumerate(found.items()))  # type: ignore[arg-type]  # pairs
    return runs


def hyperparameters(content: bytes) -> dict[str, Any]:
    values: Any = metadata.parse_session_start_info_plugin_data(content).hparams
    return {name: getattr(value, value.WhichOneof("kind")) for name, value in sorted(values.items())}


def _chosen(found: Points, *, ledger: bool) -> Points:
    return {
        tag: points
        for tag, points in found.items()
        if ledger == tag.startswith(LEDGER) and not tag.startswith(RUN_EVENTS)
    }
