#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares a step of small-cnn through vitrine.Engine with one of the program, in turns, on one CPU device.

usage: PYTHONPATH=build/release/python tests/python/step_benchmark.py [STEPS] [TURNS]      [200 steps in each of 7 turns]
"""
import statistics
import sys
import time

import numpy
import vitrine

STEPS, TURNS = (int(text) for text in [*sys.argv[1:], *("200", "7")[len(sys.argv) - 1:]])
FLAGS = {"devices": "cpu:0", "batch_size": 64, "threads_per_device": 1, "normalize": "0.5,0.5,0.5/0.2,0.2,0.2"}

engine = vitrine.Engine("small-cnn", image_size=32, dtype="uint8", **FLAGS)
rng = numpy.random.default_rng(0)
x, y = rng.integers(0, 255, (64, 32, 32, 3), dtype=numpy.uint8), rng.integers(0, 10, 64, dtype=numpy.int32)
engine.step(x, y).loss


def through_python():
    begin = time.perf_counter()
    steps = [engine.step(x, y) for _ in range(STEPS)]
    steps[-1].loss
    return (time.perf_counter() - begin) / STEPS


def through_cpp():
    epochs = vitrine.train(model="small-cnn", data="synthetic:640", image_size=32, no_eval=True, steps=STEPS, **FLAGS).result.epochs
    return sum(epoch.seconds for epoch in epochs) / sum(epoch.steps for epoch in epochs)


turns = [(through_python(), through_cpp()) for _ in range(TURNS)]
ratios = [python / cpp for python, cpp in turns]
for name, times in zip(("vitrine.Engine", "program"), zip(*turns)):
    print(f"{name:15} {1e3 * min(times):8.2f} ms a step at best, median {1e3 * statistics.median(times):.2f}")
print(f"ratio of turns: median {statistics.median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f}; of the best: {min(t[0] for t in turns) / min(t[1] for t in turns):.3f}")
