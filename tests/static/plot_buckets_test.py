# SPDX-License-Identifier: Apache-2.0
"""tools/plot_buckets draws a line for each division of the cores, and says so when there is nothing to draw."""
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml

program = sys.argv[1]


def plot(benchmarks):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "buckets.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"benchmarks": benchmarks}, file)
        return subprocess.run([sys.executable, program, path], capture_output=True, text=True, check=False)


def run(job, cores, mib, ms, run_type="iteration"):
    name = f"buckets/{job}{cores}/mib:{mib}/iterations:1/manual_time"
    return {"name": name, "run_type": run_type, "real_time": ms, "exposed_ms": ms / 10, "hidden": 0.5}


runs = [run("alexnet", f"/spare_cores:{spare}", mib, 100 + repetition) for spare in (0, 2) for mib in (0.25, 1, 256) for repetition in range(3)]
runs += [run("small", "", 1, 20), run("small", "", 4, 0), run("small", "", 4, 1e6, "aggregate")]
result = plot(runs)
assert result.returncode == 0, result.stderr
svg = xml.fromstring(result.stdout)
kind = "{http://www.w3.org/2000/svg}"
assert len(svg.findall(kind + "polyline")) == 3 * 3, "three quantities of three series"
assert len(svg.findall(kind + "circle")) == 3 * (3 + 3 + 2), "repetitions are one point, aggregates none"
texts = [text.text for text in svg.findall(kind + "text")]
assert {"alexnet", "small", "no spare core", "2 spare cores", "0.25", "256"} <= set(texts), texts

result = plot([{"name": "step/alexnet"}])
assert result.returncode == 1 and "has no results of bench_buckets" in result.stderr, result.stderr
