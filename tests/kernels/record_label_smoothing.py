#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records torch.nn.functional.cross_entropy with label smoothing for cross_entropy_test.cpp: data/label_smoothing.json."""
import json
import os

import torch

torch.manual_seed(0)
cases = []
for rows, classes, smoothing in [(6, 10, 0.1), (5, 3, 0.0), (4, 40, 0.5), (3, 7, 1.0)]:
    logits = (torch.randn(rows, classes) * 3).requires_grad_()
    targets = torch.randint(classes, (rows,))
    targets[1] = -100
    loss = torch.nn.functional.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing)
    loss.backward()
    cases.append({"label_smoothing": smoothing, "logits": logits.detach().flatten().tolist(), "targets": targets.tolist(),
                  "loss_sum": loss.item(), "gradient": logits.grad.flatten().tolist()})
path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "label_smoothing.json")
with open(path, "w", encoding="utf-8") as file:
    json.dump({"torch": torch.__version__, "cases": cases}, file, indent=1)
    file.write("\n")
