# SPDX-License-Identifier: Apache-2.0
"""vitrine.Engine: the library's engine on arrays of NumPy and PyTorch."""
import threading
import time

import numpy as np
import pytest
import vitrine

pytest.importorskip("vitrine._vitrine", reason="the package was built without nanobind")

LAYERS = [{"type": "Conv2d", "out_channels": 4, "kernel_size": 3}, {"type": "ReLU"}, {"type": "Flatten"}, {"type": "Linear", "out_features": 5}]


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    return rng.random((8, 6, 6, 2), dtype=np.float32), rng.integers(0, 5, 8, dtype=np.int32)


def engine(**flags):
    return vitrine.Engine(LAYERS, image=(2, 6, 6), **{"devices": "cpu:0-1", "batch_size": 8, "optimizer": "sgd", "lr": 0.1, **flags})


def test_losses_and_gradients_are_pytorchs(arrays):
    torch = pytest.importorskip("torch")
    x, y = arrays
    ours = engine(mode="dp")
    net = torch.nn.Sequential(torch.nn.Conv2d(2, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(64, 5))
    net.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in ours.parameters().items()})
    images, labels = torch.from_numpy(x).permute(0, 3, 1, 2), torch.from_numpy(y).long()
    for lr in (0.1, 0.1, 0.02):
        ours.learning_rate = lr
        loss = torch.nn.functional.cross_entropy(net(images), labels)
        net.zero_grad()
        loss.backward()
        assert ours.step(torch.from_numpy(x), torch.from_numpy(y)).loss == pytest.approx(loss.item(), rel=1e-5)
        for name, parameter in net.named_parameters():
            np.testing.assert_allclose(ours.gradients()[name], parameter.grad, rtol=1e-4, atol=1e-6)
            parameter.data -= lr * parameter.grad
            np.testing.assert_allclose(ours.parameters()[name], parameter.detach(), rtol=1e-4, atol=1e-6)
    logits = ours.evaluate(x, y, logits=True).logits
    np.testing.assert_allclose(logits, net(images).detach(), rtol=1e-4, atol=1e-5)


def test_parameters_are_read_only_views_of_one_copy(arrays):
    ours = engine()
    before = ours.parameters()
    weight = before["0.weight"].copy()
    assert all(not view.flags.writeable and not view.flags.owndata for view in before.values())
    ours.step(*arrays)
    np.testing.assert_array_equal(before["0.weight"], weight)
    assert not np.array_equal(ours.parameters()["0.weight"], weight)
    for name, value in ours.parameters(1).items():
        np.testing.assert_array_equal(value, ours.parameters(0)[name])
    with pytest.raises(vitrine.UsageError, match="device: expected 0 to 1, got 2"):
        ours.parameters(2)


def test_a_checkpoint_continues_with_the_same_bits(arrays):
    ours = engine(optimizer="adam", lr=0.01)
    ours.step(*arrays)
    ours.learning_rate = 0.005
    ours.save("checkpoint")
    expected = [ours.step(*arrays).loss for _ in range(3)]
    other = engine(optimizer="adam", lr=0.01, devices="cpu:0-1", seed=7)
    other.load("checkpoint")
    assert other.learning_rate == 0.005 and other.steps == 1
    assert [other.step(*arrays).loss for _ in range(3)] == expected
    weights = engine(seed=9)
    weights.load("checkpoint/model.safetensors")
    with pytest.raises(vitrine.Error, match="nothing: "):
        weights.load("nothing")


def test_peaks_are_planned_and_match(arrays):
    ours = engine(mode="dp")
    for _ in range(3):
        ours.step(*arrays).loss
    ours.evaluate(*arrays)
    memory = ours.memory()
    assert [row.device for row in memory.devices] == ["cpu:0", "cpu:1"]
    for row in memory.devices:
        assert row.peak_bytes == row.planned_peak_bytes == sum(row.by_category.values())
    assert memory.peak == memory.devices[0].peak_bytes > memory.devices[1].peak_bytes
    assert "iframe" in memory._repr_html_()


