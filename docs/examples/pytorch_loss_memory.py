#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts what torch.nn.functional.cross_entropy holds beyond the logits at the peak of its backward pass, in tensors of their size.

usage: pytorch_loss_memory.py        needs PyTorch; runs on the CPU, where every storage can be counted
"""
import sys
import weakref

try:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves
except ImportError:
    print("pytorch_loss_memory.py: needs PyTorch", file=sys.stderr)
    sys.exit(77)


class LiveBytes(TorchDispatchMode):
    """The bytes of all storages that operations have returned and that are still alive."""

    def __init__(self):
        super().__init__()
        self.seen, self.live, self.peak, self.at_peak = {}, 0, 0, ""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if not isinstance(tensor, torch.Tensor):
                continue
            storage = tensor.untyped_storage()
            if storage._cdata in self.seen:
                continue
            size = storage.nbytes()
            self.live += size
            self.seen[storage._cdata] = weakref.finalize(storage, self.free, storage._cdata, size)
        if self.live > self.peak:
            self.peak, self.at_peak = self.live, str(function)
        return result

    def free(self, key, size):
        self.live -= size
        del self.seen[key]


def main():
    logits = torch.randn(1000, 4000, requires_grad=True)
    targets = torch.randint(0, 4000, (1000,))
    with LiveBytes() as counter:
        loss = torch.nn.functional.cross_entropy(logits, targets)
        loss.backward()
    size = logits.numel() * logits.element_size()
    print(f"PyTorch {torch.__version__.split('+')[0]}: {counter.peak / size:.2f} tensors of the logits' size beyond them, in {counter.at_peak}")


if __name__ == "__main__":
    main()
