# SPDX-License-Identifier: Apache-2.0
"""HTML for notebooks. Charts are drawn by the report's own script, from the JSON that a command prints."""

from __future__ import annotations

import html
import itertools
import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

FOLDER = pathlib.Path(__file__).parent / "report"
FRAME = ('<iframe srcdoc="{}" style="width:100%;border:0;height:{}px" '
         'onload="this.style.height=this.contentDocument.documentElement.scrollHeight+\'px\'"></iframe>')


def frame(page: str, height: int = 480) -> str:
    """A page within a notebook, as high as its content where the notebook runs scripts."""
    return FRAME.format(html.escape(page), height)


def beside(run: Mapping[str, Any]) -> dict[str, Any]:
    """What charts need of a run beside its JSON: times are those of all measured steps."""
    seconds: dict[str, float] = {}
    for row in run.get("phases", []):
        if row["phase"] != "wait":
            seconds[row["device"]] = seconds.get(row["device"], 0.0) + row["seconds"]
    for row in run.get("waits", []):
        seconds[row["device"]] = seconds.get(row["device"], 0.0) + row["seconds"]
    ends = itertools.accumulate(epoch["steps"] for epoch in run.get("epochs", []))
    return {"steps": 1, "epoch_ends": list(ends),
            "devices": [{"device": device, "step_seconds": total} for device, total in seconds.items()]}


def page(title: str, kind: str, record: Mapping[str, Any], charts: Iterable[tuple[str, str]]) -> str:
    """The report's page with some of its charts."""
    runs = record["modes"].values() if kind == "comparison" else [record]
    data = {"kind": kind, "record": record, "charts": [beside(run) for run in runs]}
    place = '<h3>{}</h3><div data-chart="{}" data-run="0" data-device="0"></div>'
    sections = "".join(place.format(heading, name) for name, heading in charts)
    values = {"title": html.escape(title), "story": "", "nav": "", "main": sections,
              "record": json.dumps(data).replace("<", "\\u003c"),
              "charts": (FOLDER / "charts.js").read_text(encoding="utf-8")}
    text = (FOLDER / "template.html").read_text(encoding="utf-8")
    for name, value in values.items():
        text = text.replace("{{" + name + "}}", value)
    return text


def table(heads: list[str], rows: Iterable[Iterable[Any]]) -> str:
    def cells(kind: str, values: Iterable[Any]) -> str:
        return "<tr>" + "".join(f"<{kind}>{html.escape(str(value))}</{kind}>" for value in values) + "</tr>"

    return f"<table>{cells('th', heads)}{''.join(cells('td', row) for row in rows)}</table>"


def preformatted(text: str) -> str:
    return f'<pre style="white-space:pre-wrap">{html.escape(text)}</pre>'
