#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a training command until it succeeds.   usage: bash restart.sh DIR COMMAND...
#   DIR  the command's --checkpoint-dir
# Stops with the command's status on a usage error (2) and on Ctrl-C (130), which no restart helps, and when three runs in a row have ended at the same
# checkpoint. RESTART_PAUSE is the number of seconds between runs (5).
dir=$1
shift
newest=none failures=0
until "$@"; do
  status=$? before=$newest
  newest=$(ls -d "$dir"/step-* 2> /dev/null | tail -n 1)
  case $status in 2 | 130) exit "$status" ;; esac
  if [ "$newest" = "$before" ]; then failures=$((failures + 1)); else failures=1; fi
  if [ "$failures" -ge 3 ]; then
    echo "restart.sh: 3 runs ended without a new checkpoint; the newest is ${newest:-none}" >&2
    exit "$status"
  fi
  echo "restart.sh: the command ended with status $status; starting it again from ${newest:-the beginning}" >&2
  sleep "${RESTART_PAUSE:-5}"
done
