"""Claims on sessions that a Connect server keeps: one process of this machine at a time works in each."""

import fcntl
from contextlib import suppress
from io import FileIO
from pathlib import Path

_MOST_BYTES = 100


class SessionClaim:
    """That a session is this process's alone; it ends with the process, however that ends.

    Args:
        file: Is locked until it is closed; None where no file can be written, and nobody is kept away.
        left: What the last process had noted, if it ended without taking that back; else empty.
    """

    def __init__(self, file: FileIO | None, left: str = "") -> None:
        self._file = file
        self.left = left

    def note(self, text: str) -> None:
        """Leave a note to the next process, which gets it unless it is replaced by an empty one."""
        # Without room for it, what a killed process has left stays until Spark restarts.
        with suppress(OSError):
            if self._file is not None:
                self._file.truncate(0)
                self._file.write(text.encode())

    def release(self) -> None:
        """Let the next process have it; once is enough."""
        if self._file is not None and not self._file.closed:
            with suppress(OSError):
                # A child that was forked has the file, too.
                fcntl.flock(self._file, fcntl.LOCK_UN)
            self._file.close()


def claim_session(folder: Path, session_id: str) -> SessionClaim | None:
    """Claim a session for this process.

    Args:
        folder: On this machine, the same for all who may want the session; made if it isn't there.

    Returns:
        The claim; None if another one has it, in this process or in another.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = FileIO(folder / session_id, "a+")
    except OSError:
        return SessionClaim(None)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.seek(0)
        return SessionClaim(file, file.read(_MOST_BYTES).decode(errors="replace"))
    except BlockingIOError:
        file.close()
        return None
    except OSError:
        file.close()
        return SessionClaim(None)
