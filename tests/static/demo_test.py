# SPDX-License-Identifier: Apache-2.0
"""tools/demo shows the progress of its build, keeps the log, and reports a failure. cmake and the program are stand-ins."""
import os
import pty
import shutil
import subprocess
import sys
import tempfile
import unittest

DEMO = sys.argv.pop(1)
STEPS = 40
CMAKE = f"""#!/usr/bin/env bash
if [ "$1" != --build ]; then echo "-- Configuring done"; exit 0; fi
for i in $(seq {STEPS}); do echo "[$i/{STEPS}] Building CXX object $i"; done
[ -z "${{FAIL:-}}" ] || {{ echo "error: no such file"; exit 1; }}
mkdir -p build/demo/bin
printf '#!/bin/sh\\necho "ran $1"\\n' >build/demo/bin/vitrine
chmod +x build/demo/bin/vitrine
"""
NOTHING = "#!/bin/sh\necho 1\n"


class DemoTest(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp(prefix="vitrine_demo_")
        self.addCleanup(shutil.rmtree, self.root)
        for name, text in {"tools/setup": NOTHING, "tools/build_jobs": NOTHING, "bin/cmake": CMAKE}.items():
            path = os.path.join(self.root, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(path, 0o755)
        self.demo = shutil.copy(DEMO, os.path.join(self.root, "tools"))
        self.environment = dict(os.environ, PATH=os.path.join(self.root, "bin") + ":" + os.environ["PATH"])

    def log(self):
        with open(os.path.join(self.root, "build/demo-build.log"), encoding="utf-8") as file:
            return file.read()

    def test_a_log_gets_a_line_for_each_tenth(self):
        ended = subprocess.run([self.demo], env=self.environment, capture_output=True, text=True, check=True)
        shown = [line for line in ended.stdout.split("\n") if line.startswith("demo: built ") and "%" in line]
        self.assertEqual(len(shown), 10, ended.stdout)
        self.assertIn("demo: built 10 % (4 of 40 steps)", shown[0])
        self.assertIn("demo: built 100 % (40 of 40 steps)", shown[-1])
        self.assertIn("ran train", ended.stdout)
        self.assertIn("ran compare", ended.stdout)
        self.assertEqual(self.log().count("Building CXX object"), STEPS)
        self.assertIn("Configuring done", self.log())

    def test_a_terminal_gets_one_line_that_is_rewritten(self):
        ours, theirs = pty.openpty()
        with subprocess.Popen([self.demo], env=self.environment, stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL) as process:
            os.close(theirs)
            shown = b""
            while True:
                try:
                    read = os.read(ours, 65536)
                except OSError:  # the other end is closed
                    break
                if not read:
                    break
                shown += read
        os.close(ours)
        self.assertEqual(process.returncode, 0, shown)
        self.assertEqual(shown.count(b"\rdemo: built "), STEPS)
        self.assertNotIn(b"steps)\n", shown.replace(b"\r\n", b"\n").split(b"demo: built in")[0])

    def test_a_failed_build_is_reported_with_its_last_lines(self):
        ended = subprocess.run([self.demo], env=dict(self.environment, FAIL="1"), capture_output=True, text=True, check=False)
        self.assertEqual(ended.returncode, 1)
        self.assertIn("error: no such file", ended.stderr)
        self.assertIn("demo: the build failed", ended.stderr)
        self.assertNotIn("ran train", ended.stdout)


unittest.main()
