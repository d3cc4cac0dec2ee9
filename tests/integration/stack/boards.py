"""Dashboards as Grafana reads them: their variables, and the results of their queries in a Prometheus."""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from threading import Event as Signal
from typing import Any, NamedTuple

from tests.integration.conftest import COMPOSE
from tests.integration.services import sixty_times_faster
from tests.integration.stack.filling import Store, filled
from tests.support.inbox import DEADLINE

FOLDER = COMPOSE / "grafana" / "dashboards"


class Result(NamedTuple):
    panel: dict[str, Any]
    target: dict[str, Any]
    choices: dict[str, str]
    found: list[dict[str, Any]]


@dataclass(frozen=True)
class Board:
    """A dashboard as Grafana reads it, with the choices that are made when it is opened."""

    content: dict[str, Any]
    store: Store
    namespace: str = ".*"

    def variables(self) -> dict[str, str]:
        chosen = {"__rate_interval": "4m", "__range": "6h"}
        for variable in self.content["templating"]["list"]:
            chosen[variable["name"]] = self._chosen(variable, chosen)
        return chosen

    def _chosen(self, variable: dict[str, Any], chosen: dict[str, str]) -> str:
        if variable["name"] == "namespace":
            assert ".*" == variable["allValue"]
            return self.namespace
        current = variable.get("current", {}).get("value")
        if variable["type"] == "custom":
            assert current in variable["query"].split(",")
            return str(current)
        options = self.options(variable, chosen)
        if not variable["includeAll"]:
            return current if current in options else next(iter(options), "")
        assert ["$__all"] == current
        return variable.get("allValue") or f"({'|'.join(options)})"

    def options(self, variable: dict[str, Any], chosen: dict[str, str]) -> list[str]:
        found = re.fullmatch(r"label_values\((.+),\s*(\w+)\)", variable["query"]["query"])
        assert found, variable
        values = self.store.get(f"label/{found[2]}/values", **{"match[]": filled(found[1], chosen)})
        pattern = re.compile(variable["regex"].strip("/") or "(.*)")
        return sorted({match[1] for match in map(pattern.search, values) if match})

    def empty(self) -> set[str]:
        return {each.panel["title"] for each in self.results() if not each.found}

    def results(self) -> Iterator[Result]:
        """Return the result of each query to Prometheus, all of them for the same time."""
        now = time.time()
        for panel, target, choices in self._targets():
            yield Result(panel, target, choices, self._ask(target, choices, now))

    def expressions(self) -> Iterator[str]:
        return (filled(target["expr"], choices) for _, target, choices in self._targets())

    def targets(self, title: str) -> list[dict[str, Any]]:
        found = [target for panel in self.content["panels"] if panel["title"] == title for target in panel["targets"]]
        assert found, title
        return found

    def _targets(self) -> Iterator[tuple[dict[str, Any], dict[str, Any], dict[str, str]]]:
        """Each query to Prometheus with its panel and its choices; of repeated rows and panels, for each choice."""
        variables = self.variables()
        of_row = [variables]
        for panel in self.content["panels"]:
            if panel["type"] == "row":
                of_row = repeated(panel, variables)
                continue
            of_panel = repeated(panel, variables) if "repeat" in panel else of_row
            for target in panel["targets"]:
                if target["datasource"]["uid"] == "prometheus":
                    yield from ((panel, target, choices) for choices in of_panel)

    def shown(self, title: str, **choices: str) -> list[list[dict[str, Any]]]:
        """Return the series of each query of a panel, with some other choices."""
        variables = {**self.variables(), **choices}
        return [self._ask(target, variables) for target in self.targets(title)]

    def _ask(self, target: dict[str, Any], variables: dict[str, str], now: float | None = None) -> Any:
        expression = sixty_times_faster(filled(target["expr"], variables))
        if target["instant"]:
            return self.store.query(expression)
        now = now or time.time()
        times = {"start": str(now - 20), "end": str(now), "step": "1"}
        return self.store.get("query_range", query=expression, **times)["result"]


def nodes(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        yield tree
    for branch in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from nodes(branch)


def grouped(node: dict[str, Any]) -> list[str]:
    """Return the labels by which a node of an expression groups or matches series."""
    return node.get("grouping") or (node.get("matching") or {}).get("labels") or []


def unknown_labels(store: Store, expression: str) -> set[str]:
    """Return the labels by which an expression groups or matches, and which none of its series has."""
    unknown: set[str] = set()
    for node in nodes(store.get("parse_query", query=expression)):
        if labels := grouped(node):
            selectors = [each["matchers"] for each in nodes(node) if "matchers" in each]
            texts = [[f"{each['name']}{each['type']}{json.dumps(each['value'])}" for each in one] for one in selectors]
            series = store.get("series", **{"match[]": [f"{{{','.join(text)}}}" for text in texts]})
            unknown |= {label for label in labels if not any(each.get(label) for each in series)}
    return unknown


def repeated(repeats: dict[str, Any], variables: dict[str, str]) -> list[dict[str, str]]:
    name = repeats.get("repeat")
    values = variables[name].strip("()").split("|") if name else []
    return [{**variables, name: value} for value in values] or [variables]


def board(name: str, prometheus: Store, namespace: str = ".*") -> Board:
    return Board(json.loads((FOLDER / f"monitel-{name}.json").read_text()), prometheus, namespace)


def settle(opened: Board, allowed: set[str]) -> None:
    deadline, pause = time.monotonic() + DEADLINE, Signal()
    while not (empty := opened.empty()) <= allowed:
        assert time.monotonic() < deadline, empty
        pause.wait(0.2)
