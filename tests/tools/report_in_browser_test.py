#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the program with --report and looks at the pages in a headless Chromium: no error, no request, every chart drawn, nothing wider than the
screen, in both color schemes, in print; and charts of the page's data, and of data made here, show its values. Skipped (77) where there is no Chromium.

usage: report_in_browser_test.py PROGRAM [FOLDER]      with FOLDER the pages and their screenshots stay there
"""
import base64
import json
import os
import re
import subprocess
import sys
import tempfile

from browser import Browser, find_browser

COMMON = ["--model", "mlp", "--data", "synthetic:200", "--devices", "cpu:0-1", "--threads-per-device", "1", "--batch-size", "32"]
RUNS = {  # page: arguments, charts it has at least, words that must be there
    "train": (["train", "--mode", "dp", "--epochs", "2", "--precision", "fp16", "--device-memory", "20MiB", "--workspace", "1MiB", "--trace-level", "operation"],
              8, ["equal to the byte", "capacity 20 MiB", "wait for", "loss scale", "test accuracy", "outside the pool", "Findings", "What moves where", "broadcast",
                  "Why cpu:0 holds more than cpu:1", "oneDNN|Eigen"]),
    "plan": (["plan", "--mode", "dp", "--accumulate", "2", "--device-memory", "10MiB"], 3,
             ["does not fit", "Held for backward", "reached in", "capacity 10 MiB", "Why cpu:0 holds more than cpu:1", "large"]),
    "compare": (["compare", "--steps", "4", "--modes", "dp,ddp,zero1"], 7, ["samples/s", "The device that holds most", "gradient difference", "dp", "ddp", "peak", "equal to the byte"]),
    "frontier": (["plan", "--model", "resnet18-cifar", "--devices", "cpu:0", "--threads-per-device", "1", "--batch-size", "8", "--frontier"], 3, ["no time added", "yes, with least time"]),
    "lab": (["lab"], 14, ["average-of-averages", "with the bug", "How to notice it", "missing-event"]),
}
CHARTS = {"peaks", "outside", "times", "communication", "speed", "lab", "difference", "movement", "memory", "overlay", "step", "learning", "frontier"}

# Problems of the page, and the number of its charts.
LOOK = r"""
(() => {
  const wrong = [], charts = [...document.querySelectorAll('svg.chart')];
  if (document.body.innerText.includes('`')) wrong.push('a backquote is shown');
  for (const chart of charts) {
    const name = chart.getAttribute('aria-label'), box = chart.getBoundingClientRect();
    if (!(box.width > 100 && box.height > 10)) wrong.push(name + ': the chart has no size');
    const shapes = [...chart.querySelectorAll('rect,path,circle')].filter((s) => !s.matches('.track,.end'));
    const drawn = shapes.filter((s) => { const b = s.getBoundingClientRect(); return b.width + b.height > 1; });
    if (drawn.length === 0) wrong.push(name + ': nothing is drawn');
    for (const s of drawn) {
      const b = s.getBoundingClientRect();
      if (b.left < box.left - 6 || b.right > box.right + 6 || b.top < box.top - 6 || b.bottom > box.bottom + 6) wrong.push(name + ': a shape lies outside');
    }
    for (const bar of chart.querySelectorAll('g.bar')) {
      const [label, total] = [...bar.querySelectorAll(':scope > text')].map((text) => text.getBoundingClientRect());
      if (label.width && label.right > total.left) wrong.push(name + ': a label lies on a total: ' + bar.dataset.label);
    }
    for (const text of chart.querySelectorAll(':scope > text, :scope > g > text')) {
      const b = text.getBoundingClientRect(), tick = text.matches('.tick');
      const room = tick || text.matches('.end') ? chart.parentElement.getBoundingClientRect() : box;
      if (b.width && (b.left < room.left - 2 || b.right > room.right + 2)) wrong.push(name + ': text leaves the chart: ' + text.textContent);
      if (tick && b.right > box.left) wrong.push(name + ': a tick lies on the chart: ' + text.textContent);
    }
    const hatched = drawn.filter((s) => /hatched/.test(s.getAttribute('class'))).map((s) => s.getBoundingClientRect());
    for (const text of chart.querySelectorAll('text')) {
      const b = text.getBoundingClientRect(), plate = text.previousSibling?.matches?.('.plate') ? text.previousSibling.getBoundingClientRect() : null;
      const covered = plate && plate.left <= b.left && plate.right >= b.right;
      if (b.width && !covered && hatched.some((h) => h.left < b.right - 1 && h.right > b.left + 1 && h.top < b.bottom - 6 && h.bottom > b.top + 6)) wrong.push(name + ': text on hatching: ' + text.textContent);
    }
  }
  for (const box of document.querySelectorAll('svg.clipped')) {
    const words = box.lastChild;
    if (words.x.baseVal[0].value + words.getComputedTextLength() > box.width.baseVal.value + 2) wrong.push('words are cut off: ' + words.textContent);
  }
  for (const figure of document.querySelectorAll('figure.beside')) {
    const shown = (selector) => [...figure.querySelectorAll(selector)].filter((text) => text.getBoundingClientRect().width);
    const names = shown('text.end').map((text) => text.getBoundingClientRect());
    if (!names.length === !figure.previousSibling.getBoundingClientRect().height) wrong.push('curves have neither names nor a legend, or both');
    names.forEach((a, i) => names.slice(i + 1).forEach((b) => { if (a.bottom > b.top + 4 && b.bottom > a.top + 4) wrong.push('names of curves lie on each other'); }));
  }
  for (const box of document.querySelectorAll('.scroll')) {
    if (box.scrollWidth > box.clientWidth + 1 && !/local/.test(getComputedStyle(box).backgroundAttachment)) wrong.push('nothing shows that a table scrolls');
  }
  for (const text of document.querySelectorAll('svg.chart text')) if (parseFloat(getComputedStyle(text).fontSize) < 13) wrong.push('small words: ' + text.textContent);
  const planned = [...document.querySelectorAll('.side th')].filter((th) => th.textContent === 'planned').map((th) => th.getBoundingClientRect());
  for (const b of planned) if (b.right > document.documentElement.clientWidth) wrong.push('the column "planned" is cut off');
  const story = document.querySelector('.story'), order = story && document.querySelector('main').compareDocumentPosition(story);
  if (!story || !story.querySelector('strong') || !(order & Node.DOCUMENT_POSITION_PRECEDING)) wrong.push('the page does not begin with its result');
  if (!document.querySelector('section:last-child details .command')) wrong.push('the command is not folded at the end');
  for (const id of [...document.querySelectorAll('nav a')].map((a) => a.hash)) if (!document.querySelector(id)) wrong.push('no part ' + id);
  return {wrong, width: document.documentElement.scrollWidth, charts: charts.length, text: document.body.textContent, page: getComputedStyle(document.body).backgroundColor};
})()
"""
# Whether details are folded on the screen and open in print.
FOLDED = r"""
(() => {
  const count = () => document.querySelectorAll('details[open]').length, all = document.querySelectorAll('details').length, before = count();
  dispatchEvent(new Event('beforeprint'));
  const printed = count();
  dispatchEvent(new Event('afterprint'));
  return before === 0 && printed === all && count() === 0;
})()
"""
# Scrolls to the first shape that is wide enough to point at, and returns its center when scrolling has ended.
POINT = r"""
(async () => {
  const shape = [...document.querySelectorAll('svg.chart .part')].find((s) => s.getBoundingClientRect().width > 2);
  const middle = () => { const b = shape.getBoundingClientRect(); return [b.left + b.width / 2, b.top + b.height / 2]; };
  scrollTo(0, middle()[1] + scrollY - 300);
  for (let i = 0; i < 3; ++i) await new Promise(requestAnimationFrame);
  return middle();
})()
"""


def complaints(browser):
    """Errors and requests since the page was opened."""
    found = []
    for event in browser.events:
        method, parameters = event.get("method"), event.get("params", {})
        if method in ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled"):
            found.append(f"{method}: {parameters}")
        if method == "Network.requestWillBeSent" and not parameters["request"]["url"].startswith(("file:", "data:")):
            found.append("a request: " + parameters["request"]["url"])
    return found


def hover(browser):
    """What the page shows when the pointer is over a shape. A page that still scrolls hides it again, so the pointer tries until it stays."""
    for _ in range(20):
        x, y = browser.evaluate(POINT)
        browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        shown = browser.evaluate("(() => { const t = document.getElementById('tip'); return t.hidden ? '' : t.textContent; })()")
        if shown:
            return shown
        browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
    return ""


def check_page(browser, name, path, charts, words):
    pages = {}
    for width in (390, 800, 1400):
        for dark in (False, True) if width == 800 else (False,):  # colors do not depend on the width
            browser.open("file://" + path, width, dark)
            seen = browser.evaluate(LOOK)
            where = f"{name} at {width} px, {'dark' if dark else 'light'}"
            wrong = seen["wrong"] + complaints(browser)
            assert not wrong, f"{where}: {wrong}"
            # A phone widens its window to the page, so innerWidth is of no use here.
            assert seen["width"] <= width, f"{where}: the page is {seen['width']} px wide"
            assert seen["charts"] >= charts, f"{where}: {seen['charts']} charts"
            for word in words:
                assert any(w in seen["text"] for w in word.split("|")), f"{where}: '{word}' is not there"
            pages[dark] = seen["page"]
            shot = browser.call("Page.captureScreenshot", captureBeyondViewport=True)
            with open(f"{path[:-5]}_{width}{'_dark' if dark else ''}.png", "wb") as file:
                file.write(base64.b64decode(shot["data"]))
    assert pages[False] != pages[True], "both color schemes look alike"
    assert browser.evaluate(FOLDED), f"{name}: details are not folded on the screen and open in print"
    shown = hover(browser)
    assert shown, f"{name}: hovering over a shape shows nothing"
    pdf = base64.b64decode(browser.call("Page.printToPDF", printBackground=True)["data"])
    assert pdf.startswith(b"%PDF") and len(pdf) > 10000, f"{name}: printing gave {len(pdf)} bytes"
    assert not complaints(browser), complaints(browser)


# What the charts of a name show: their runs and devices, bars with the values and widths of their parts, rows with their ends, other values, and words.
DRAWN = r"""
((places) => [...places].map((place) => ({
  name: place.dataset.chart, run: +place.dataset.run || 0, device: +place.dataset.device || 0, text: place.textContent,
  bars: [...place.querySelectorAll('g.bar')].map((bar) => {
    const parts = [...bar.querySelectorAll(':scope > rect')];
    return {label: bar.dataset.label, total: bar.children[1].textContent, values: parts.map((part) => +part.dataset.value), widths: parts.map((part) => part.getBoundingClientRect().width)};
  }),
  rows: [...place.querySelectorAll('g.row')].map(({dataset: {name, from, to, at}, children}) =>
    ({name, from, to, at, words: [...children].filter((c) => c.dataset.value !== undefined && c.tagName === 'text' || c.matches('.on')).map((c) => c.textContent)})),
  values: [...place.querySelectorAll('[data-value]')].map((shape) => +shape.dataset.value),
  dots: [...place.querySelectorAll('circle[data-value]')].map((shape) => +shape.dataset.value),
  titles: [...place.querySelectorAll('title')].map((title) => title.textContent), curves: [...place.querySelectorAll('path.curve')].map((path) => path.getAttribute('d')),
})))(%s)
"""
DATA = "JSON.parse(document.getElementById('record').textContent)"


def draw(browser, name, data):
    """What one chart shows of data that is made here; None where it has nothing to show."""
    place = f"""(() => {{
      const box = vitrine.html('main', {{}}, vitrine.html('div', {{'data-chart': {json.dumps(name)}}}));
      document.body.append(box);
      vitrine.draw(box, {json.dumps(data)});
      return box.children;
    }})()"""
    return (browser.evaluate(DRAWN % place) or [None])[0]


def same(shown, expected):
    return len(shown) == len(expected) and all(abs(a - b) <= 1e-9 * abs(b) for a, b in zip(shown, expected))


def values_of(categories):
    return [bytes_ for bytes_ in categories.values() if bytes_]


def expected_bars(data, chart):
    """The values of each bar of a chart, from the record."""
    record, name = data["record"], chart["name"]
    runs = list(record["modes"].values()) if data["kind"] == "comparison" else [record]
    bars = []
    if name == "speed":
        return [[run["samples_per_second"]] for run in runs]
    if name == "lab":
        settings = record["experiments"][chart["run"]]["settings"]
        least = 1e-3 * max(setting["planted"] for setting in settings)
        return [[setting[which]] if setting[which] >= least else [] for setting in settings for which in ("planted", "without")]
    if name == "communication":
        of, steps = data["charts"][chart["run"]]["communication_of"], data["charts"][chart["run"]]["steps"]
        times = ("hidden_seconds", "exposed_seconds", "late_hidden_seconds", "late_exposed_seconds")
        return [[row[time] / steps for time in times if row[time]] for row in runs[chart["run"]]["communication"] if row["device"] == of]
    if name == "outside":
        for device in runs[0]["devices"]:
            bars += [values_of(device["outside_bytes_by_owner"])] if device["outside_bytes"] not in map(sum, bars) else []
        return bars
    for run, more in zip(runs, data["charts"]):
        seen = []
        for device in run["devices"]:
            if name == "times":
                rows = [row for row in run["phases"] if row["phase"] != "wait"] + run["waits"]
                bars.append([row["seconds"] / more["steps"] for row in rows if row["device"] == device["device"] and row["seconds"]])
            else:
                planned, measured = device["planned_peak_bytes_by_category"], device["peak_bytes_by_category"]
                if (planned, measured) not in seen:
                    bars += ([] if planned == measured else [values_of(planned)]) + [values_of(measured)]
                seen.append((planned, measured))
    return bars


def check_values(browser, name):
    """Every bar and dot of the page shows a number of its record, and bars are as long as their numbers."""
    data, charts = browser.evaluate(DATA), browser.evaluate(DRAWN % "document.querySelectorAll('[data-chart]')")
    for chart in charts:
        where = f"{name}, {chart['name']}"
        if chart["bars"]:
            expected, shown = expected_bars(data, chart), [bar["values"] for bar in chart["bars"]]
            assert len(shown) == len(expected) and all(map(same, shown, expected)), f"{where}: {shown} instead of {expected}"
            scales = [width / value for bar in chart["bars"] for value, width in zip(bar["values"], bar["widths"]) if width > 20]
            assert max(scales) <= 1.01 * min(scales), f"{where}: bars on different scales: {scales}"
        if chart["name"] == "memory":
            peak = data["charts"][chart["run"]]["devices"][chart["device"]]["memory"]["peak"]["bytes"]
            assert chart["dots"] == [peak], f"{where}: {chart['dots']} instead of {peak}"
        if chart["name"] == "learning":
            epochs = data["record"]["epochs"]  # one accuracy is a sentence
            expected = [epoch[key] for key in ("test_loss", "test_accuracy")[:len(epochs)] for epoch in epochs]
            assert chart["dots"] == expected, f"{where}: {chart['dots']} instead of {expected}"
        if chart["name"] == "difference":
            peaks = [device["peak_bytes"] for device in data["record"]["devices"]]
            assert chart["values"][0] == min(peaks) and sum(chart["values"][:-1]) == chart["values"][-1] == max(peaks), f"{where}: {chart['values']}"
    return {chart["name"] for chart in charts}


MIB = 1 << 20


def device(name, **more):
    categories = dict.fromkeys(("parameters", "gradients", "optimizer", "activations"), 0) | more.pop("categories", {})
    peak = sum(categories.values())
    return {"device": name, "samples_per_step": 16, "peak_bytes": peak, "peak_bytes_by_category": categories, "planned_peak_bytes": peak,
            "planned_peak_bytes_by_category": categories, "capacity_bytes": 0, "outside_bytes": 0, "outside_bytes_by_owner": {}, **more}


def moving(count, config, moved):
    """A plan of devices that move bytes: moved(d) gives those of a device by phase."""
    devices = [device(f"cpu:{d}") for d in range(count)]
    more = [{"device": d["device"], "step_seconds": 0, "moved": moved(i), "memory": None, "step": None} for i, d in enumerate(devices)]
    return {"kind": "plan", "record": {"config": config, "devices": devices}, "charts": [{"output_device": 0, "steps": 1, "devices": more}]}


def check_movement(browser):
    dp = {"loss_at": "gathered", "reduce": "device0", "shard": "none"}
    first = {"stage": 48 << 10, "forward": 0, "gather": 3072, "loss": 0, "optimizer": 0}
    other = {"scatter": 16 << 10, "forward": 0, "loss": 0, "reduce": MIB // 2, "broadcast": MIB}
    shown = draw(browser, "movement", moving(3, dp, lambda d: other if d else first))
    rows = {row["name"]: row for row in shown["rows"]}
    assert list(rows) == ["stage", "scatter", "forward", "gather", "loss", "reduce", "update", "broadcast"], list(rows)
    ends = {name: (row.get("from"), row.get("to"), row.get("at")) for name, row in rows.items()}
    assert ends == {"stage": ("0", "1", None), "scatter": ("1", "2,3", None), "forward": (None, None, "1,2,3"), "gather": ("2,3", "1", None), "loss": (None, None, "1"),
                    "reduce": ("2,3", "1", None), "update": (None, None, "1"), "broadcast": ("1", "2,3", None)}, ends
    assert rows["scatter"]["words"] == ["16 KiB", "16 KiB"] and rows["gather"]["words"] == ["3 KiB"] and rows["reduce"]["words"] == ["512 KiB", "512 KiB"], rows
    ddp = {"loss_at": "parallel", "reduce": "all-reduce", "shard": "optimizer"}
    every = {"stage": 17 << 10, "forward": 0, "loss": 0, "reduce": MIB, "broadcast": MIB}
    rows = {row["name"]: row for row in draw(browser, "movement", moving(3, ddp, lambda d: every))["rows"]}
    assert rows["stage"]["to"] == rows["reduce"]["from"] == rows["reduce"]["to"] == rows["broadcast"]["from"] == "1,2,3", rows
    assert rows["loss"]["at"] == "1,2,3", rows
    many = draw(browser, "movement", moving(64, ddp, lambda d: every))
    assert "cpu:1 to cpu:63" in many["text"] and "16 samples each" in many["text"] and many["rows"][0]["to"] == "1,2", many


def check_bars(browser):
    held = {"activations": 2 * MIB}
    devices = [device("cpu:0", categories=held | {"optimizer": 6 * MIB}), *(device(f"cpu:{d}", categories=held) for d in (1, 2, 3))]
    devices[3] = devices[3] | {"planned_peak_bytes": MIB, "planned_peak_bytes_by_category": {"activations": MIB}, "capacity_bytes": 3 * MIB}
    data = {"kind": "run", "record": {"devices": devices}, "charts": [{"differences": [{"category": "optimizer", "bytes": 6 * MIB, "tensors": [[4 * MIB, "m"], [MIB, "v"], [MIB, "w"]]},
                                                                                       {"category": "activations", "bytes": 100, "tensors": []},
                                                                                       {"category": "workspace", "bytes": -100, "tensors": []}]}]}
    shown = [(bar["label"], bar["total"], bar["values"]) for bar in draw(browser, "peaks", data)["bars"]]
    assert shown == [("cpu:0", "8 MiB", [6 * MIB, 2 * MIB]), ("cpu:1, cpu:2, each", "2 MiB", [2 * MIB]), ("cpu:3, planned", "1 MiB", [MIB]),
                     ("cpu:3, measured", "2 MiB of 3 MiB", [2 * MIB])], shown
    difference = draw(browser, "difference", data)
    assert difference["titles"] == ["cpu:1 at its peak: 2 MiB", "optimizer: m 4 MiB, v 1 MiB, 1 more: +6 MiB", "cpu:0 at its peak: 8 MiB"], difference
    data["record"]["devices"] = devices[1:3]
    assert draw(browser, "difference", data) is None
    modes = {name: {"samples_per_second": 20, "samples_per_second_of_rounds": rounds} for name, rounds in (("dp", [10, 20, 40]), ("ddp", [20]))}
    speed = draw(browser, "speed", {"kind": "comparison", "record": {"modes": modes}, "charts": []})
    assert [bar["total"] for bar in speed["bars"]] == ["20 \u00b175 % samples/s", "20 samples/s"], speed
    assert speed["bars"][0]["widths"] == speed["bars"][1]["widths"], speed


def learning(**record):
    return {"kind": "run", "record": {"first_step": 0, "step_losses": [], "epochs": [], "loss_scale": None} | record, "charts": [{"epoch_ends": [5]}]}


def check_curves(browser):
    losses = [1.0] * 20000
    losses[12345], losses[19997], losses[19998] = 50, 0.5, 3
    long = draw(browser, "learning", learning(step_losses=losses))
    assert len(long["curves"][0]) < 15000 and "at the end 1.00" in long["text"] and "step 20000" in long["text"], long["text"]
    heights = [float(point.split()[1]) for point in long["curves"][0][1:].split("L")]
    assert (max(heights) - min(heights)) / (max(heights) - heights[0]) > 40, "the peak of 50 is not in the curve"
    one = draw(browser, "learning", learning(epochs=[{"test_loss": None, "test_accuracy": 0.25}]))
    assert "After step 5: test accuracy 0.25." in one["text"] and not one["curves"], one
    assert draw(browser, "learning", learning(step_losses=[None, None]))["text"] == "", "a loss that is never finite has no curve"
    scale = {"initial": 65536, "final": 32768, "changes": [{"step": 4, "loss_scale": 32768}]}
    text = draw(browser, "learning", learning(step_losses=[1] * 9, loss_scale=scale))["text"]
    assert "32,768" in text and "65,536" in text, text
    text = draw(browser, "learning", learning(step_losses=[1] * 9, loss_scale=scale | {"changes": []}))["text"]
    assert "The loss scale is 65,536 in every step." in text, text
    choices = [{"recompute": [], "peak_bytes": 4 * MIB, "added_time": 0}, {"recompute": ["conv1-layer1.0", "fc"], "peak_bytes": 2 * MIB, "added_time": 0.125},
               {"recompute": ["conv1"], "peak_bytes": MIB, "added_time": 0.25}]
    plan = {"kind": "plan", "record": {"frontier": choices, "devices": [device("cpu:0", peak_bytes=4 * MIB, capacity_bytes=3 * MIB)]}, "charts": []}
    frontier = draw(browser, "frontier", plan)
    assert frontier["dots"] == [4 * MIB, 2 * MIB, MIB] and len(frontier["curves"]) == 2 and "+25 %" in frontier["text"], frontier
    assert "2 MiB, +12 %: --recompute conv1-layer1.0,fc" in frontier["titles"], frontier["titles"]


def memory(totals, phases):
    return {"moments": len(totals), "phases": phases, "categories": {"activations": [[m, bytes_] for m, bytes_ in enumerate(totals)]}, "extent": [[0, 0]],
            "peak": {"moment": totals.index(max(totals)), "bytes": max(totals), "place": "forward"}, "blocks": []}


def check_memory(browser):
    """Schemes share the axis of a step, whatever the number of their changes; gaps are drawn where they cost memory."""
    modes, charts = {}, []
    for name, totals, phases in (("ddp fp16", [4, 6, 7, 5], [[0, "step"], [1, "forward"], [2, "backward"]]),
                                 ("dp fp16", [4, 8, 10, 10, 4], [[0, "step"], [1, "forward"], [2, "gather"], [4, "backward"]])):
        modes[name] = {"devices": []}
        charts.append({"devices": [{"device": "cpu:0", "memory": None}, {"device": "cpu:1", "memory": memory([total << 10 for total in totals], phases)}]})
    shown = draw(browser, "overlay", {"kind": "comparison", "record": {"modes": modes}, "charts": charts})
    assert "ddp fp16, cpu:1, at most 7 KiB" in shown["text"] and "dp fp16, cpu:1, at most 10 KiB" in shown["text"], shown["text"]
    places = [[float(point.split()[0]) for point in curve[1:].split("L")] for curve in shown["curves"]]
    assert all({10, 108, 500, 990} <= {round(x) for x in xs} for xs in places), places  # start, forward, backward and end
    timeline = memory([4096, 7168, 4096], [[0, "step"], [1, "forward"]])
    run = {"kind": "run", "record": {"devices": [device("cpu:0")]}, "charts": [{"devices": [{"device": "cpu:0", "memory": timeline}]}]}
    assert not any("fragmentation" in title for title in draw(browser, "memory", run)["titles"])
    timeline["extent"], timeline["peak"]["bytes"] = [[0, 4096], [1, 9216], [2, 4096]], 9216
    shown = draw(browser, "memory", run)
    assert "fragmentation: gaps between blocks, 2 KiB beyond the largest sum of blocks" in shown["titles"], shown["titles"]
    assert "peak: 9 KiB (9,216 bytes) in forward" in shown["titles"] and "forward: changes 1 to 2" in shown["titles"], shown["titles"]


def move_last_tick(page, to):
    """Writes a copy of a page whose axis of time has its last tick as far to the right as a run's times can put it."""
    with open(page, encoding="utf-8") as file:
        text = file.read()
    found = re.search(r'(<script type="application/json" id="record">)(.*?)(</script>)', text, re.S)
    data = json.loads(found[2])
    for chart in data["charts"][0]["devices"]:
        factor = 40e6 / 0.9701 / (chart["step"]["end"] - chart["step"]["begin"])
        for stream in ("host", "compute", "communication", "copy"):
            for span in chart["step"][stream]:
                span["begin"], span["end"] = (int(factor * (span[end] - chart["step"]["begin"])) for end in ("begin", "end"))
        chart["step"]["begin"], chart["step"]["end"] = 0, int(40e6 / 0.9701)
    with open(to, "w", encoding="utf-8") as file:
        file.write(text[:found.start(2)] + json.dumps(data).replace("</", "<\\/") + text[found.end(2):])


