"""A session that a Connect server keeps is one process's alone, until that ends, however it ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from kafka_lake.spark.session_claims import claim_session

HOLDS = """
import sys
from pathlib import Path
from kafka_lake.spark.session_claims import claim_session

claim = claim_session(Path(sys.argv[1]), "orders")
claim.note("of the first")
print(repr(claim.left), flush=True)
if sys.stdin.readline() == "release\\n":
    claim.note("")
    claim.release()
"""


def _process(folder: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", HOLDS, str(folder)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_another_process_gets_it_when_the_first_has_ended_and_its_note_if_that_was_killed(tmp_path: Path) -> None:
    for told, leaves in (("release\n", ""), (None, "of the first")):
        with _process(tmp_path) as process:
            assert process.stdout
            assert process.stdout.readline() == "''\n"
            assert claim_session(tmp_path, "orders") is None
            refunds = claim_session(tmp_path, "refunds")
            assert refunds is not None
            refunds.release()
            if told is None:
                os.kill(process.pid, signal.SIGKILL)
            process.communicate(told)
        claim = claim_session(tmp_path, "orders")
        assert claim is not None
        assert claim.left == leaves
        claim.note("")
        claim.release()


def test_it_is_the_first_ones_in_one_process_too_until_that_releases_it(tmp_path: Path) -> None:
    first = claim_session(tmp_path, "orders")
    assert first is not None
    assert claim_session(tmp_path, "orders") is None
    first.release()
    first.release()
    second = claim_session(tmp_path, "orders")
    assert second is not None
    assert second.left == ""
    second.release()


def test_nobody_is_kept_away_where_no_file_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "sessions").write_text("no folder")
    for _ in range(2):
        claim = claim_session(tmp_path / "sessions", "orders")
        assert claim is not None
        assert claim.left == ""
        claim.note("lost")
        claim.release()


def test_a_note_that_does_not_fit_is_left_out_and_the_session_stays_claimed(tmp_path: Path) -> None:
    (tmp_path / "orders").symlink_to("/dev/full")
    claim = claim_session(tmp_path, "orders")
    assert claim is not None
    claim.note("lost")
    assert claim_session(tmp_path, "orders") is None
    claim.release()


def test_a_claim_that_is_released_is_free_though_a_forked_child_has_its_file(tmp_path: Path) -> None:
    claim = claim_session(tmp_path, "orders")
    assert claim is not None
    reader, writer = os.pipe()
    if not (child := os.fork()):
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    os.close(reader)
    try:
        claim.note("")
        claim.release()
        again = claim_session(tmp_path, "orders")
        assert again is not None
        again.release()
    finally:
        os.close(writer)
        os.waitpid(child, 0)
