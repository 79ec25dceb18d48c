# SPDX-License-Identifier: Apache-2.0
"""Calls the program `vitrine` that comes with the package: its arguments, its errors and what it prints as JSON."""

import fcntl
import inspect
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

FOLDER = pathlib.Path(__file__).parent
PROGRAM = FOLDER / "bin" / "vitrine"
# By command and by argument: {"names", "value", "positional", "repeated", "group", "meaning"}.
COMMANDS: dict[str, dict[str, Any]] = json.loads((FOLDER / "flags.json").read_text(encoding="utf-8"))
FLAGS: dict[str, dict[str, dict[str, Any]]] = {
    command: {name.replace("-", "_").lower(): {**flag, "name": name} for flag in of["flags"] for name in flag["names"]}
    for command, of in COMMANDS.items()
}

F = TypeVar("F", bound=Callable[..., Any])


class Error(RuntimeError):
    """The program's sentence about what failed. `result` is what it printed before, if anything."""

    result: Any = None


class UsageError(Error, ValueError):
    """An argument that the program refuses."""


class Values(dict[str, Any]):
    """A JSON object of the program's, whose values are attributes as well: docs/json.md has the keys.

    >>> Values({"fits": True}).fits
    True
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"there is no {name!r}; there are {', '.join(self)}") from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self]


class Device(Values):
    """A device of a result: sizes are in bytes.

    >>> device = vitrine.plan(model="lenet5", devices="cpu:0").devices[0]
    >>> sum(device.by_category.values()) == device.peak_bytes
    True
    """

    @property
    def by_category(self) -> dict[str, int]:
        """Bytes at the peak by category."""
        return self["peak_bytes_by_category"]  # type: ignore[no-any-return]


def parse(text: str) -> Any:
    return json.loads(text, object_hook=lambda item: (Device if "peak_bytes_by_category" in item else Values)(item))


def text_of(value: object) -> str:
    if isinstance(value, Mapping):  # the flags of another command, as verify() takes them
        return shlex.join(arguments("train", value)[1:])
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def arguments(command: str, values: Mapping[str, Any]) -> list[str]:
    """The command line of a call. The program checks it.

    >>> arguments("plan", {"model": "mlp", "devices": ["cpu:0", "cpu:1"], "no_eval": True, "shuffle": False})
    ['plan', '--model', 'mlp', '--devices', 'cpu:0,cpu:1', '--no-eval', '--no-shuffle']
    """
    flags, words = FLAGS[command], [command]
    for name, value in values.items():
        if value is None or name == "json":
            continue
        flag = flags.get(name, {"name": name.replace("_", "-"), "value": "", "positional": False, "repeated": False})
        several = flag["repeated"] and isinstance(value, (list, tuple))
        if flag["positional"]:
            words += map(str, value) if several else [str(value)]
        elif isinstance(value, bool) and flag["value"] == "on|off":
            words += ["--" + flag["name"], "on" if value else "off"]
        elif value is False and f"no_{name}" in flags:
            words.append("--" + flags[f"no_{name}"]["name"])
        elif value is True and (name in flags or f"no_{name}" not in flags):
            words.append("--" + flag["name"])
        elif not isinstance(value, bool):
            for text in map(text_of, value if several else [value]):
                words += [f"--{flag['name']}={text}"] if text.startswith("-") else ["--" + flag["name"], text]
    return words


def command_line(words: list[str]) -> str:
    return shlex.join(["vitrine", *words])


class Process:
    """The program while it runs, in a process group of its own: an interrupt reaches it once, and as SIGINT. When
    Python ends, however it does, the program gets SIGTERM."""

    def __init__(self, words: list[str], prints_json: bool = True) -> None:
        self.words, self.interrupted = words, False
        self.out, self.err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        unwrapped = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
        # In the background of a script SIGINT is ignored, and would stay so.
        ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        reset = (lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)) if ignored else None
        # The system sends it when the last writing end of this pipe is closed. Threads that start runs may end before.
        reading, self.lifeline = (os.fdopen(end, mode) for end, mode in zip(os.pipe(), ("rb", "wb")))
        with reading:
            self.popen = subprocess.Popen([PROGRAM, *words, *(["--json"] if prints_json else [])], env=unwrapped,
                                          stdin=subprocess.DEVNULL, stdout=self.out, stderr=self.err, process_group=0,
                                          pass_fds=[reading.fileno()], preexec_fn=reset)
            for setting, value in ((fcntl.F_SETOWN, self.popen.pid), (fcntl.F_SETSIG, signal.SIGTERM),
                                   (fcntl.F_SETFL, os.O_ASYNC)):
                fcntl.fcntl(reading, setting, value)

    def running(self) -> bool:
        return self.popen.poll() is None

    def interrupt(self) -> None:
        """As Ctrl-C: the program saves a checkpoint, if it has a folder for it. Again: it stops at once."""
        self.popen.send_signal(signal.SIGINT)  # unless it has ended

    def wait(self) -> int:
        """Waits for the end, and reports warnings. Returns the exit status."""
        while self.running():
            try:
                self.popen.wait()
            except KeyboardInterrupt:
                self.interrupted = True
                self.interrupt()
        if not self.out.closed:
            with self.lifeline, self.out, self.err:
                self.printed, self.messages = (os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(
                    errors="replace") for file in (self.out, self.err))
            for line in re.findall(r"^vitrine: warning: (.*)$", self.messages, re.MULTILINE):
                warnings.warn(line, stacklevel=4)
        return self.popen.returncode

    def result(self, failure_is_value: bool = True) -> Any:
        """What the program has printed as JSON. An exit status 1 beside it says what the values say, too.

        throws  Error, UsageError; KeyboardInterrupt after one
        """
        status = self.wait()
        data = parse(self.printed) if self.printed.strip() else None
        if self.interrupted:
            self.interrupted = False
            raise KeyboardInterrupt  # once: then the values so far are there
        if data is None or (status == 1 and not failure_is_value):
            self.fail(data)
        return data

    def fail(self, result: Any = None) -> None:
        status, messages = self.popen.returncode, self.messages.strip()
        if status < 0:
            messages = f"{command_line(self.words)} was ended by {signal.Signals(-status).name}. {messages}"
        last = re.split(r"^vitrine(?: [\w]+)?: ", messages, flags=re.MULTILINE)[-1]
        sentence = last.partition("\nTry 'vitrine")[0].strip() or f"{command_line(self.words)}: exit status {status}"
        error = (UsageError if status == 2 else Error)(sentence)
        error.result = result
        raise error


def call(command: str, values: Mapping[str, Any], failure_is_value: bool = True) -> tuple[Any, str]:
    """Runs a command to its end. Returns its JSON, and its command line."""
    words = arguments(command, values)
    return Process(words).result(failure_is_value), command_line(words)


def of_command(command: str) -> Callable[[F], F]:
    """Gives a function the flags of a command as arguments, beside its own, and their meanings as documentation."""

    def document(function: F) -> F:
        signature, kind = inspect.signature(function), inspect.Parameter
        own = [parameter for parameter in signature.parameters.values() if parameter.kind != kind.VAR_KEYWORD]
        hidden = {"json", *(parameter.name for parameter in own)}
        flags = {flag["names"][0].replace("-", "_"): flag for flag in FLAGS[command].values() if not flag["positional"]}
        shown = {name: flag for name, flag in flags.items() if name not in hidden}
        keywords = [kind(name, kind.KEYWORD_ONLY, default=None, annotation=Any) for name in shown]
        setattr(function, "__signature__", signature.replace(parameters=[*own, *keywords]))
        meanings = "\n".join(f"    {name}: {flag['meaning']}" for name, flag in shown.items())
        function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\nThe flags of the program:\n\n{meanings}"
        return function

    return document
