"""The dashboards as code: ``python compose/grafana/dashboards.py`` writes ``dashboards/*.json``, which Grafana loads.

A job may have thousands of ranks. So a panel shows the median and the ends over all ranks, or the ten ranks that stand
out; a line for each rank is never drawn.
"""

from __future__ import annotations

import json
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from boards import activities, events, overview, pipeline, ranks, waits

FOLDER = Path(__file__).parent / "dashboards"


def made() -> dict[str, str]:
    """The text of each dashboard's file, by its name."""
    texts = {}
    for each in (overview, activities, ranks, waits, pipeline, events):
        built = each.make().build()
        for number, panel in enumerate(built.panels or [], start=1):
            panel.id_val = number
        texts[f"{built.uid}.json"] = json.dumps(built, cls=JSONEncoder, indent=2, sort_keys=True) + "\n"
    return texts


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in made().items():
        (FOLDER / name).write_text(text)
