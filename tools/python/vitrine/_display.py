# SPDX-License-Identifier: Apache-2.0
"""HTML for notebooks. Charts are drawn by the report's own script, from the JSON that a command prints."""

import html
import itertools
import json
import pathlib
from collections.abc import Collection, Iterable, Mapping
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
    for row in [*(row for row in run.get("phases", []) if row["phase"] != "wait"), *run.get("waits", [])]:
        seconds[row["device"]] = seconds.get(row["device"], 0.0) + row["seconds"]
    ends = itertools.accumulate(epoch["steps"] for epoch in run.get("epochs", []))
    return {"steps": 1, "epoch_ends": list(ends),
            "devices": [{"device": device, "step_seconds": total} for device, total in seconds.items()]}


def page(title: str, kind: str, record: Mapping[str, Any], charts: Iterable[tuple[str, str]], text: str = "") -> str:
    """The report's page with some of its charts, before a text."""
    runs = record["modes"].values() if kind == "comparison" else [record]
    data = {"kind": kind, "record": record, "charts": [beside(run) for run in runs]}
    place = '<h3>{}</h3><div data-chart="{}" data-run="0" data-device="0"></div>'
    sections = "".join(place.format(heading, name) for name, heading in charts)
    values = {"title": html.escape(title), "story": "", "nav": "", "main": sections + text,
              "record": json.dumps(data).replace("<", "\\u003c"),
              "charts": (FOLDER / "charts.js").read_text(encoding="utf-8")}
    text = (FOLDER / "template.html").read_text(encoding="utf-8")
    for name, value in values.items():
        text = text.replace("{{" + name + "}}", value)
    return text


def table(rows: Collection[Mapping[str, Any]]) -> str:
    heads = list(dict.fromkeys(key for row in rows for key in row))

    def cells(kind: str, values: Iterable[Any]) -> str:
        texts = ("" if value is None else html.escape(str(value)) for value in values)
        return "<tr>" + "".join(f"<{kind}>{text}</{kind}>" for text in texts) + "</tr>"

    return f"<table>{cells('th', heads)}{''.join(cells('td', map(row.get, heads)) for row in rows)}</table>"


def preformatted(text: str) -> str:
    return f'<pre style="white-space:pre-wrap">{html.escape(text)}</pre>'
