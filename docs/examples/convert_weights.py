#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Converts weights to a safetensors file that vitrine reads: numbers with a fraction become float32.

usage: convert_weights.py WEIGHTS OUT.safetensors [KEY]

WEIGHTS is a file of torch.save, or a safetensors file with other dtypes. KEY chooses a dictionary within the file, for
example model_ema; without it, the one called state_dict, model_state_dict or model, else the file's own tensors, else
the only dictionary with tensors.
"""
import argparse
import pathlib
import pickle
import sys

import torch
from safetensors.torch import load_file, save_file

KEYS = ("state_dict", "model_state_dict", "model")
# What training scripts save beside weights, and what is harmless to load.
HARMLESS = [argparse.Namespace, pathlib.PosixPath, pathlib.PurePosixPath]


def read(path):
    if path.endswith(".safetensors"):
        return load_file(path)
    if hasattr(torch.serialization, "add_safe_globals"):  # PyTorch 2.4 and newer
        torch.serialization.add_safe_globals(HARMLESS)
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        sys.exit(f"{path}: it contains objects other than tensors, which could run code when they are loaded. If you trust "
                 f"it, load it in Python with torch.load({path!r}, weights_only=False), and save the module's state_dict() "
                 f"alone\n{error}")


def tensors_in(value):
    """The tensors of a dictionary; empty for anything else."""
    return {k: v for k, v in value.items() if isinstance(v, torch.Tensor)} if isinstance(value, dict) else {}


def choose(state, key):
    """The dictionary with the weights, and its key."""
    found = {k: v for k, v in state.items() if tensors_in(v)} if isinstance(state, dict) else {}
    if key is None:
        key = next((k for k in KEYS if k in found), None)
    if key is None and tensors_in(state):  # without known names: training scripts save tensors beside a state_dict, too
        return state, ""
    if key is None and len(found) == 1:
        key = next(iter(found))
    if key not in found:
        sys.exit(f"no dictionary of tensors{f' called {key}' if key else ''}; KEY may be one of: "
                 f"{', '.join(map(str, found)) or 'none'}")
    return found[key], key


def converted(tensor):
    """The tensor as vitrine reads it, with memory of its own."""
    return (tensor.float() if tensor.is_floating_point() else tensor).clone().contiguous()


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    state, key = choose(read(sys.argv[1]), sys.argv[3] if len(sys.argv) == 4 else None)
    tensors = tensors_in(state)
    save_file({name: converted(tensor) for name, tensor in tensors.items()}, sys.argv[2])
    dtypes = sorted({str(t.dtype) for t in tensors.values() if t.is_floating_point()} - {"torch.float32"})
    print(f"{len(tensors)} tensors{f' of {key}' if key else ''} are in {sys.argv[2]}"
          f"{', float32 instead of ' + ', '.join(dtypes) if dtypes else ''}")
    others = [str(name) for name in state if name not in tensors]
    if others:
        print(f"left out, because they are no tensors: {', '.join(others)}")


if __name__ == "__main__":
    main()
