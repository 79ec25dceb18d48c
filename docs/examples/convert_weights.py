#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Converts weights that torch.save wrote to safetensors, which vitrine reads.

usage: convert_weights.py WEIGHTS.pth WEIGHTS.safetensors
"""
import sys

import torch
from safetensors.torch import save_file

if len(sys.argv) != 3:
    sys.exit(__doc__)
state = torch.load(sys.argv[1], map_location="cpu", weights_only=True)
state = state.get("state_dict", state)  # training scripts often save it beside other things
save_file({name: tensor.clone().contiguous() for name, tensor in state.items()}, sys.argv[2])
