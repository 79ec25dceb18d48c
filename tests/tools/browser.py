# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, spoken to through a pipe in the DevTools protocol. Standard library only."""
import fcntl
import json
import os
import shutil
import subprocess
import tempfile


def find_browser():
    """The path of a Chromium, or None."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if shutil.which(name):
            return shutil.which(name)
    return None


def pipe_beyond_standard():
    """A pipe whose ends do not collide with the descriptors 3 and 4, which the browser reads and writes."""
    ends = os.pipe()
    moved = tuple(fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in ends)
    for end in ends:
        os.close(end)
    return moved


class Browser:
    """One page in a browser of its own."""

    def __init__(self, path):
        self.folder = tempfile.TemporaryDirectory(prefix="vitrine_browser_")
        command_read, command_write = pipe_beyond_standard()
        answer_read, answer_write = pipe_beyond_standard()
        arguments = [path, "--headless=new", "--disable-gpu", "--no-first-run", "--disable-extensions", "--disable-background-networking",
                     "--disable-dev-shm-usage", "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={self.folder.name}", "--remote-debugging-pipe",
                     "about:blank"]
        if os.geteuid() == 0:
            arguments.insert(1, "--no-sandbox")
        shell = ["bash", "-c", f'exec "$@" 3<&{command_read} 4>&{answer_write}', "bash"]
        self.process = subprocess.Popen(shell + arguments, pass_fds=(command_read, answer_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(command_read)
        os.close(answer_write)
        self.commands, self.answers = os.fdopen(command_write, "wb", 0), os.fdopen(answer_read, "rb", 0)
        self.buffer, self.last_id, self.session, self.events = b"", 0, None, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def close(self):
        self.session = None
        try:
            self.call("Browser.close")
        except (OSError, EOFError):
            pass
        self.process.wait(timeout=30)
        self.commands.close()
        self.answers.close()
        self.folder.cleanup()

    def read(self):
        while b"\0" not in self.buffer:
            part = self.answers.read(1 << 16)
            if not part:
                raise EOFError("the browser has ended")
            self.buffer += part
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **parameters):
        """The result of a command; events that come meanwhile are kept."""
        self.last_id += 1
        command = {"id": self.last_id, "method": method, "params": parameters}
        if self.session:
            command["sessionId"] = self.session
        self.commands.write(json.dumps(command).encode() + b"\0")
        while True:
            message = self.read()
            if message.get("id") == self.last_id:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self.events.append(message)

    def wait_for(self, method):
        while True:
            for index, event in enumerate(self.events):
                if event.get("method") == method:
                    return self.events.pop(index)
            self.events.append(self.read())

    def evaluate(self, expression):
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def open(self, url, width, dark):
        """Loads a page in a window of that width."""
        self.events.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.call("Page.navigate", url=url)
        self.wait_for("Page.loadEventFired")
