#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plots what vitrine train --log FILE.jsonl wrote: loss by step, accuracy by epoch.   usage: plot_log.py FILE.jsonl FILE.png"""
import json
import sys
import matplotlib.pyplot as plt

rows = [json.loads(line) for line in open(sys.argv[1], encoding="utf-8")]
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
for axis, kind, name in ((left, "step", "loss"), (right, "epoch", "test_accuracy")):
    points = [(row["step"], row[name]) for row in rows if row["kind"] == kind and row[name] is not None]
    axis.plot([x for x, _ in points], [y for _, y in points])
    axis.set(xlabel="step", ylabel=name.replace("_", " "))
figure.savefig(sys.argv[2])
