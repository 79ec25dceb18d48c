#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The planner as a web page plans what the program plans: the same bytes in drawn configurations, in node and, for some of them, through the page in
a headless Chromium. Skipped (77) where the program was built without the page, or where there is no node; the browser's part where there is no Chromium.

usage: page_test.py PROGRAM PLANNER.js [COUNT [FOLDER]]      with FOLDER the page and its screenshots stay there
"""
import base64
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile

from browser import Browser, find_browser

IN_BROWSER = 50
MOST_BYTES = 3_000_000
MOST_MS = 100
# Reads a request from each line and prints the answer in a line.
DRIVER = """
const wasmBinary = require('fs').readFileSync(process.argv[1].replace(/js$/, 'wasm'));  // emscripten 3.1.6 cannot read it where node has fetch()
require(process.argv[1])({print() {}, printErr() {}, wasmBinary}).then((planner) => {
  require('readline').createInterface({input: process.stdin}).on('line', (line) =>
    process.stdout.write(planner.ccall('plan', 'string', ['string'], [line]) + '\\n'));
});
"""
# Sets the state as a link does and returns the page's text when it has been planned.
SHOW = """
(async () => {
  const main = document.querySelector('main');
  main.ariaBusy = true;
  location.hash = '#' + encodeURI(%s);
  while (main.ariaBusy !== 'false') await new Promise((done) => setTimeout(done, 1));
  const row = [...main.querySelectorAll('tr')].find((tr) => tr.firstChild.textContent.trim() === 'in bytes');
  return {bytes: row ? [...row.querySelectorAll('td')].map((td) => +td.textContent.replaceAll(',', '')) : null, answer: document.getElementById('answer').textContent};
})()
"""
# Moves a control as a hand does and returns the milliseconds until the page has been drawn.
MOVE = """
(async () => {
  const main = document.querySelector('main'), input = [...document.querySelectorAll('#controls label')].find((l) => l.firstChild.textContent === %s).querySelector('input,select');
  const since = performance.now();
  input.value = %s;
  input.dispatchEvent(new Event('input', {bubbles: true}));
  while (main.ariaBusy !== 'false') await new Promise((done) => setTimeout(done, 1));
  await new Promise(requestAnimationFrame);
  return performance.now() - since;
})()
"""


def draw(dice, modes):
    """The flags of a plan."""
    model = dice.choice(["mlp", "lenet5", "small-cnn", "resnet18-cifar", "wide-head", "alexnet"])
    count, mode = dice.randint(1, 16), dice.choice(modes)
    batch = dice.randint(16, 300) if model != "wide-head" else dice.randint(16, 48)
    kind = dice.choice(["cuda", "cuda", "cpu"])
    flags = ["--model", model, "--devices", f"{kind}:0-{count - 1}" if count > 1 else f"{kind}:0", "--mode", mode, "--batch-size", str(batch),
             "--workspace", dice.choice(["0", "1MiB", "64MiB", "1GiB"]), "--precision", dice.choice(["fp32", "fp16", "bf16"])]
    if kind == "cpu":
        flags += ["--threads-per-device", "1"]
    if mode == "balanced" or dice.random() < 0.2:
        flags += ["--split", f"gpu0={dice.randint(0, batch)}"]
    elif dice.random() < 0.2:
        flags += ["--split", ",".join(str(dice.randint(1, 9)) for _ in range(count))]
    small = model in ("mlp", "lenet5")  # what would fit is searched for with many plans
    if kind == "cpu" or dice.random() < 0.5:
        flags += ["--device-memory", dice.choice(["8MiB", "2MiB"]) if small and count < 4 and dice.random() < 0.3 else "64GiB"]
    if dice.random() < 0.3:
        flags += ["--accumulate", str(dice.randint(1, 8))]
    if dice.random() < 0.3:
        flags += ["--recompute-segments", dice.choice(["2", "3", "sqrt"])]
    if dice.random() < 0.3:
        flags += ["--optimizer", dice.choice(["sgd", "adam", "adamw"])]
    if dice.random() < 0.2:
        flags += ["--no-eval"]
    if dice.random() < 0.1:
        flags += ["--image-size", str(dice.randint(32, 96))]
    if dice.random() < 0.1:
        flags += ["--exact"]
    return flags


def program_plans(program, flags):
    """What the program prints on stdout and stderr."""
    ended = subprocess.run([program, "plan", *flags, "--json"], check=False, capture_output=True, text=True)
    return ended.stdout, ended.stderr


def compare(program, planner, drawn):
    """Asserts that the planner in node returns what the program prints."""
    requests = "".join(json.dumps({"arguments": ["plan", *flags, "--json"], "files": {}, "remedies": True}) + "\n" for flags in drawn)
    answers = subprocess.run(["node", "-e", DRIVER, planner], check=True, input=requests, capture_output=True, text=True).stdout.splitlines()
    assert len(answers) == len(drawn), f"{len(answers)} answers to {len(drawn)} requests"
    refused = 0
    for flags, answer in zip(drawn, map(json.loads, answers)):
        out, err = program_plans(program, flags)
        if "error" in answer:
            refused += 1
            assert not out and answer["error"].strip() in err, f"{' '.join(flags)}\npage: {answer['error']}\nprogram: {out}{err}"
        else:
            assert answer["json"] + "\n" == out, f"{' '.join(flags)}\npage: {answer['json']}\nprogram: {out}{err}"
    assert refused < len(drawn) / 2, f"{refused} of {len(drawn)} were refused"
    return refused


def complaints(browser):
    return [event for event in browser.events if event.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled") or
            event.get("method") == "Network.requestWillBeSent" and not event["params"]["request"]["url"].startswith(("file:", "data:", "blob:"))]


def look(browser, program, page, drawn):
    """Asserts that the page shows what the program prints, fits the screen and answers in time."""
    browser.open("file://" + page + "#--model mlp --workspace 0", 1400, False)
    for flags in drawn:
        out, err = program_plans(program, flags)
        shown = browser.evaluate(SHOW % json.dumps(" ".join(flags)))
        if out:
            peaks = [device["peak_bytes"] for device in json.loads(out)["devices"]]
            assert shown["bytes"] is not None and set(shown["bytes"]) == set(peaks), f"{' '.join(flags)}: the page shows {shown}, the program {peaks}"
        else:
            assert err.splitlines()[0].split(": ", 1)[1] in shown["answer"], f"{' '.join(flags)}: the page says {shown['answer']}, the program {err}"
    browser.evaluate(SHOW % json.dumps("--model alexnet --devices cuda:0-7 --mode dp --batch-size 256 --workspace 64MiB"))
    times = sorted(browser.evaluate(MOVE % ("'batch size'", f"'{256 + 8 * i}'")) for i in range(11))
    print(f"a change shows in {times[5]:.0f} ms (AlexNet on 8 devices; median of 11, {times[0]:.0f} to {times[-1]:.0f})")
    assert not complaints(browser), complaints(browser)
    for width in (1400, 800, 360):
        for dark in (False, True):
            browser.open("file://" + page, width, dark)
            browser.evaluate(SHOW % json.dumps("--model alexnet --mode dp --devices cuda:0-3 --device-memory 4GiB --batch-size 512 --workspace 64MiB"))
            seen = browser.evaluate("document.documentElement.scrollWidth")
            assert seen <= width, f"the page is {seen} px wide on {width} px"
            shot = browser.call("Page.captureScreenshot", captureBeyondViewport=True)
            with open(f"{page[:-5]}_{width}{'_dark' if dark else ''}.png", "wb") as file:
                file.write(base64.b64decode(shot["data"]))
            assert not complaints(browser), complaints(browser)


def main():
    program, planner = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 100
    with tempfile.TemporaryDirectory(prefix="vitrine_page_") as temporary:
        page = os.path.join(os.path.abspath(sys.argv[4]) if len(sys.argv) > 4 else temporary, "planner.html")
        written = subprocess.run([program, "page", "--out", page], check=False, capture_output=True, text=True)
        if written.returncode != 0:
            assert "apt-get install emscripten" in written.stderr, written.stderr
            print("skipped: " + written.stderr.strip())
            return 77
        assert os.path.getsize(page) <= MOST_BYTES, f"the page has {os.path.getsize(page)} bytes"
        if not shutil.which("node"):
            print("skipped: there is no node here; install it with: apt-get install nodejs")
            return 77
        modes = next(row["words"] for row in controls(page) if row["flag"] == "--mode")
        dice = random.Random(32)
        drawn = [draw(dice, modes) for _ in range(count)]
        refused = compare(program, planner, drawn)
        print(f"{count} drawn configurations: {count - refused} plans equal to the byte, {refused} refused in the same words")
        path = find_browser()
        if path is None:
            print("the page itself is not tried: there is no Chromium here; install it with: apt-get install chromium")
            return 0
        browser = Browser(path)
        try:
            look(browser, program, page, drawn[:IN_BROWSER])
        finally:
            browser.close()
    return 0


def controls(page):
    """The controls that a page has, from its data."""
    with open(page, encoding="utf-8") as file:
        return json.loads(file.read().split('id="record">', 1)[1].split("</script>", 1)[0])["controls"]


if __name__ == "__main__":
    sys.exit(main())
