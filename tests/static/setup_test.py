# SPDX-License-Identifier: Apache-2.0
"""tools/setup installs what its level needs, says how much that is, and keeps apt-get's output in a log."""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

SETUP = sys.argv.pop(1)
APT_GET = """#!/bin/sh
case "$*" in
  *--assume-no*) echo "0 upgraded, 7 newly installed, 0 to remove and 0 not upgraded."
    echo "Need to get 1,234 kB/20.5 MB of archives."; exit 1 ;;
esac
echo "$*" >>"$CALLS"
for i in 1 2 3; do echo "Setting up package $i"; done
exit "${APT_STATUS:-0}"
"""
STUBS = {
    "apt-get": APT_GET,
    "apt-cache": "#!/bin/sh\necho '  Candidate: 1.0'\n",
    "id": "#!/bin/sh\necho 0\n",
    "cmake": "#!/bin/sh\necho 'cmake version 3.25.1'\n",
}
TOOLS = "bash sh env sed sort head tail paste uname mktemp cat g++ ninja python3 git xz".split()


class SetupTest(unittest.TestCase):
    """A machine that has everything but MPI."""

    def setUp(self):
        self.root = tempfile.mkdtemp(prefix="vitrine_setup_")
        self.addCleanup(shutil.rmtree, self.root)
        for tool in TOOLS:
            os.symlink(shutil.which(tool) or "/bin/true", os.path.join(self.root, tool))
        for name, text in STUBS.items():
            path = os.path.join(self.root, name)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(path, 0o755)
        self.calls = os.path.join(self.root, "calls")

    def run_setup(self, *arguments, **environment):
        environment = dict(os.environ, PATH=self.root, TMPDIR=self.root, CALLS=self.calls, **environment)
        return subprocess.run([SETUP, *arguments], env=environment, capture_output=True, text=True, check=False)

    def test_the_demo_needs_no_mpi(self):
        ended = self.run_setup("--demo")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertFalse(os.path.exists(self.calls), ended.stdout)

    def test_the_output_of_apt_get_goes_to_a_log(self):
        ended = self.run_setup()
        self.assertEqual(ended.returncode, 0, ended.stderr)
        with open(self.calls, encoding="utf-8") as file:
            self.assertIn("libopenmpi-dev openmpi-bin", file.read())
        self.assertIn("7 packages; 1,234 kB/20.5 MB to download", ended.stdout)
        self.assertNotIn("Setting up package", ended.stdout)
        with open(ended.stdout.split("log in ")[1].split("\n")[0], encoding="utf-8") as file:
            self.assertIn("Setting up package 3", file.read())

    def test_a_failure_shows_the_end_of_the_log(self):
        ended = self.run_setup(APT_STATUS="100")
        self.assertEqual(ended.returncode, 1)
        self.assertIn("Setting up package 3", ended.stderr)
        self.assertIn("could not be installed; log in", ended.stderr)


if __name__ == "__main__":
    unittest.main()
