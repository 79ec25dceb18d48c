# SPDX-License-Identifier: Apache-2.0
"""Model files from PyTorch."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def layers_of(module: torch.nn.Module, name: str = "") -> Iterator[tuple[str, torch.nn.Module]]:
    """Yields (name, layer) in the order of the forward pass; a layer that is used twice comes twice."""
    import torch

    kind = type(module)
    what = name or "the model"
    if module._forward_hooks or module._forward_pre_hooks:
        raise TypeError(f"{what}: a hook changes what it computes; write the layers without hooks")
    if "forward" in vars(module):
        raise TypeError(f"{what}: its forward was replaced; write what it computes as layers of a Sequential")
    if kind.forward is torch.nn.Sequential.forward:
        for key, child in module._modules.items():
            assert child is not None
            yield from layers_of(child, f"{name}.{key}" if name else key)
    elif getattr(torch.nn, kind.__name__, None) is kind:
        yield name, module
    else:
        raise TypeError(f"{what}: expected a torch.nn.Sequential or a layer of torch.nn, got {kind.__name__}, "
                        "which has its own forward; write it as a Sequential")


def export(net: torch.nn.Module, image: Sequence[int], path: str | os.PathLike[str]) -> None:
    """Writes a torch.nn.Sequential as a model file (docs/model_files.md), with the names of PyTorch's parameters.

    image  the shape of one image: channels, height, width
    throws TypeError that names what a model file cannot describe

    >>> import torch  # doctest: +SKIP
    >>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 10))  # doctest: +SKIP
    >>> vitrine.export(net, (3, 32, 32), "net.json")  # doctest: +SKIP
    """
    import torch

    layers: list[dict[str, Any]] = []
    owners: dict[int, str] = {}
    for name, layer in layers_of(net):
        for key, tensor in [*layer.named_parameters(), *layer.named_buffers()]:
            owner = owners.setdefault(id(tensor), f"{name}.{key}")
            if owner != f"{name}.{key}":
                raise TypeError(f"{name}: its {key} is also {owner}, but layers of a model file share no parameters; "
                                "give each layer its own")
            if tensor.dtype not in (torch.float32, torch.int64):
                raise TypeError(f"{name}: its {key} is {tensor.dtype}, but layers of a model file are torch.float32; "
                                "convert the net with .float()")
        settings = {key: getattr(layer, key) for key in getattr(layer, "__constants__", [])}
        if isinstance(layer, (torch.nn.Conv2d, torch.nn.Linear)):
            settings["bias"] = layer.bias is not None
        layers.append({"name": name, "type": type(layer).__name__, **settings})
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"input": list(image), "layers": layers}, file, indent=1)
