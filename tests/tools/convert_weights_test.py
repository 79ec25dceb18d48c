#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/examples/convert_weights.py makes files that vitrine reads from what people save.

usage: convert_weights_test.py VITRINE CONVERT_WEIGHTS     exits with 77 without PyTorch and safetensors
"""
import argparse
import contextlib
import io
import os
import runpy
import subprocess
import sys
import tempfile

try:
    import torch
    from safetensors.torch import load_file, save_file
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

VITRINE, CONVERT = sys.argv[1:3]
MODEL = ["--model", "mlp", "--data", "synthetic:64"]


class Mlp(torch.nn.Sequential):
    """The names of vitrine's mlp."""

    def __init__(self):
        super().__init__()
        self.classifier = torch.nn.Sequential(torch.nn.Linear(3072, 256), torch.nn.ReLU(), torch.nn.Linear(256, 128), torch.nn.ReLU(),
                                              torch.nn.Linear(128, 10))


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False)


def convert(*arguments):
    """The script in this process, because importing PyTorch takes seconds."""
    output, sys.argv = io.StringIO(), [CONVERT, *arguments]
    with contextlib.redirect_stdout(output):
        try:
            runpy.run_path(CONVERT, run_name="__main__")
        except SystemExit as end:
            return subprocess.CompletedProcess(arguments, 1 if end.code else 0, output.getvalue(), str(end.code))
    return subprocess.CompletedProcess(arguments, 0, output.getvalue(), "")


def evaluate(weights):
    return run(VITRINE, "eval", *MODEL, "--weights", weights)


def check(condition, what):
    if not condition:
        sys.exit(f"FAILED: {what}")


def check_result(result, path, expected, what):
    """The converted file has these values, and vitrine reads it without a word about unused tensors."""
    check(result.returncode == 0, f"{what}: {result.stderr}")
    found = load_file(path)
    check(found.keys() == expected.keys(), f"{what}: {sorted(found)}")
    for name, tensor in expected.items():
        check(found[name].dtype == torch.float32 and torch.equal(found[name], tensor.float()), f"{what}: {name}")
    read = evaluate(path)
    check(read.returncode == 0 and not read.stderr.count("not in the model"), f"{what}: {read.stderr}")


def main():
    torch.manual_seed(0)
    module = Mlp()
    state = module.state_dict()
    half, bf16, double = ({k: v.to(d) for k, v in state.items()} for d in (torch.half, torch.bfloat16, torch.double))
    ema = {k: v + 1 for k, v in state.items()}
    namespace = argparse.Namespace(lr=0.1, out="runs")
    optimizer = torch.optim.Adam(module.parameters()).state_dict()
    with tempfile.TemporaryDirectory() as folder:
        source, target = os.path.join(folder, "in.pth"), os.path.join(folder, "out.safetensors")
        for what, saved, expected in (
                ("a state_dict", state, state),
                ("a model", {"model": state}, state),
                ("a model beside other things", {"model": state, "optimizer": optimizer, "epoch": 3, "args": namespace}, state),
                ("a state_dict within", {"state_dict": state, "best_acc1": 0.5}, state),
                ("a state_dict beside a tensor", {"best_acc1": torch.tensor(71.2), "state_dict": state, "optimizer": optimizer}, state),
                ("a model beside its average", {"model_ema": ema, "model": state}, state),
                ("another name", {"weights": state, "epoch": 1}, state),
                ("f16", half, half), ("bf16", {"model": bf16}, bf16), ("f64", double, double)):
            torch.save(saved, source)
            check_result(convert(source, target), target, expected, what)
        torch.save({"model_ema": ema, "model": state}, source)
        check_result(convert(source, target, "model_ema"), target, ema, "KEY")
        result = convert(source, target, "teacher")
        check(result.returncode != 0 and "KEY may be one of: model_ema, model" in result.stderr, f"an absent key: {result.stderr}")
        torch.save({"teacher": state, "student": state}, source)
        result = convert(source, target)
        check(result.returncode != 0 and "KEY may be one of: teacher, student" in result.stderr, f"two models: {result.stderr}")
        # What vitrine refuses with this script as the remedy.
        other = os.path.join(folder, "f64.safetensors")
        save_file(double, other)
        refused = evaluate(other)
        check(refused.returncode == 1 and "convert the file with docs/examples/convert_weights.py" in refused.stderr, f"f64: {refused.stderr}")
        check_result(convert(other, target), target, double, "a safetensors file of f64")
        torch.save(state, source)
        refused = evaluate(source)
        check(refused.returncode == 1 and "found a file of torch.save" in refused.stderr and "convert_weights.py" in refused.stderr, refused.stderr)
        for legacy in ({"_use_new_zipfile_serialization": False}, {}):
            torch.save(state, source, **legacy)
            check_result(convert(source, target), target, state, f"torch.save with {legacy}")
        # A whole module is code; the message has a command that works.
        torch.save({"model": module}, source)
        refused = convert(source, target)
        check(refused.returncode != 0 and "weights_only=False" in refused.stderr, f"a module: {refused.stderr}")
        torch.save(torch.load(source, weights_only=False)["model"].state_dict(), source)
        check_result(convert(source, target), target, state, "a module's weights")


main()
