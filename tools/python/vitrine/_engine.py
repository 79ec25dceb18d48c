# SPDX-License-Identifier: Apache-2.0
"""The library's engine on arrays in host memory."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ._program import UsageError, Values, arguments, parse
from ._results import Plan

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    from ._vitrine import Slot, Trainer


class Step:
    """A step that has been issued. Reading a value waits until the devices have done it.

    `loss` is the mean over the targets, `valid` their number and `correct` how many were predicted right;
    `gradient_norm` is NaN where it is not measured, `loss_scale` 1 without scaling; `skipped` says whether the update
    was left out, and `overflow` what was not finite.

    >>> import numpy
    >>> layers = [{"type": "Flatten"}, {"type": "Linear", "out_features": 2}]
    >>> engine = vitrine.Engine(layers, image=(1, 4, 4), devices="cpu:0", batch_size=8)
    >>> step = engine.step(numpy.zeros((8, 4, 4, 1), "float32"), numpy.zeros(8, "int32"))
    >>> step.valid, step.skipped
    (8, False)
    """

    def __init__(self, trainer: Trainer, slot: Slot) -> None:
        self._trainer, self._slot = trainer, slot

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        results = self._trainer.results(self._slot)
        self.__dict__.update(results)
        return Values(results).__getattr__(name)


class Memory(Plan):
    """The memory of an engine's devices so far in bytes, with the plan beside it; in a notebook, the report's bars.

    >>> layers = [{"type": "Flatten"}, {"type": "Linear", "out_features": 2}]
    >>> engine = vitrine.Engine(layers, image=(1, 4, 4), devices="cpu:0", batch_size=8)
    >>> engine.memory().devices[0].device
    'cpu:0'
    """

    def __repr__(self) -> str:
        return f"<Memory: {', '.join(f'{row.device} {row.peak_bytes} bytes' for row in self['devices'])}>"


class Engine:
    """Trains a model data-parallel on arrays of yours, under any scheme.

    model    one of Vitrine's, a model file (docs/model_files.md), or a list of its layers, for which `image` is the
             shape of one image: channels, height, width
    dtype    of x: "float32" (batch, height, width, channels), used unchanged, or "uint8", resized from `raw_size`
             (height, width) and normalized by `normalize` on the device
    channels of one of Vitrine's models [3]
    batches, evaluate_batches  the sizes of batches, of which memory is planned [batch_size; as batches]
    flags    those of vitrine.plan(): devices, mode, batch_size, lr, ...

    >>> import numpy
    >>> layers = [{"type": "Flatten"}, {"type": "Linear", "out_features": 2}]
    >>> engine = vitrine.Engine(layers, image=(1, 4, 4), devices="cpu:0-1", batch_size=8, lr=0.01)
    >>> x, y = numpy.zeros((8, 4, 4, 1), "float32"), numpy.zeros(8, "int32")
    >>> step = engine.step(x, y)
    >>> step.valid, engine.parameters()["1.weight"].shape
    (8, (2, 16))

    Calls from several threads take turns; Python goes on while devices work. Arrays are read without a copy, until the
    step's results are there: do not change them before.
    throws  UsageError for settings and arrays that do not fit, with one sentence; Error
    """

    def __init__(self, model: str | os.PathLike[str] | Sequence[Mapping[str, Any]], *,
                 image: Sequence[int] | None = None, dtype: str = "float32", raw_size: tuple[int, int] | None = None,
                 channels: int | None = None, batches: Sequence[int] = (), evaluate_batches: Sequence[int] = (),
                 **flags: Any) -> None:
        from ._vitrine import Trainer

        if dtype not in ("float32", "uint8"):
            raise UsageError(f"dtype: expected float32 or uint8, got {dtype}")
        with tempfile.TemporaryDirectory() as folder:
            if not isinstance(model, (str, os.PathLike)):
                path = os.path.join(folder, "model.json")
                with open(path, "w", encoding="utf-8") as file:
                    json.dump({"input": list(image or ()), "layers": list(model)}, file)
                model = path
            words = arguments("plan", {"model": os.fspath(model), **flags})
            self._trainer = Trainer(words, channels, dtype == "float32", raw_size, batches, evaluate_batches)

    def step(self, x: Any, y: Any) -> Step:
        """Issues one optimizer step; returns before it is done. At most two are in flight.

        x, y  arrays of NumPy, or that export DLPack from host memory; y int32, a label for each sample
        throws  Error, also when an earlier step has diverged
        """
        return Step(self._trainer, self._trainer.step(x, y))

    def evaluate(self, x: Any, y: Any, logits: bool = False) -> Values:
        """Runs a batch forward, without dropout, and waits: `loss`, `valid`, `correct`, and `logits` on request."""
        return Values(self._trainer.evaluate(x, y, logits))

    def parameters(self, device: int = 0) -> dict[str, NDArray[numpy.float32]]:
        """The parameters that a device holds, by PyTorch's names and in its layouts: read-only views of one copy."""
        return self._trainer.values(device, False)

    def gradients(self, device: int = 0) -> dict[str, NDArray[numpy.float32]]:
        """The gradients of the last step, likewise."""
        return self._trainer.values(device, True)

    def memory(self) -> Memory:
        """Peak and planned bytes of each device by category. At the end of the planned work, both are equal."""
        return Memory(parse(json.dumps({"devices": self._trainer.memory()})), "Memory of the engine")

    @property
    def learning_rate(self) -> float:
        """Of the next steps; set it for a schedule of your own."""
        return self._trainer.learning_rate

    @learning_rate.setter
    def learning_rate(self, lr: float) -> None:
        self._trainer.learning_rate = lr

    @property
    def steps(self) -> int:
        """Steps issued so far, including those of a loaded checkpoint."""
        return self._trainer.steps

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes a checkpoint: an engine that loads it continues with the same bits. model.safetensors has weights."""
        self._trainer.save(os.fspath(folder))

    def load(self, path: str | os.PathLike[str]) -> None:
        """Continues from a checkpoint, or takes the weights of a file: FILE.safetensors with PyTorch's names."""
        self._trainer.load(os.fspath(path))