def test_images_of_bytes_are_resized_and_normalized(arrays):
    images = np.full((8, 12, 12, 2), 255, np.uint8)
    ours = engine(dtype="uint8", raw_size=(12, 12))
    ones = engine()
    assert ours.evaluate(images, arrays[1]).loss == pytest.approx(ones.evaluate(np.ones((8, 6, 6, 2), np.float32), arrays[1]).loss, rel=1e-5)


def wrong_arrays():
    x, y = np.zeros((8, 6, 6, 2), np.float32), np.zeros(8, np.int32)
    yield (x.astype(np.float64), y), "step: x has dtype float64, expected float32; convert it with x.astype('float32')"
    yield (x, y.astype(np.int64)), "step: y has dtype int64, expected int32; convert it with y.astype('int32')"
    yield (x[:7], y), "step: x has shape (7, 6, 6, 2), expected (batch, 6, 6, 2) with a batch of 8"
    yield (np.zeros((8, 2, 6, 6), np.float32), y), "step: x has shape (8, 2, 6, 6), expected (8, 6, 6, 2) with a batch of 8"
    yield (x, y[:7]), "step: y has shape (7), expected (batch) with a batch of 8"
    yield (x.transpose(0, 2, 1, 3), y), "step: x is not contiguous in memory, row by row; pass numpy.ascontiguousarray(x)"
    yield (x, np.zeros(16, np.int32)[::2]), "step: y is not contiguous in memory, row by row; pass numpy.ascontiguousarray(y)"
    yield ([1.0], y), "step: x is no array of NumPy, nor one that exports DLPack: got list"
    yield (x, None), "step: y is no array of NumPy, nor one that exports DLPack: got NoneType"


@pytest.mark.parametrize(("arrays", "sentence"), list(wrong_arrays()))
def test_wrong_arrays_get_one_sentence(arrays, sentence):
    with pytest.raises(vitrine.UsageError) as caught:
        engine().step(*arrays)
    assert str(caught.value) == sentence


def test_settings_are_checked_in_the_programs_words(arrays):
    for flags, sentence in (({"lrr": 1}, "there is no option --lrr; did you mean --lr"), ({"batch_size": "max"}, "not auto or max"),
                            ({"device_memory": "16KiB"}, "out of memory"), ({"devices": "cuda:0"}, "cuda:0: ")):
        with pytest.raises(vitrine.Error, match=sentence):
            engine(**flags)
    with pytest.raises(vitrine.UsageError, match="dtype: expected float32 or uint8"):
        engine(dtype="float16")


def test_divergence_is_an_error_and_later_results_say_why(arrays):
    ours = engine(lr=1e30)
    with pytest.raises(vitrine.Error, match="not finite"):
        steps = [ours.step(*arrays) for _ in range(9)]
        [step.loss for step in steps]


def test_other_threads_run_while_devices_work():
    """A thread that counts gets on while a long step is waited for."""
    ours = vitrine.Engine("small-cnn", image_size=32, devices="cpu:0", batch_size=128, threads_per_device=1)
    x, y = np.zeros((128, 32, 32, 3), np.float32), np.zeros(128, np.int32)
    ours.step(x, y).loss
    ticks, done = [], threading.Event()

    def count():
        while not done.wait(0.002):
            ticks.append(time.monotonic())

    thread = threading.Thread(target=count)
    thread.start()
    begin = time.monotonic()
    [step.loss for step in [ours.step(x, y) for _ in range(4)]]
    end = time.monotonic()
    done.set()
    thread.join()
    gaps = np.diff([begin, *[t for t in ticks if begin < t < end], end])
    assert gaps.max() < 0.5 * (end - begin), "the GIL was held"


def test_arrays_are_not_copied_and_stay_alive():
    """The engine keeps an array that nobody else holds until the step is done, and then lets it go."""
    released = []

    class Watched(np.ndarray):
        def __del__(self):
            released.append(True)

    ours = engine()
    x = np.zeros((8, 6, 6, 2), np.float32).view(Watched)
    y = np.zeros(8, np.int32)
    step = ours.step(x, y)
    del x
    step.loss
    ours.step(np.zeros((8, 6, 6, 2), np.float32), y).loss
    assert released
