"""The fuzz from the command line: the same inputs for the same seed; it ends with an error at the first lie."""

import argparse
import sys
import time

from kafka_lake_tests.fuzz.json_fuzz import Found, fuzz

_SECONDS_BETWEEN_LINES = 10.0


def main() -> int:
    """Run the fuzz, tell how far it is, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m kafka_lake_tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    began = reported = time.monotonic()
    found = Found()
    for found in fuzz(asked.inputs, asked.seed):
        if found.wrong:
            break
        if time.monotonic() - reported > _SECONDS_BETWEEN_LINES:
            reported = time.monotonic()
            print(f"{reported - began:6.0f} s  {found}", flush=True)
    print(f"seed {asked.seed}, {time.monotonic() - began:.0f} s: {found}")
    for problem in found.wrong:
        print(f"- {problem}")
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
