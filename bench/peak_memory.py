#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares what Vitrine says about memory with the peak resident size that the kernel counted for the process: the
planned pool plus the named parts outside it (devices[].outside_bytes_by_owner), without what was released again.

usage: peak_memory.py VITRINE [--check] [--torch PYTHON] [JOB...]

  --check   exits with 1 if a job's planned and named bytes differ from its peak by more than 5 %
  --torch   a Python with PyTorch, whose peak resident size in the same job is measured beside
  JOB       mlp, small-cnn, alexnet, resnet18, vgg16; all without

Prints a Markdown table in MB (10^6 bytes). Each job trains 3 steps in f32 on one CPU device.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys

MOST_DIFFERENCE = 0.05
JOBS = {  # model: image size, samples in a batch, optimizer
    "mlp": (128, 16, "adam"),
    "small-cnn": (32, 64, "adam"),
    "alexnet": (224, 8, "adamw"),
    "resnet18": (64, 8, "adamw"),
    "vgg16": (64, 4, "adamw"),
}
WITHOUT_TORCH = ("mlp",)  # train_pytorch.py has no such model
TRAIN_TORCH = """
import json, sys
import torch
import train_pytorch
training = train_pytorch.Training(torch, json.loads(sys.argv[1]), "contiguous", "eager")
for _ in range(3):
    training.step()
"""


def run(command, **options):
    """Returns the output of a command and the peak resident size of its process."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, **options) as process:
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"{' '.join(map(str, command[:4]))} ... ended with {process.returncode}")
    return output, usage.ru_maxrss * 1024


def measure(vitrine, model):
    size, batch, optimizer = JOBS[model]
    output, peak = run([vitrine, "train", "--model", model, "--image-size", str(size), "--batch-size", str(batch), "--optimizer",
                        optimizer, "--devices", "cpu:0", "--steps", "3", "--no-eval", "--json"], stderr=subprocess.DEVNULL)
    device = json.loads(output)["devices"][0]
    parts = {owner: bytes for owner, bytes in device["outside_bytes_by_owner"].items() if owner != "released"}
    return device["planned_peak_bytes"], parts, peak


def measure_torch(python, model):
    size, batch, optimizer = JOBS[model]
    job = {"model": model, "size": size, "batch": batch, "devices": 1, "optimizer": optimizer, "precision": "fp32", "steps": 3}
    path = str(pathlib.Path(__file__).resolve().parent)
    return run([python, "-c", TRAIN_TORCH, json.dumps(job)], env={**os.environ, "PYTHONPATH": path})[1]


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n")[0])
    parser.add_argument("vitrine")
    parser.add_argument("jobs", nargs="*")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--torch")
    options = parser.parse_intermixed_args()
    for model in options.jobs:
        if model not in JOBS:
            parser.error(f"job {model}: expected one of {', '.join(JOBS)}")

    def mb(count):
        return f"{count / 1e6:.1f}"

    print("| job | planned pool | named parts outside | sum | peak resident size | difference | PyTorch's peak |\n" + "| --- " + "| ---: " * 6 + "|")
    wrong = []
    for model in options.jobs or JOBS:
        planned, parts, peak = measure(options.vitrine, model)
        total = planned + sum(parts.values())
        difference = total / peak - 1
        torch = mb(measure_torch(options.torch, model)) if options.torch and model not in WITHOUT_TORCH else "-"
        names = ", ".join(f"{owner} {mb(count)}" for owner, count in sorted(parts.items(), key=lambda part: -part[1]))
        size, batch, optimizer = JOBS[model]
        print(f"| {model}, {size} x {size}, batch {batch}, {optimizer} | {mb(planned)} | {names} | {mb(total)} | {mb(peak)} | {difference:+.1%} | {torch} |",
              flush=True)
        if abs(difference) > MOST_DIFFERENCE:
            wrong.append(model)
    if options.check and wrong:
        sys.exit(f"planned and named bytes differ by more than {MOST_DIFFERENCE:.0%} from the peak: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
