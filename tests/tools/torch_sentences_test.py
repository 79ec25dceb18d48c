#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the docs say of PyTorch holds of the PyTorch that is installed: its memory in cross_entropy (counted by docs/examples/pytorch_loss_memory.py), the
error of autocast's first gradient, and what its batch norm does to the running statistics of a batch that is not finite.

usage: torch_sentences_test.py VITRINE     exits with 77 without PyTorch
"""
import copy
import pathlib
import re
import subprocess
import sys
import tempfile

from torch_files_test import ROOT, export, read_safetensors, use_python_with_torch, vitrine, write_idx, write_safetensors

use_python_with_torch("from torch.utils._pytree import tree_leaves")

import torch  # noqa: E402

NUMBERS = {"one": 1, "two": 2, "three": 3, "four": 4}
SCALE = 65536.0
PAGES = ("docs/memory.md", "docs/lessons/1-why-gpu-0-fills-first.md")



def text_of(page):
    return " ".join((ROOT / page).read_text(encoding="utf-8").split())


def first_gradient(net, images, labels, dtype):
    """With the loss scaled as in fp16 training."""
    net = copy.deepcopy(net)
    with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
        loss = torch.nn.functional.cross_entropy(net(images), labels)
    (SCALE * loss).backward()
    return torch.cat([parameter.grad.flatten() / SCALE for parameter in net.parameters()])


def errors_of_first_gradient(folder, precision, dtype):
    """The error of PyTorch's autocast and of Vitrine, relative to PyTorch's gradient in f32, for the same LeNet-5 and the same images."""
    layers = torch.nn
    torch.manual_seed(1)
    net = layers.Sequential(layers.Conv2d(1, 6, 5, padding=2), layers.ReLU(), layers.AvgPool2d(2), layers.Conv2d(6, 16, 5), layers.ReLU(), layers.AvgPool2d(2),
                            layers.Flatten(), layers.Linear(400, 120), layers.ReLU(), layers.Linear(120, 84), layers.ReLU(), layers.Linear(84, 10))
    images, labels = torch.randint(0, 256, (64, 1, 28, 28), dtype=torch.uint8), torch.arange(64) % 10
    for part in ("train", "t10k"):
        write_idx(folder, part, images[:, 0].numpy(), labels.byte().numpy())
    export(net, (1, 28, 28), folder / "net.json")
    weights, trained = folder / "weights.safetensors", folder / f"{precision}.safetensors"
    write_safetensors(weights, net.state_dict())
    rate = 16.0  # the rounding of a weight does not hide its gradient
    vitrine("train", "--model", folder / "net.json", "--data", f"idx:{folder}", "--devices", "cpu:0", "--batch-size", 64, "--steps", 1, "--no-shuffle", "--no-eval",
            "--optimizer", "sgd", "--lr", rate, "--momentum", 0, "--weight-decay", 0, "--init-weights", weights, "--save", trained, "--normalize", "none",
            "--precision", precision)
    after = read_safetensors(trained)
    found = torch.cat([(parameter.detach() - after[name]).flatten() / rate for name, parameter in net.named_parameters()])
    exact, autocast = (first_gradient(net, images.float() / 255, labels, kind) for kind in (torch.float32, dtype))
    return [((gradient - exact).norm() / exact.norm()).item() for gradient in (autocast, found)]


counted = subprocess.run([sys.executable, str(ROOT / "docs/examples/pytorch_loss_memory.py")], capture_output=True, text=True, check=True).stdout
tensors = float(re.search(r": (\d+\.\d+) tensors of the logits' size", counted).group(1))
for page in PAGES:
    said = re.search(r"(\w+) tensors of (?:the outputs'|this) size beyond", text_of(page))
    assert said, f"{page} no longer says how many tensors cross_entropy holds"
    assert abs(NUMBERS[said.group(1)] - tensors) < 0.1, f"{page} says {said.group(1)}, but: {counted}"
print(counted, end="")

said = re.search(r"about (\S+) in fp16 and (\S+) in bf16 for a LeNet-5 at initialization, the error of PyTorch's autocast within a fifth",
                 text_of("docs/mixed_precision.md"))
assert said, "docs/mixed_precision.md no longer compares the error of gradients with autocast's"
with tempfile.TemporaryDirectory() as folder:
    for quoted, precision, dtype in zip(said.groups(), ("fp16", "bf16"), (torch.float16, torch.bfloat16)):
        of_autocast, of_vitrine = errors_of_first_gradient(pathlib.Path(folder), precision, dtype)
        print(f"{precision}: the error of the first gradient is {of_autocast:.2e} in PyTorch, {of_vitrine:.2e} in Vitrine")
        assert 0.8 < of_vitrine / of_autocast < 1.2 and 0.7 < of_vitrine / float(quoted) < 1.4

assert "Running statistics never become infinite or NaN, unlike PyTorch's" in text_of("docs/mechanisms.md")
norm = torch.nn.BatchNorm2d(1)
norm(torch.full((2, 1, 2, 2), torch.nan))
assert norm.running_mean.isnan().all() and norm.running_var.isnan().all()