def main():
    path = find_browser()
    if path is None:
        print("skipped: there is no Chromium here; install it with: apt-get install chromium")
        return 77
    with tempfile.TemporaryDirectory(prefix="vitrine_report_") as temporary:
        folder = os.path.abspath(sys.argv[2]) if len(sys.argv) > 2 else temporary
        for name, (arguments, _, _) in RUNS.items():
            command = [os.path.abspath(sys.argv[1]), *arguments, *(COMMON if name not in ("frontier", "lab") else []), "--report", os.path.join(folder, name + ".html")]
            ended = subprocess.run(command, check=False, stdout=subprocess.DEVNULL, cwd=temporary)
            assert ended.returncode == (1 if name == "plan" else 0), f"{name} ended with {ended.returncode}"
        browser, drawn = Browser(path), set()
        try:
            for name, (_, charts, words) in RUNS.items():
                check_page(browser, name, os.path.join(folder, name + ".html"), charts, words)
                drawn |= check_values(browser, name)
            for check in (check_movement, check_bars, check_curves, check_memory):
                check(browser)
            assert not complaints(browser), complaints(browser)
            assert drawn == CHARTS, f"no page has {CHARTS - drawn}"
            late_tick = os.path.join(folder, "late_tick.html")
            move_last_tick(os.path.join(folder, "train.html"), late_tick)
            check_page(browser, "late_tick", late_tick, *RUNS["train"][1:])
        finally:
            browser.close()
    print("all pages are drawn")
    return 0


if __name__ == "__main__":
    sys.exit(main())
