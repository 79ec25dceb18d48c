#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The planner as a web page plans what the program plans: the same bytes in drawn configurations, in node and, for some of them, through the page in
a headless Chromium, where its links, lessons, buttons and model files are tried too. Skipped (77) where the program was built without the page, or where
there is no node; the browser's part where there is no Chromium.

usage: page_test.py PROGRAM PLANNER.js [COUNT [FOLDER]]      with FOLDER the page and its screenshots stay there
"""
import base64
import gzip
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile

from browser import Browser, find_browser

IN_BROWSER = 20
RECORDED = 20
MOST_BYTES = 3_000_000
# Reads a request from each line and prints the answer in a line; a text is the record of workspaces.
DRIVER = """
const wasmBinary = require('fs').readFileSync(process.argv[1].replace(/js$/, 'wasm'));  // emscripten 3.1.6 cannot read it where node has fetch()
require(process.argv[1])({print() {}, printErr() {}, wasmBinary}).then((planner) => {
  require('readline').createInterface({input: process.stdin}).on('line', (line) => {
    if (line[0] === '"') return planner.ccall('use_workspaces', null, ['string'], [JSON.parse(line)]);
    process.stdout.write(planner.ccall('plan', 'string', ['string'], [line]) + '\\n');
  });
});
"""
# Does something, waits until the page has planned, and returns what it shows.
SHOWN = """
(async () => {
  const main = document.querySelector('main');
  main.ariaBusy = true;
  %s
  for (const since = performance.now(); main.ariaBusy !== 'false'; await new Promise((done) => setTimeout(done, 1)))
    if (performance.now() - since > 60000) throw Error('no plan within a minute');
  const row = [...main.querySelectorAll('tr')].find((tr) => tr.firstChild.textContent.trim() === 'in bytes');
  return {bytes: row ? [...row.querySelectorAll('td')].map((td) => +td.textContent.replaceAll(',', '')) : null, answer: document.getElementById('answer').textContent,
          story: document.querySelector('.story')?.textContent ?? '', lesson: document.getElementById('lesson').textContent, link: decodeURI(location.hash),
          stale: document.body.matches('.stale')};
})()
"""
FIND = "[...document.querySelectorAll('#controls label')].find((l) => l.firstChild.textContent === %s).querySelector('input,select')"
# Moves a control as a hand does and returns the milliseconds until the page has been drawn.
TIME = """
(async () => {
  const main = document.querySelector('main'), begin = performance.now();
  %s
  for (const since = performance.now(); main.ariaBusy !== 'false'; await new Promise((done) => setTimeout(done, 1)))
    if (performance.now() - since > 60000) throw Error('no plan within a minute');
  await new Promise(requestAnimationFrame);
  return performance.now() - begin;
})()
"""
# Waits for what would fit.
REMEDIES = """
(async () => {
  for (const since = performance.now(); !document.querySelector('.remedies button'); await new Promise((done) => setTimeout(done, 5)))
    if (performance.now() - since > 60000) throw Error(document.getElementById('answer').textContent);
})()
"""
MODEL = {"name": "two-layers", "input": [3, 32, 32],
         "layers": [{"type": "Flatten"}, {"type": "Linear", "out_features": 64}, {"type": "ReLU"}, {"type": "Linear", "out_features": 10}]}


def draw(dice, modes):
    """The flags of a plan."""
    model = dice.choice(["mlp", "lenet5", "small-cnn", "resnet18-cifar", "wide-head", "alexnet", dice.choice(["resnet50", "vgg16"])])
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
    if dice.random() < 0.1 and mode in ("ddp", "zero1", "zero2", "zero3") and "--split" not in flags:
        flags += ["--processes", str(dice.randint(2, 4))]
    if dice.random() < 0.1 and kind == "cpu" and "fp32" in flags:
        flags += ["--winograd"]
    return flags


def draw_recorded(dice, modes, winograd):
    """The flags of a plan on CPU devices without --workspace, of which the page has a record if no device has more than `most` samples."""
    model = dice.choice(["mlp", "lenet5", "small-cnn", "resnet18-cifar", "alexnet", "resnet18", "resnet50", "vgg16"])
    count, mode, most = dice.randint(1, 8), dice.choice(modes), 32 if model in ("resnet50", "vgg16") else 64
    batch = dice.randint(16, most) if mode == "balanced" or dice.random() < 0.4 else dice.randint(16, most * count)
    flags = ["--model", model, "--devices", f"cpu:0-{count - 1}" if count > 1 else "cpu:0", "--mode", mode, "--batch-size", str(batch),
             "--threads-per-device", dice.choice(["1", "2"]), "--steps", "3", "--device-memory",
             "8MiB" if model == "small-cnn" and count < 4 and dice.random() < 0.5 else "16GiB"]
    if mode == "balanced":
        flags += ["--split", f"gpu0={dice.randint(0, batch)}"]
    elif batch <= most and dice.random() < 0.5:
        flags += ["--split", ",".join(str(dice.randint(1, 9)) for _ in range(count))]
    if dice.random() < 0.3:
        flags += ["--accumulate", str(dice.randint(1, 4))]
    if dice.random() < 0.3:
        flags += ["--recompute-segments", dice.choice(["2", "3", "sqrt"])]
    if dice.random() < 0.5 or most < 64:  # evaluation has batches of 64
        flags += ["--no-eval"]
    return flags + dice.choice([[], ["--precision", "fp16"], ["--precision", "bf16"], ["--winograd"] if winograd else []])


def program_plans(program, flags):
    """What the program prints on stdout and stderr."""
    ended = subprocess.run([program, "plan", *flags, "--json"], check=False, capture_output=True, text=True)
    return ended.stdout, ended.stderr


def without_arithmetic(plan):
    """A plan but for the libraries that would compute, which a page cannot know."""
    return re.sub('"cpu_arithmetic":("[^"]*"|null)', "", plan)


def compare(program, planner, drawn, workspaces):
    """Asserts that the planner in node returns what the program prints. Returns how many plans were refused, how many have a workspace that the page
    assumes and says so, and those whose workspace the program refuses, where the page says that it does not know."""
    requests = json.dumps(workspaces) + "\n" + "".join(json.dumps({"arguments": ["plan", *flags, "--json"], "files": {}, "remedies": True}) + "\n" for flags in drawn)
    answers = subprocess.run(["node", "-e", DRIVER, planner], check=True, input=requests, capture_output=True, text=True).stdout.splitlines()
    assert len(answers) == len(drawn), f"{len(answers)} answers to {len(drawn)} requests"
    refused, assumed, unknown = 0, 0, []
    for flags, answer in zip(drawn, map(json.loads, answers)):
        out, err = program_plans(program, flags)
        if "error" in answer:
            refused += 1
            assert not out and answer["error"].strip() in err, f"{' '.join(flags)}\npage: {answer['error']}\nprogram: {out}{err}"
        elif "The workspace of" in answer["assumption"] and "is an assumption" in answer["assumption"]:
            assumed += 1
        elif not out and "needs a workspace of at least" in err and "is not known here" in answer["assumption"]:
            unknown.append(flags)
        else:
            assert without_arithmetic(answer["json"] + "\n") == without_arithmetic(out), f"{' '.join(flags)}\npage: {answer['json']}\nprogram: {out}{err}"
    assert refused + len(unknown) < len(drawn) / 2, f"{refused} and {len(unknown)} of {len(drawn)} were refused"
    return refused, assumed, unknown


def link(flags):
    """JavaScript that follows a link to a state of the page."""
    return f"location.hash = '#' + encodeURI({json.dumps(flags)});"


def move(control, value):
    """JavaScript that moves a control as a hand does."""
    return f"{{ const input = {FIND % json.dumps(control)}; input.value = {json.dumps(value)}; input.dispatchEvent(new Event('input', {{bubbles: true}})); }}"


def complaints(browser):
    return [event for event in browser.events if event.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled") or
            event.get("method") == "Network.requestWillBeSent" and not event["params"]["request"]["url"].startswith(("file:", "data:", "blob:"))]


def shows(browser, program, action, flags):
    """Asserts that after an action the page shows what the program prints with those flags, and returns what it shows."""
    out, err = program_plans(program, flags)
    shown = browser.evaluate(SHOWN % action)
    what = f"{' '.join(flags)}: the page shows {shown}, the program {out}{err}"
    assert shown["stale"] == (not out), what
    if out:
        plan = json.loads(out)
        peaks, bytes_shown = {device["peak_bytes"] for device in plan["devices"]}, shown["bytes"] or []
        # Of many devices that differ, the page shows the least, the median and the most.
        spread = [min(peaks), *bytes_shown[1:2], max(peaks)]
        assert set(bytes_shown) == peaks or len(peaks) > 3 and bytes_shown == spread and spread == sorted(spread), what
        assert shown["story"].startswith("It does not fit") == (not plan["fits"]), what
    else:
        assert err.splitlines()[0].split(": ", 1)[1] in shown["answer"], what
    return shown


def assume(browser):
    """Asserts that the page says what it assumes and what is recorded, and nothing of what it was told."""
    kinds = ("capacity assumed", "workspace assumed", "workspace recorded")
    for flags, said in (("--model mlp --devices cpu:0-1 --threads-per-device 1", ("capacity assumed", "workspace recorded")),
                        ("--model mlp --devices cpu:0-1 --workspace 0", ("capacity assumed",)),
                        ("--model small-cnn --devices cpu:0 --device-memory 1GiB --threads-per-device 1 --no-eval", ("workspace recorded",)),
                        ("--model small-cnn --devices cpu:0 --device-memory 1GiB --threads-per-device 7", ("workspace assumed",)),
                        ("--model vgg16 --devices cpu:0 --device-memory 9GiB --threads-per-device 1 --batch-size 2 --precision bf16 --no-eval", ("workspace recorded",)),
                        ("--model vgg16 --devices cpu:0 --device-memory 9GiB --threads-per-device 1 --batch-size 33 --no-eval", ("workspace assumed",)),
                        ("--model small-cnn --devices cuda:0", ("workspace assumed",)),
                        ("--model mlp --devices cpu:0 --device-memory 1GiB --workspace 0", ())):
        answer = browser.evaluate(SHOWN % link(flags))["answer"]
        for kind in kinds:
            what, how = kind.split()
            found = re.search(f"The {what} of [^:]* is {'an assumption' if how == 'assumed' else 'recorded'}", answer)
            assert bool(found) == (kind in said), f"{flags}: {answer}"


def learn(browser, program, page):
    """Asserts that a link opens a lesson, that its explanation follows the first move, and that the link then holds what was moved."""
    lesson = "--model alexnet --mode {} --devices cuda:0-7 --batch-size 256 --workspace 64MiB --no-eval"
    browser.open("about:blank", 1400, False)  # a link within the page would not load it
    browser.open("file://" + page + "#lesson-9", 1400, False)
    asked = shows(browser, program, link("lesson-9"), lesson.format("zero1").split())
    assert "sharding" in asked["lesson"] and "Explanation" not in asked["lesson"], asked
    moved = shows(browser, program, move("mode", "ddp"), lesson.format("ddp").split())
    assert "reduce-scatter" in moved["lesson"], moved
    assert moved["link"] == "#" + lesson.format("ddp"), moved
    browser.open("about:blank", 1400, False)
    browser.open("file://" + page + moved["link"].replace(" ", "%20"), 1400, False)
    processes = browser.evaluate(SHOWN % link("lesson-8"))
    assert browser.evaluate("[...document.querySelectorAll('svg.chart text')].some((text) => text.textContent.startsWith('rank 1'))"), "no column of the other process"
    assert "a plan cannot show it" in processes["lesson"].lower() and "--processes 2" in processes["link"], processes
    browser.open("about:blank", 1400, False)
    browser.open("file://" + page + moved["link"].replace(" ", "%20"), 1400, False)
    again = shows(browser, program, move("batch size", "128"), lesson.format("ddp").replace("256", "128").split())
    assert "vitrine plan " + lesson.format("ddp").replace("256", "128") in again["answer"], again


def use(browser, program, folder):
    """Asserts that remedies are buttons, that sliders set flags, and that a model file is planned."""
    flags = "--model alexnet --mode dp --devices cuda:0-3 --device-memory 1GiB --batch-size 512 --workspace 64MiB"
    shows(browser, program, link(flags), flags.split())
    browser.evaluate(REMEDIES)
    remedy = browser.evaluate("document.querySelector('.remedies button').textContent")
    assert remedy in json.loads(program_plans(program, flags.split())[0])["remedies"], remedy
    kept = [*flags.replace(" --batch-size 512", "" if "--batch-size" in remedy else " --batch-size 512").split(), *remedy.split()]
    fits = shows(browser, program, "document.querySelector('.remedies button').click();", kept)
    assert fits["story"].startswith("It fits"), fits
    slide = "{ const slider = document.querySelector('[aria-label=\"number of devices\"]'); slider.value = 7; slider.dispatchEvent(new Event('input', {bubbles: true})); }"
    shows(browser, program, slide, " ".join(kept).replace("cuda:0-3", "cuda:0-6").split())
    cpus = "--model mlp --devices cpu:0-1 --device-memory 1GiB --workspace 0 --threads-per-device 1"
    shows(browser, program, link(cpus), cpus.split())
    shows(browser, program, slide, cpus.replace("cpu:0-1", "cpu:0-6").split())
    path = os.path.join(folder, "two_layers.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(MODEL, file)
    own = "--mode zero2 --devices cuda:0-2 --batch-size 96 --workspace 1MiB"
    shows(browser, program, link("--model mlp " + own), ["--model", "mlp", *own.split()])
    choose = """{ const input = document.querySelector('input[type=file]'), files = new DataTransfer();
        files.items.add(new File([%s], 'two_layers.json')); input.files = files.files; input.dispatchEvent(new Event('change')); }"""
    shows(browser, program, choose % json.dumps(json.dumps(MODEL)), ["--model", path, *own.split()])


def reach(browser):
    """Asserts that Tab reaches every control, with a visible focus; that controls have names, and charts names and tables; and that nothing moves by itself."""
    nameless = browser.evaluate("""[...document.querySelectorAll('select,input,button,a,summary')].filter(
        (e) => !(e.ariaLabel || e.labels?.[0]?.firstChild.textContent.trim() || !e.labels?.length && !e.options && e.textContent.trim())).map((e) => e.outerHTML)""")
    assert not nameless, nameless
    browser.evaluate("document.activeElement.blur(); window.unseen = []; window.controls = [...document.querySelectorAll('select,input,button,a,summary')].filter((e) => e.checkVisibility())")
    for _ in range(browser.evaluate("controls.length") + 20):
        for kind in ("keyDown", "keyUp"):
            browser.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
        browser.evaluate("""(() => {
          const focused = document.activeElement, style = getComputedStyle(focused);
          controls = controls.filter((e) => e !== focused);
          if (focused !== document.body && (style.outlineStyle === 'none' || parseFloat(style.outlineWidth) < 1)) unseen.push(focused.outerHTML);
        })()""")
    missed = browser.evaluate("[controls.map((e) => e.outerHTML.slice(0, 200)), unseen]")
    assert missed == [[], []], missed
    unread = browser.evaluate("""[...document.querySelectorAll('svg.chart')].filter((e) => e.getAttribute('role') !== 'img' || !e.ariaLabel ||
        !e.closest('section').querySelector('table')).map((e) => e.closest('section').textContent.slice(0, 80))""")
    assert not unread, unread
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-reduced-motion", "value": "reduce"}])
    moving = browser.evaluate("""document.getAnimations().length + [...document.querySelectorAll('*')].filter((e) => {
      const style = getComputedStyle(e);
      return style.animationName !== 'none' || parseFloat(style.transitionDuration) > 0 || style.scrollBehavior !== 'auto';
    }).length""")
    assert moving == 0, f"{moving} elements move"


def look(browser, program, page, drawn):
    """Asserts that the page shows what the program prints and fits the screen, and prints the time of a change."""
    browser.open("file://" + page + "#--model%20mlp%20--workspace%200", 1400, False)
    for flags in drawn:
        shows(browser, program, link(" ".join(flags)), flags)
    recorded = "--model resnet18-cifar --devices cpu:0-1 --threads-per-device 1 --device-memory 1GiB --batch-size 32 --steps 3"
    shows(browser, program, link(recorded), recorded.split())
    use(browser, program, os.path.dirname(page))
    assume(browser)
    browser.evaluate(SHOWN % link("--model alexnet --devices cuda:0-7 --mode dp --batch-size 256 --workspace 64MiB"))
    times = sorted(browser.evaluate(TIME % move("batch size", str(256 + 8 * i))) for i in range(11))
    print(f"a change shows in {times[5]:.0f} ms (AlexNet on 8 devices; median of 11, {times[0]:.0f} to {times[-1]:.0f})")
    assert not complaints(browser), complaints(browser)
    learn(browser, program, page)
    assert not complaints(browser), complaints(browser)
    reach(browser)
    for width in (1400, 800, 360):
        for dark in (False, True):
            browser.open("file://" + page, width, dark)
            browser.evaluate(SHOWN % link("--model alexnet --mode dp --devices cuda:0-3 --device-memory 1GiB --batch-size 512 --workspace 64MiB"))
            browser.evaluate(REMEDIES)
            seen = browser.evaluate("document.documentElement.scrollWidth")
            assert seen <= width, f"the page is {seen} px wide on {width} px"
            shot = browser.call("Page.captureScreenshot", captureBeyondViewport=True)
            with open(f"{page[:-5]}_{width}{'_dark' if dark else ''}.png", "wb") as file:
                file.write(base64.b64decode(shot["data"]))
            assert not complaints(browser), complaints(browser)


def main():
    program, planner = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 50
    with tempfile.TemporaryDirectory(prefix="vitrine_page_") as temporary:
        page = os.path.join(os.path.abspath(sys.argv[4]) if len(sys.argv) > 4 else temporary, "planner.html")
        written = subprocess.run([program, "page", "--out", page], check=False, capture_output=True, text=True)
        if written.returncode != 0:
            assert "apt-get install emscripten" in written.stderr, written.stderr
            print("skipped: " + written.stderr.strip())
            return 77
        with open(page, "rb") as file:
            compressed = len(gzip.compress(file.read()))
        assert compressed <= MOST_BYTES, f"the page has {compressed} bytes, compressed"
        if not shutil.which("node"):
            print("skipped: there is no node here; install it with: apt-get install nodejs")
            return 77
        modes = next(row["words"] for row in data_of(page)["controls"] if row["flag"] == "--mode")
        dice = random.Random(32)
        drawn = [draw(dice, modes) for _ in range(count)]
        workspaces = data_of(page)["workspaces"]
        refused, assumed, unknown = compare(program, planner, drawn, workspaces)
        assert not assumed, f"{assumed} plans with --workspace assume one"
        print(f"{count} drawn configurations: {count - refused - len(unknown)} plans equal to the byte, {refused} refused in the same words, {len(unknown)} that the "
              "program refuses for a small workspace of CPUs")
        recorded = [draw_recorded(dice, modes, " winograd " in workspaces) for _ in range(max(RECORDED, count // 10))]
        refused, assumed, _ = compare(program, planner, recorded, workspaces)
        assert assumed <= len(recorded) / 10, f"{assumed} of {len(recorded)} plans have a workspace of which the page has no record"
        print(f"{len(recorded)} with recorded workspaces ({len(workspaces)} bytes of {workspaces.splitlines()[0]}): {len(recorded) - refused - assumed} plans equal to "
              f"the byte, {refused} refused in the same words, {assumed} without a record")
        path = find_browser()
        if path is None:
            print("the page itself is not tried: there is no Chromium here; install it with: apt-get install chromium")
            return 0
        browser = Browser(path)
        try:
            look(browser, program, page, [flags for flags in drawn if flags not in unknown][:max(IN_BROWSER, count // 20)])
        finally:
            browser.close()
    return 0


def data_of(page):
    """What a page was written with."""
    with open(page, encoding="utf-8") as file:
        return json.loads(file.read().split('id="record">', 1)[1].split("</script>", 1)[0])


if __name__ == "__main__":
    sys.exit(main())
