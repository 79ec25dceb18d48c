#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the program with --report and looks at the pages in a headless Chromium: no error, no request, every chart drawn, nothing wider than the
screen, in both color schemes, in print. Skipped (77) where there is no Chromium.

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
              7, ["equal to the byte", "capacity 20 MiB", "wait for", "loss scale", "test accuracy", "outside the pool", "Findings", "What moves where", "broadcast",
                  "Why cpu:0 holds more than cpu:1", "oneDNN|Eigen"]),
    "plan": (["plan", "--mode", "dp", "--accumulate", "2", "--device-memory", "10MiB"], 3,
             ["does not fit", "Held for backward", "reached in", "capacity 10 MiB", "Why cpu:0 holds more than cpu:1", "large"]),
    "compare": (["compare", "--steps", "4", "--modes", "dp,ddp,zero1"], 7, ["samples/s", "The device that holds most", "gradient difference", "dp", "ddp", "peak", "equal to the byte"]),
    "lab": (["lab"], 14, ["average-of-averages", "with the bug", "How to notice it", "missing-event"]),
}

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
    for (const text of chart.querySelectorAll(':scope > text')) {
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
    for width in (360, 1200):
        for dark in (False, True):
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


def all_blocks(value):
    """Every object within a page's record."""
    if isinstance(value, dict):
        yield value
    for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else []:
        yield from all_blocks(child)


def move_last_tick(page, to):
    """Writes a copy of a page whose axis of time has its last tick as far to the right as a run's times can put it."""
    with open(page, encoding="utf-8") as file:
        text = file.read()
    record = re.search(r'(<script type="application/json" id="record">)(.*?)(</script>)', text, re.S)
    data = json.loads(record[2])
    lanes = [block for block in all_blocks(data) if block.get("kind") == "lanes"]
    for block in lanes:
        block["ticks"][-1][0] = 0.97 * block["length"]
    assert lanes, f"{page} has no axis of time"
    with open(to, "w", encoding="utf-8") as file:
        file.write(text[:record.start(2)] + json.dumps(data).replace("</", "<\\/") + text[record.end(2):])


def main():
    path = find_browser()
    if path is None:
        print("skipped: there is no Chromium here; install it with: apt-get install chromium")
        return 77
    with tempfile.TemporaryDirectory(prefix="vitrine_report_") as temporary:
        folder = os.path.abspath(sys.argv[2]) if len(sys.argv) > 2 else temporary
        for name, (arguments, _, _) in RUNS.items():
            command = [os.path.abspath(sys.argv[1]), *arguments, *(COMMON if name != "lab" else []), "--report", os.path.join(folder, name + ".html")]
            ended = subprocess.run(command, check=False, stdout=subprocess.DEVNULL, cwd=temporary)
            assert ended.returncode == (1 if name == "plan" else 0), f"{name} ended with {ended.returncode}"
        browser = Browser(path)
        try:
            for name, (_, charts, words) in RUNS.items():
                check_page(browser, name, os.path.join(folder, name + ".html"), charts, words)
            late_tick = os.path.join(folder, "late_tick.html")
            move_last_tick(os.path.join(folder, "train.html"), late_tick)
            check_page(browser, "late_tick", late_tick, *RUNS["train"][1:])
        finally:
            browser.close()
    print("all pages are drawn")
    return 0


sys.exit(main())
