#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""TensorBoard's own reader reads what `vitrine train --tensorboard` writes. Exit 77 (skipped) without the package tensorboard.

usage: tensorboard_reader_test.py VITRINE
"""
import json
import os
import subprocess
import sys
import tempfile

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError:
    print("skipped: the Python package tensorboard is not installed")
    sys.exit(77)

with tempfile.TemporaryDirectory() as folder:
    command = [sys.argv[1], "train", "--model", "lenet5", "--data", "synthetic:256", "--devices", "cpu:0-1", "--threads-per-device", "1",
               "--batch-size", "64", "--epochs", "2", "--lr-schedule", "cosine", "--tensorboard", folder, "--json"]
    run = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    files = os.listdir(folder)
    assert len(files) == 1 and files[0].startswith("events.out.tfevents."), files
    events = EventAccumulator(folder)
    events.Reload()
    scalars = events.Tags()["scalars"]
    for tag in ["train/loss", "train/lr", "train/samples_per_second", "test/loss", "test/accuracy", "test/top5_accuracy"]:
        assert tag in scalars, (tag, scalars)
    losses = [event.value for event in events.Scalars("train/loss")]
    assert len(losses) == len(run["step_losses"]), (losses, run["step_losses"])
    for found, expected in zip(losses, run["step_losses"]):
        assert abs(found - expected) <= 1e-6 * abs(expected), (found, expected)
    rates = [event.value for event in events.Scalars("train/lr")]
    assert rates[0] == max(rates) and rates[-1] < rates[0] / 4, rates
    assert [event.step for event in events.Scalars("test/accuracy")] == [4, 8]
    assert abs(events.Scalars("test/accuracy")[-1].value - run["epochs"][-1]["test_accuracy"]) < 1e-6
    # A run that continues from its first epoch replaces the second one.
    checkpoints = os.path.join(folder, "checkpoints")
    logs = os.path.join(folder, "logs")
    base = command[:-3] + ["--json", "--checkpoint-dir", checkpoints, "--tensorboard", logs]
    first = json.loads(subprocess.run(base, check=True, capture_output=True, text=True).stdout)
    again = base[:base.index("--checkpoint-dir")] + ["--tensorboard", logs, "--resume", os.path.join(checkpoints, "step-00000004")]
    second = json.loads(subprocess.run(again, check=True, capture_output=True, text=True).stdout)
    assert second["first_step"] == 4 and second["step_losses"] == first["step_losses"][4:]
    continued = EventAccumulator(logs)
    continued.Reload()
    assert [event.step for event in continued.Scalars("train/loss")] == list(range(1, 9))
    assert [event.step for event in continued.Scalars("test/accuracy")] == [4, 8]
    assert "configuration/text_summary" in events.Tags()["tensors"]
    confusion = events.Tensors("test/confusion/text_summary")[-1]
    assert confusion.step == 8 and b"Confusion matrix" in confusion.tensor_proto.string_val[0], confusion
print("TensorBoard read", scalars)
