#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the docs say of PyTorch's memory in cross_entropy is what docs/examples/pytorch_loss_memory.py counts with the PyTorch that is installed.

usage: torch_sentences_test.py     exits with 77 without PyTorch
"""
import re
import subprocess
import sys

from torch_files_test import ROOT, use_python_with_torch

use_python_with_torch("from torch.utils._pytree import tree_leaves")

NUMBERS = {"one": 1, "two": 2, "three": 3, "four": 4}
PAGES = ("docs/memory.md", "docs/lessons/1-why-gpu-0-fills-first.md")

counted = subprocess.run([sys.executable, str(ROOT / "docs/examples/pytorch_loss_memory.py")], capture_output=True, text=True, check=True).stdout
tensors = float(re.search(r": (\d+\.\d+) tensors of the logits' size", counted).group(1))
for page in PAGES:
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    said = re.search(r"(\w+) tensors of (?:the outputs'|this) size beyond", text)
    assert said, f"{page} no longer says how many tensors cross_entropy holds"
    assert abs(NUMBERS[said.group(1)] - tensors) < 0.1, f"{page} says {said.group(1)}, but: {counted}"
print(counted, end="")
