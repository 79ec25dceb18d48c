#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Doxygen reads every header without a warning.    usage: doxygen_test.sh OUTPUT; exits with 77 without doxygen
set -euo pipefail
cd "$(dirname "$0")/../.."
if ! command -v doxygen >/dev/null; then
  echo "skipped: no doxygen"
  exit 77
fi
mkdir -p "$1"
{ cat docs/Doxyfile; printf 'OUTPUT_DIRECTORY = "%s"\n' "$1"; } | doxygen -
test -e "$1/html/classvitrine_1_1Engine.html"
